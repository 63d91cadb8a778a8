"""README's first pod asks for all that it needs, on nodes of either mode."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.admission.rules import AdmissionRules
from controller.admission.validation import mutated, validated
from controller.placement.requirements import Requirements
from controller.policy import NodeMode, Policy
from tests.builders.admitted_pods import admitted, patched

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def example(mode: NodeMode) -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(BLOCKS[0])
    if mode is NodeMode.ENV:
        del pod["spec"]["containers"][0]["resources"]
        pod["metadata"]["annotations"] |= yaml.safe_load(BLOCKS[1])
    return pod


@pytest.mark.parametrize("enforced", [True, False])
@pytest.mark.parametrize("mode", [NodeMode.ENV, NodeMode.PLUGIN])
def test_it_gets_a_gpu_and_draws_no_warning(mode: NodeMode, *, enforced: bool) -> None:
    pod, policy = example(mode), Policy(default_mode=mode)
    stored = admitted(patched(pod, enforced=enforced))
    rules = AdmissionRules()
    judged = validated(stored, rules, enforced=enforced, policy=policy)
    assert (judged.refusals, judged.warnings) == ((), ())
    assert mutated(admitted(pod), rules, enforced=enforced, policy=policy).warnings == ()
    assert isinstance(judged.needs, Requirements)
    assert judged.needs.count == 1
    assert judged.needs.hashes is not None
