"""Which nodes are looked at for pods that protection evicts, and what comes of no answer."""

from collections.abc import Collection
from types import MappingProxyType
from typing import Final

from controller.admission.eviction import EvictedPod, Evictions
from controller.binding.request import PodsUnavailableError
from controller.explain.protection import NO_AGENTS, ProtectionQuery
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import FleetSnapshot
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.accounts import node_of
from tests.builders.fleet_views import fleet

NODE: Final = node_of().name
PODS: Final = (
    EvictedPod(NODE, "spire-server", "spire-server-0", 0),
    EvictedPod("cpu-1", "team-a", "web-0", 300),
)


def evicted(nodes: Collection[str]) -> tuple[EvictedPod, ...]:
    return tuple(x for x in PODS if x.node in nodes)


async def about(
    node: str, *, known: Collection[str] = (NODE, "cpu-1"), view: FleetSnapshot | None = None
) -> Evictions | Refusal:
    directory = DirectorySnapshot(MappingProxyType({x: KnownNode() for x in known}))
    view = fleet(node_of()) if view is None else view
    query = ProtectionQuery(pods=evicted, directory=lambda: directory, fleet=lambda: view)
    return await query.about(node)


async def test_without_a_name_all_nodes_of_the_fleet_are_looked_at() -> None:
    assert await about("") == Evictions(1, PODS[:1])


async def test_a_node_may_be_named_before_its_agent_runs() -> None:
    assert await about("cpu-1") == Evictions(1, PODS[1:])


async def test_nothing_to_look_at_is_no_empty_answer() -> None:
    unknown = ReasonCode.NODE_UNKNOWN
    assert await about("cpu-2") == Refusal(unknown, "the cluster has no node cpu-2")
    assert await about("", known=["cpu-1"]) == Refusal(unknown, NO_AGENTS)
    assert await about("", view=fleet()) == Refusal(unknown, NO_AGENTS)


async def test_pods_that_were_not_read_lately_are_no_empty_answer() -> None:
    def unread(_nodes: Collection[str]) -> tuple[EvictedPod, ...]:
        raise PodsUnavailableError("the pods were not read lately")

    directory = DirectorySnapshot(MappingProxyType({NODE: KnownNode()}))
    query = ProtectionQuery(pods=unread, directory=lambda: directory, fleet=fleet)
    expected = Refusal(ReasonCode.CONTROLLER_NOT_READY, "the pods were not read lately")
    assert await query.about(NODE) == expected
