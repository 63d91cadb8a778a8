"""A whole controller with `scheduling: affinity` and `protection: cluster`."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.admission.review import encode_patch
from controller.admission.rules import AdmissionRules
from controller.admission.validation import mutated
from controller.placement.texts import HINT_LABEL_PREFIX
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.admitted_pods import admitted, new_pod
from tests.builders.bindings import REQUIREMENT
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually
from tests.fakes.json_patch import applied
from tests.integration.test_binding_webhook_in_a_controller import Stage, stage
from tests.integration.test_controller_app import _restored_logging
from tests.integration.test_controller_in_a_cluster import TD

__all__ = ["_restored_logging"]
"""A fixture that is used by every test of the module where it stands."""

PLACEMENT = {"scheduling": "affinity", "protection": "cluster"}
TAINT = {"key": "gpuwarden.dev/managed", "effect": "NoExecute"}


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as api:
        yield api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer(tmp_path)
    await made.start()
    for name in ("node-1", "node-2"):
        made.create("nodes", {"metadata": {"name": name}, "spec": {"taints": [TAINT]}})
    labels = {"gpuwarden.dev/enforce": "true"}
    made.create("namespaces", {"metadata": {"name": "team-a", "labels": labels}})
    yield made
    await made.stop()


def create(there: Stage, name: str) -> None:
    """A pod as it is stored where pods are sent to nodes by a hint."""
    document = new_pod(annotations=REQUIREMENT)
    judged = mutated(admitted(document), AdmissionRules(by_affinity=True), enforced=True)
    made: dict[str, Any] = applied(document, json.loads(encode_patch(judged.patch)))
    made["metadata"]["name"] = name
    there.api.create("pods", made)


def hints(there: Stage, node: str) -> list[str]:
    labels = there.api.objects.get("nodes", node)["metadata"].get("labels", {})
    return [key for key in labels if key.startswith(HINT_LABEL_PREFIX)]


async def test_labels_follow_free_gpus_and_the_taint_is_told_of(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with stage(tmp_path, api, workload_api, **PLACEMENT) as there:
        for number in range(4):
            create(there, f"train-{number}")

        async def labelled() -> bool | None:
            return bool(hints(there, "node-1")) or None

        async def unlabelled() -> bool | None:
            return not hints(there, "node-1") or None

        await eventually(labelled, "the node has the label")
        assert hints(there, "node-2") == []
        for number in range(3):
            await there.bound(f"train-{number}")
        await eventually(unlabelled, "the label is gone with the last GPU")
        annotations = there.api.objects.get("pods", "team-a/train-0")["metadata"]["annotations"]
        limit = "the policy does not say that the node's container runtime honours the variable"
        assert annotations["gpuwarden.dev/guarantee-given"] == "node"
        assert annotations["gpuwarden.dev/guarantee-limit"] == limit
