"""A whole controller with `scheduling.mode: affinity` and `protection: cluster`."""

import functools
import json
from typing import Any

import pytest

from controller.admission.review import encode_patch
from controller.admission.rules import AdmissionRules
from controller.admission.validation import mutated
from controller.kube.pods.waiting_events import WaitingPodEvents
from controller.placement.keys import HINT_LABEL_PREFIX
from sandbox.kube.json_patch import applied
from tests.builders.admitted_pods import admitted, new_pod
from tests.builders.bindings import REQUIREMENT
from tests.fakes.cluster import FakeCluster, LiveCluster
from tests.fakes.eventually import eventually

PLACEMENT = {"scheduling__mode": "affinity", "protection": "cluster"}
TAINT = {"key": "gpuwarden.dev/managed", "effect": "NoExecute"}


def create(there: LiveCluster, name: str) -> None:
    """A pod as it is stored where pods are sent to nodes by a hint."""
    document = new_pod(annotations=REQUIREMENT)
    judged = mutated(admitted(document), AdmissionRules(by_affinity=True), enforced=True)
    made: dict[str, Any] = applied(document, json.loads(encode_patch(judged.patch)))
    made["metadata"]["name"] = name
    there.api.create("pods", made)


def hints(there: LiveCluster, node: str) -> list[str]:
    labels = there.api.objects.get("nodes", node)["metadata"].get("labels", {})
    return [key for key in labels if key.startswith(HINT_LABEL_PREFIX)]


async def test_labels_follow_free_gpus_and_the_taint_is_reported_of(cluster: FakeCluster) -> None:
    cluster.create_nodes("node-2")
    for node in ("node-1", "node-2"):
        cluster.taint(node, TAINT)
    async with cluster.live(**PLACEMENT) as there:
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


async def test_a_pod_that_waits_for_a_label_has_an_event_that_says_why(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = functools.partialmethod(WaitingPodEvents.follow, 0.1)
    monkeypatch.setattr(WaitingPodEvents, "follow", often)
    async with cluster.live(**PLACEMENT) as there:
        for number in range(3):
            create(there, f"train-{number}")
            await there.bound(f"train-{number}")
        create(there, "late")

        async def told() -> dict[str, Any] | None:
            events = await cluster.events("PodNotPlaced")
            return next((x for x in events if x["regarding"]["name"] == "late"), None)

        event = await eventually(told, "the pod has its Event")
    assert event["note"].startswith("gpuwarden: GPU_BUSY 1 of 1 node (")
    assert event["note"].endswith(": needs 1 GPU, node has 3, 0 free)")
