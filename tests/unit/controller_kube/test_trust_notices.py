"""Which change is told to whom."""

from collections.abc import Iterable
from typing import Any

import pytest

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.cache import Change
from controller.kube.events import MAX_PODS, REASONS, Regarding, Severity, trust_notices
from controller.kube.pods import KnownPod, PodsByNode
from controller.kube.resources import Entry
from gpuwarden.reasons import ReasonCode

NODES = DirectorySnapshot({"gpu-1": KnownNode("uid-1"), "odd": KnownNode(None)})


def pod(name: str = "p", node: str = "gpu-1", **changed: bool) -> KnownPod:
    facts: dict[str, Any] = {"has_ended": False, "asks": True, "uses_gpus": True, **changed}
    return KnownPod("team", name, f"uid-{name}", node, **facts)


def entry(value: KnownPod) -> Entry[KnownPod]:
    return Entry("v", value.uid, value)


def none(_node: str) -> Iterable[KnownPod]:
    return ()


def test_a_quarantine_is_told_on_the_node_and_its_guarded_pods() -> None:
    change = TrustChange("gpu-1", ChangeKind.QUARANTINED, ReasonCode.DUPLICATE_AGENT, "two of them")
    node, on_pod = trust_notices([change], NODES, lambda _node: [pod()])
    assert node.regarding == Regarding("Node", "gpu-1", "uid-1")
    assert (node.reason, node.code, node.note) == (
        "NodeQuarantined",
        "DUPLICATE_AGENT",
        "two of them",
    )
    assert node.severity is Severity.WARNING
    assert on_pod.regarding == Regarding("Pod", "p", "uid-p", "team")
    assert on_pod.note == "node gpu-1: two of them"


def test_a_recovery_is_good_news() -> None:
    (notice,) = trust_notices([TrustChange("gpu-1", ChangeKind.RESTORED)], NODES, none)
    assert (notice.reason, notice.severity, notice.code) == ("NodeRecovered", Severity.NORMAL, "")


def test_a_lost_gpu_is_named() -> None:
    change = TrustChange("gpu-1", ChangeKind.GPU_LOST, detail="xid 79", gpu="GPU-a")
    (notice,) = trust_notices([change], NODES, lambda _node: [pod()])
    assert notice.note == "xid 79 GPU-a"


@pytest.mark.parametrize(
    "kind", [ChangeKind.RENEWED, ChangeKind.FIRST_ACCEPTED, ChangeKind.OUTDATED]
)
def test_a_quiet_round_says_nothing(kind: ChangeKind) -> None:
    assert list(trust_notices([TrustChange("gpu-1", kind)], NODES, none)) == []


@pytest.mark.parametrize("node", ["nobody", "odd"])
def test_a_node_that_the_cluster_does_not_have_has_no_events(node: str) -> None:
    assert list(trust_notices([TrustChange(node, ChangeKind.REVOKED)], NODES, none)) == []


def test_a_crowded_node_tells_some_of_its_pods() -> None:
    pods = [pod(str(n)) for n in range(200)]
    change = TrustChange("gpu-1", ChangeKind.REVOKED)
    assert len(list(trust_notices([change], NODES, lambda _node: pods))) == MAX_PODS + 1


def test_reasons_are_constant_words() -> None:
    assert all(x.isalpha() and x[0].isupper() and len(x) <= 128 for x in REASONS)


class TestPodsByNode:
    def test_it_follows_pods_to_and_from_nodes(self) -> None:
        pods = PodsByNode(lambda _namespace: False)
        unbound, bound = entry(pod(node="")), entry(pod())
        pods.observe((Change("team/p", None, unbound),), None)
        assert list(pods.guarded("")) == [unbound.value]
        assert pods.any_waits()
        pods.observe((Change("team/p", unbound, bound),), None)
        assert not pods.any_waits()
        assert list(pods.guarded("gpu-1")) == [bound.value]
        ended = entry(pod(has_ended=True))
        pods.observe((Change("team/p", bound, ended),), None)
        assert list(pods.guarded("gpu-1")) == []
        pods.observe((Change("team/p", ended, None),), None)
        pods.observe((Change("team/p", None, bound),), None)
        pods.observe((Change("team/p", bound, None),), None)
        assert list(pods.guarded("gpu-1")) == []
        assert pods._pods == {}

    def test_enforced_namespaces_guard_every_gpu_pod(self) -> None:
        enforced: set[str] = set()
        pods = PodsByNode(enforced.__contains__)
        plain = pod("a", asks=False)
        cpu_only = pod("b", asks=False, uses_gpus=False)
        pods.observe(tuple(Change(x.name, None, entry(x)) for x in (plain, cpu_only)), None)
        assert list(pods.guarded("gpu-1")) == []
        enforced.add("team")
        assert list(pods.guarded("gpu-1")) == [plain]
