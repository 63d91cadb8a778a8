"""What nodes promise of GPUs: never more than the mode, the protection and the runtime allow."""

from dataclasses import replace

import pytest

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.placement.node_verdict import Promise, promise_of, promise_to
from controller.placement.requirements import Requirements
from controller.placement.snapshot import Scene
from controller.placement.texts import Guarantee, Limit
from controller.policy import NodeMode, NodePool, Policy
from tests.builders.fleet_views import NOW_NS
from tests.builders.scenes import scene

NAME = "gpu-1"
HONOURS = Policy(pools=(NodePool("gpu-*", honours_variable=True),))
ONE = Requirements(guarded=True, count=1)


def place(
    *, managed: bool = True, protected: bool = True, fresh: bool = True, honours: bool = True
) -> Scene:
    nodes = DirectorySnapshot({NAME: KnownNode("u", managed)}, NOW_NS + 1 if fresh else NOW_NS)
    made = scene(policy=HONOURS if honours else Policy())
    return replace(made, nodes=nodes, protected=protected)


@pytest.mark.parametrize("mode", NodeMode)
@pytest.mark.parametrize(
    ("where", "limit"),
    [
        (place(protected=False), Limit.PROTECTION_OFF),
        (place(managed=False), Limit.NO_TAINT),
        (place(fresh=False), Limit.TAINTS_UNKNOWN),
        (replace(place(), nodes=DirectorySnapshot({})), Limit.NO_TAINT),
    ],
)
def test_an_unprotected_node_promises_itself_alone(
    mode: NodeMode, where: Scene, limit: Limit
) -> None:
    assert promise_of(NAME, mode, where) == Promise(Guarantee.NODE, limit)


@pytest.mark.parametrize(
    ("mode", "honours", "promise"),
    [
        (NodeMode.ENV, True, Promise(Guarantee.EXACT)),
        (NodeMode.ENV, False, Promise(Guarantee.NODE, Limit.RUNTIME)),
        (NodeMode.PLUGIN, True, Promise(Guarantee.SET, Limit.KUBELET)),
        (NodeMode.PER_GPU, True, Promise(Guarantee.NODE, Limit.MODE)),
        (NodeMode.DRA, True, Promise(Guarantee.NODE, Limit.MODE)),
    ],
)
def test_a_protected_node_promises_what_its_mode_can_give(
    mode: NodeMode, honours: bool, promise: Promise
) -> None:
    assert promise_of(NAME, mode, place(honours=honours)) == promise
    assert promise_to(ONE, NAME, mode, place(honours=honours)) == promise


def test_only_the_pool_of_the_node_counts() -> None:
    other = Policy(pools=(NodePool("gpu-1"), NodePool("*", honours_variable=True)))
    where = replace(place(), policy=scene(policy=other).policy)
    assert promise_of(NAME, NodeMode.ENV, where) == Promise(Guarantee.NODE, Limit.RUNTIME)


def test_a_pod_without_gpus_is_promised_the_node() -> None:
    needs = replace(ONE, count=0)
    for mode in NodeMode:
        assert promise_to(needs, NAME, mode, place()) == Promise(Guarantee.NODE)


def test_who_accepts_less_may_get_another_device_where_kubelet_chooses() -> None:
    needs = replace(ONE, accepts=Guarantee.NODE)
    assert promise_to(needs, NAME, NodeMode.PLUGIN, place()) == Promise(
        Guarantee.NODE, Limit.ACCEPTED
    )
    assert promise_to(needs, NAME, NodeMode.ENV, place()) == Promise(Guarantee.EXACT)
