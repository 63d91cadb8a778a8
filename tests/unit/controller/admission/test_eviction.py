"""Which bound pods the taint of managed nodes evicts, and when."""

from typing import Any

import pytest

from controller.admission.eviction import EvictedPod, evicted_after_s
from tests.builders.admitted_pods import admitted, new_pod

OURS: dict[str, Any] = {
    "key": "gpuwarden.dev/managed",
    "operator": "Exists",
    "effect": "NoExecute",
}


@pytest.mark.parametrize(
    ("tolerations", "after_s"),
    [
        (None, 0),
        ([], 0),
        ([OURS], None),
        ([{"operator": "Exists"}], None),
        ([{"operator": "Exists", "effect": "NoExecute"}], None),
        ([{"key": "gpuwarden.dev/managed"}], None),  # Equal, and the taint has no value
        ([{**OURS, "operator": "Equal", "value": "yes"}], 0),
        ([{"operator": "Exists", "effect": "NoSchedule"}], 0),
        ([{**OURS, "key": "nvidia.com/gpu"}], 0),
        ([{**OURS, "tolerationSeconds": 300}], 300),
        ([{**OURS, "tolerationSeconds": 0}], 0),
        ([{**OURS, "tolerationSeconds": -1}], 0),
        ([{**OURS, "tolerationSeconds": 300}, OURS], 300),
        ([OURS, {**OURS, "tolerationSeconds": 300}], None),
        ([{**OURS, "key": "other", "tolerationSeconds": 5}, OURS], None),
    ],
)
def test_the_first_toleration_that_matches_counts(tolerations: Any, after_s: int | None) -> None:
    assert evicted_after_s(admitted(new_pod(tolerations=tolerations))) == after_s


def test_pods_are_in_the_order_of_node_namespace_and_name() -> None:
    assert EvictedPod("gpu-1", "team-a", "train-0", 0).key == "gpu-1/team-a/train-0"
