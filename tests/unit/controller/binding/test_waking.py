"""Which waiting pods are tried again: as many as can be placed, by the binding webhook's code."""

from dataclasses import replace
from typing import Any

import pytest

from controller.binding.decision import BindingView, InFlight
from controller.binding.turns import OTHERS_FIRST
from controller.binding.use import LedgerUse
from controller.binding.waking import (
    MOST_AT_ONCE,
    Chosen,
    NamespaceRoom,
    Room,
    WaitingPod,
    choose_to_wake,
)
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.ledger.record import HolderState, Origin, PodRef
from controller.placement.requirements import Requirements, parse_requirements
from controller.policy import NodeMode
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admitted_pods import admitted
from tests.builders.bindings import NODE, binding_view, env_pod
from tests.builders.fleet_views import healthy
from tests.builders.ledger import holder, record
from tests.builders.scenes import scene

HERE = Room(nodes=frozenset({NODE}))
OTHER = "gpu-2"


def waits(
    name: str, count: int = 1, *, namespace: str = "team-a", priority: int = 0, **more: Any
) -> WaitingPod:
    annotations = {"gpuwarden.dev/gpu-count": str(count)} | more.pop("annotations", {})
    document = env_pod(annotations, name=name, uid=f"uid-{name}")
    document["metadata"] |= {"namespace": namespace, "creationTimestamp": more.pop("created", "1")}
    document["spec"] |= {"priority": priority} | more.pop("spec", {})
    pod = admitted(document)
    view = binding_view()
    needs = parse_requirements(pod, view.rules.requirements, enforced=True)
    assert isinstance(needs, Requirements)
    return WaitingPod(PodRef(namespace, name, f"uid-{name}"), pod, needs, enforced=True, **more)


def woken(view: BindingView, *waiting: WaitingPod, room: Room = HERE) -> list[str]:
    return [str(pod.name) for pod, _ in chosen(view, *waiting, room=room).pods]


def chosen(view: BindingView, *waiting: WaitingPod, room: Room = HERE) -> Chosen:
    return choose_to_wake(waiting, room, view, LedgerUse(lambda: view.ledger).use)


def test_as_many_as_can_be_placed_are_woken() -> None:
    forty = [waits(f"p{number:02}") for number in range(40)]
    assert woken(binding_view(), *forty) == [f"p{number:02}" for number in range(8)]
    assert woken(binding_view(healthy(NODE, gpus=1)), *forty) == ["p00"]
    full = binding_view(healthy(NODE, gpus=1), claiming={f"GPU-{NODE}-0": InFlight(forty[3].ref)})
    assert woken(full, *forty) == []


def test_one_that_does_not_fit_leaves_room_for_the_next() -> None:
    view = binding_view(healthy(NODE, gpus=3))
    assert woken(view, waits("a", 2), waits("b", 2), waits("c", 1)) == ["a", "c"]
    elsewhere = waits("a", annotations={"gpuwarden.dev/gpu-selector": "memory>=1Ti"})
    assert woken(view, elsewhere, waits("b", 3)) == ["b"]


def test_they_come_in_the_scheduler_s_order() -> None:
    view = binding_view(healthy(NODE, gpus=2))
    pods = (
        waits("young", created="2026-11-28T10:00:02Z"),
        waits("old", created="2026-11-28T10:00:01Z"),
        waits("urgent", priority=10, created="2026-11-28T10:00:03Z"),
    )
    assert woken(view, *pods) == ["urgent", "old"]


def test_a_node_without_room_wakes_nobody() -> None:
    view = binding_view(healthy(NODE), healthy(OTHER))
    assert woken(view, waits("a"), room=Room(frozenset({"gpu-3"}))) == []
    assert chosen(view, waits("a")).pods == ((waits("a").ref, NODE),)
    assert woken(view, waits("a"), room=Room()) == []


def test_where_the_scheduler_would_not_send_it_a_pod_is_not_woken_for() -> None:
    nodes = DirectorySnapshot({NODE: KnownNode("u", labels={"disk": "ssd"})})
    view = binding_view(scene=replace(scene(healthy(NODE, gpus=1)), nodes=nodes))
    picky = waits("picky", spec={"nodeSelector": {"disk": "hdd"}})
    fits = waits("fits", spec={"nodeSelector": {"disk": "ssd"}})
    assert woken(view, picky, fits) == ["fits"]
    assert woken(view, picky, waits("z")) == ["z"]


def test_whose_turn_is_lost_and_who_is_over_the_quota_sleeps_on() -> None:
    lost = binding_view(turn_refusal=lambda uid: OTHERS_FIRST if uid == "uid-a" else None)
    assert woken(lost, waits("a"), waits("b")) == ["b"]
    quota = binding_view(quota=2)
    pods = (waits("a"), waits("b", 2), waits("c"), waits("d"), waits("e", namespace="team-b"))
    assert woken(quota, *pods) == ["a", "c", "e"]


def test_a_pod_that_was_answered_is_left_alone() -> None:
    """A change of it would make its Binding fail."""
    answered = holder(f"GPU-{NODE}-0", pod=waits("a").ref)
    view = binding_view(records=(replace(record(answered, gpu=f"GPU-{NODE}-0"), node=NODE),))
    assert woken(view, waits("a"), waits("b")) == ["b"]


def test_what_was_reserved_at_its_creation_draws_a_pod_to_its_node_alone() -> None:
    early = replace(holder(f"GPU-{NODE}-0", pod=waits("a").ref), origin=Origin.ADMISSION)
    view = binding_view(
        healthy(NODE),
        healthy(OTHER),
        records=(replace(record(early, gpu=f"GPU-{NODE}-0"), node=NODE),),
    )
    assert woken(view, waits("a")) == ["a"]
    assert woken(view, waits("a"), room=Room(frozenset({OTHER}))) == []
    assert chosen(view, waits("a"), room=Room(everywhere=True)).pods == ((waits("a").ref, NODE),)


def test_whom_another_replica_has_woken_counts_as_placed() -> None:
    view = binding_view(healthy(NODE, gpus=1))
    found = chosen(view, waits("a", is_awake=True), waits("b"))
    assert found == Chosen((), is_unsure=True)
    assert chosen(view, waits("b")) == Chosen(((waits("b").ref, NODE),))


@pytest.mark.parametrize(
    "view",
    [
        binding_view(not_ready="first round"),
        binding_view(grant_refusal=lambda *_: Refusal(ReasonCode.CONTROLLER_NOT_READY, "read")),
        binding_view(ids=None),
    ],
)
def test_what_cannot_be_decided_now_is_said(view: BindingView) -> None:
    assert chosen(view, waits("a")) == Chosen((), is_unsure=True)
    assert chosen(binding_view(healthy(NODE, gpus=1)), waits("b", 2)) == Chosen()


def test_a_namespace_with_room_in_its_quota_may_go_to_any_node() -> None:
    view = binding_view(healthy(NODE, gpus=1), healthy(OTHER, gpus=1), quota=1)
    room = Room(namespaces=frozenset({"team-b"}))
    pods = (waits("a"), waits("b", namespace="team-b"), waits("c", namespace="team-b"))
    assert woken(view, *pods, room=room) == ["b"]


def test_everywhere_is_every_node() -> None:
    view = binding_view(
        healthy(NODE, gpus=1), healthy(OTHER, gpus=1), healthy("gpu-3", "b", gpus=1)
    )
    pods = [waits(f"p{number}") for number in range(4)]
    assert woken(view, *pods, room=Room(everywhere=True)) == ["p0", "p1", "p2"]


def test_where_kubelet_chooses_as_many_are_woken_as_the_node_has_gpus() -> None:
    view = binding_view(healthy(NODE, gpus=2, mode=NodeMode.PLUGIN))
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pods = []
    for number in range(4):
        pod = waits(f"p{number}", spec={"containers": [container]})
        needs = replace(pod.needs, requests=(("nvidia.com/gpu", 1),))
        pods.append(replace(pod, needs=needs))
    assert woken(view, *pods) == ["p0", "p1"]
    free = [replace(x, needs=Requirements(managed=True)) for x in pods]
    assert woken(view, *free) == ["p0", "p1", "p2", "p3"]


def test_so_many_at_once() -> None:
    view = binding_view(healthy(NODE, gpus=100))
    assert len(woken(view, *(waits(f"p{x:03}") for x in range(70)))) == MOST_AT_ONCE == 64


def test_a_bound_pod_s_gpu_is_no_room() -> None:
    bound = holder(f"GPU-{NODE}-0", pod=PodRef("x", "y", "z"), state=HolderState.CONFIRMED)
    view = binding_view(
        healthy(NODE, gpus=1),
        records=(replace(record(bound, gpu=f"GPU-{NODE}-0"), node=NODE),),
    )
    assert chosen(view, waits("a")) == Chosen()


def test_a_namespace_is_freed_when_it_holds_fewer_than_before() -> None:
    room = NamespaceRoom()
    assert room.freed({"a": 3, "b": 1}, {"a", "b", "c"}) == frozenset()
    assert room.freed({"a": 2, "b": 1}, {"a", "b"}) == {"a"}
    assert room.freed({"a": 2}, {"a", "b"}) == {"b"}
    assert room.freed({"a": 1}, {"b"}) == frozenset()
