"""Bound pods of the copy, by name, by UID and by node."""

import json
from typing import Any

from controller.binding.request import BoundPod
from controller.kube.api.cache import Cache, Change
from controller.kube.pods.pods import REINDEX_NS, ClusterBoundPods, KnownPod, PodsByNode, pod_kind
from controller.ledger.record import PodRef
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements
from tests.fakes.clock import FakeClock

KIND = pod_kind(RequirementRules())


def document(
    name: str, *, node: str = "gpu-1", phase: str = "Running", **more: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "annotations": {"gpuwarden.dev/min-level": "L1"},
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        },
        "status": {"phase": phase},
    }
    made["spec"] |= {"nodeName": node} if node else {}
    made["metadata"] |= more
    return made


class Copy:
    def __init__(self, *documents: dict[str, Any], enforced: bool = False) -> None:
        self.clock = FakeClock()
        self.cache: Cache[KnownPod] = Cache()
        by_node = PodsByNode(lambda _namespace: enforced)
        entries = dict(KIND.entry(json.dumps(x).encode()) for x in documents)
        self.cache.take_list(entries, "7", 1)
        by_node.observe(tuple(Change(k, None, x) for k, x in entries.items()), 1)
        self.pods = ClusterBoundPods(self.cache, by_node, self.clock.boottime_ns)

    def listed(self, *documents: dict[str, Any]) -> None:
        self.cache.take_list(dict(KIND.entry(json.dumps(x).encode()) for x in documents), "8", 2)


def name_of(pod: BoundPod | None) -> str | None:
    return None if pod is None else pod.pod.name


def test_a_bound_pod_with_what_it_asks_for() -> None:
    found = Copy(document("a")).pods.named("team-a", "a")
    assert found is not None
    assert (found.pod, found.node) == (PodRef("team-a", "a", "uid-a"), "gpu-1")
    assert isinstance(found.needs, Requirements)
    assert (found.needs.count, found.needs.managed) == (2, True)


def test_what_waits_or_has_ended_is_not_there() -> None:
    copy = Copy(document("waits", node=""), document("over", phase="Failed"))
    for name in ("waits", "over", "unknown"):
        assert copy.pods.named("team-a", name) is None
        assert copy.pods.with_uid(f"uid-{name}") is None
    assert list(copy.pods.managed("gpu-1")) == []
    assert list(copy.pods.managed("")) == []


def test_a_pod_without_a_requirement_asks_for_something_where_its_namespace_is_enforced() -> None:
    plain = document("a", annotations={})
    for enforced in (False, True):
        pods = Copy(plain, enforced=enforced).pods
        found = pods.named("team-a", "a")
        assert found is not None
        assert (found.needs is not None) == enforced
        assert [name_of(x) for x in pods.managed("gpu-1")] == (["a"] if enforced else [])


def test_managed_pods_of_a_node() -> None:
    copy = Copy(document("a"), document("b", node="gpu-2"), document("c", annotations={}))
    assert [name_of(x) for x in copy.pods.managed("gpu-1")] == ["a"]


def test_by_uid_the_index_is_not_made_for_every_question() -> None:
    copy = Copy(document("a"))
    assert name_of(copy.pods.with_uid("uid-a")) == "a"
    copy.listed(document("a"), document("b"))
    assert copy.pods.with_uid("uid-b") is None
    assert name_of(copy.pods.with_uid("uid-a")) == "a"
    copy.clock.advance(REINDEX_NS / 1e9)
    assert name_of(copy.pods.with_uid("uid-b")) == "b"


def test_a_name_that_has_another_uid_by_now_is_another_pod() -> None:
    copy = Copy(document("a"))
    assert name_of(copy.pods.with_uid("uid-a")) == "a"
    copy.listed(document("a", uid="uid-9"))
    assert copy.pods.with_uid("uid-a") is None


MIRROR = {"kubernetes.io/config.mirror": "5f1c", "kubernetes.io/config.hash": "5f1c"}


def test_a_static_pod_is_found_by_the_uid_that_its_node_knows() -> None:
    copy = Copy(document("a", annotations=MIRROR), document("b"))
    found = copy.pods.with_uid("5f1c")
    assert found is not None
    assert found.pod == PodRef("team-a", "a", "uid-a")
    assert name_of(copy.pods.with_uid("uid-a")) == "a"
    assert copy.pods.with_uid("") is None


def test_no_pod_takes_the_place_of_another_by_an_annotation() -> None:
    liar = document("a", annotations={"kubernetes.io/config.mirror": "uid-b"})
    for documents in ((liar, document("b")), (document("b"), liar)):
        assert name_of(Copy(*documents).pods.with_uid("uid-b")) == "b"
