from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from controller.explain.fleet_rows import (
    CellState,
    FleetFacts,
    Grouping,
    Wanted,
    fleet_map,
    node_rows,
    wanted_gpus,
    wanted_nodes,
)
from controller.fleet.directory import KnownNode
from controller.fleet.view import FleetSnapshot, NodeView
from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    fleet,
    gpu,
    hash_of,
    healthy,
    mig_slice,
    node,
)
from tests.builders.ledger import POD, holder, record

G = "GPU-gpu-1-0"


def held(state: HolderState = HolderState.CONFIRMED, *gpus: str) -> LedgerSnapshot:
    uuids = gpus or (G,)
    entries = [Entry(record(holder(*uuids, state=state), gpu=x), "1") for x in uuids]
    return LedgerSnapshot.of(entries)


def facts(
    *nodes: NodeView,
    ledger: LedgerSnapshot | None = None,
    now_ns: int = NOW_NS,
    to_record: Mapping[str, frozenset[str]] | None = None,
    **more: bool,
) -> FleetFacts:
    found: FleetSnapshot = fleet(*nodes)
    following = dict(to_record or {})
    return FleetFacts(
        found, ledger or LedgerSnapshot(), {}, now_ns, to_record=lambda _node: following, **more
    )


def states(found: FleetFacts) -> list[str]:
    return [x.state.value for row in node_rows(found) for x in row.gpus]


def used(name: str = "gpu-1", uuid: str = G) -> NodeView:
    view = healthy(name, gpus=1)
    assert view.acceptance is not None
    seen = replace(view.acceptance, processes_by_gpu=MappingProxyType({uuid: 2}))
    return replace(view, acceptance=seen)


def allocated(view: NodeView | None = None) -> NodeView:
    view = view or healthy("gpu-1", gpus=1)
    assert view.acceptance is not None
    given = (Allocation("a", "b", "c", "nvidia.com/gpu", G),)
    return replace(view, acceptance=replace(view.acceptance, allocations=given))


ONE = healthy("gpu-1", gpus=1)
FOLLOWS = {G.lower(): frozenset({"uid-b"})}
"""Kubelet gave it to a managed pod of a `plugin` node, and its record follows."""


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (facts(ONE), CellState.VERIFIED),
        (facts(ONE, ledger=held()), CellState.RESERVED),
        (facts(ONE, ledger=held(HolderState.PROPOSED)), CellState.RESERVED),
        (facts(used(), ledger=held()), CellState.USED),
        (facts(used()), CellState.UNRESERVED),
        (facts(allocated()), CellState.UNRESERVED),
        (facts(allocated(), to_record=FOLLOWS), CellState.RESERVED),
        (facts(allocated(used()), to_record=FOLLOWS), CellState.USED),
        (facts(allocated(), to_record={"gpu-other": frozenset({"u"})}), CellState.UNRESERVED),
        (facts(ONE, to_record=FOLLOWS), CellState.VERIFIED),
        (facts(ONE, now_ns=NOW_NS + LEASE_NS), CellState.STALE),
        (facts(ONE, ledger=held(), now_ns=NOW_NS + LEASE_NS), CellState.STALE),
        (facts(healthy("gpu-1", gpus=1, blocked=None)), CellState.VERIFIED),
    ],
)
def test_a_gpu_is_in_the_first_state_that_is_true(found: FleetFacts, wanted: CellState) -> None:
    assert states(found) == [wanted.value]


@pytest.mark.parametrize(
    ("view", "ledger", "wanted"),
    [
        (ONE, None, CellState.VERIFIED),
        (used(), None, CellState.USED),
        (allocated(), None, CellState.USED),
        (ONE, held(), CellState.RESERVED),
    ],
)
def test_where_nothing_is_reserved_no_use_is_unreserved(
    view: NodeView, ledger: LedgerSnapshot | None, wanted: CellState
) -> None:
    """In report mode, and without the webhooks."""
    assert states(facts(view, ledger=ledger, reserves=False)) == [wanted.value]


def test_whom_kubelet_gave_a_gpu_is_told_beside_who_reserved_it() -> None:
    (row,) = node_rows(facts(allocated(), to_record=FOLLOWS))
    assert (row.gpus[0].reserved_by, row.gpus[0].given_to) == ([], ["a/b"])
    (row,) = node_rows(facts(ONE, ledger=held()))
    assert (row.gpus[0].reserved_by, row.gpus[0].given_to) == (["team-a/train-0"], [])


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (ReasonCode.INVENTORY_CHANGED, CellState.QUARANTINED),
        (ReasonCode.NODE_DENIED, CellState.REFUSED),
    ],
)
def test_a_gpu_is_no_better_than_its_node(code: ReasonCode, wanted: CellState) -> None:
    view = node("gpu-1", acceptance(gpus=[gpu(0, G)]), blocked=code)
    found = facts(view, ledger=held())
    assert states(found) == [wanted.value]
    (row,) = node_rows(found)
    assert row.reason == code.value


def test_a_gpu_that_is_lost_is_lost_whatever_else_is_true() -> None:
    cards = [gpu(0, G, lost=True), gpu(1, unhealthy="xid 48"), gpu(2)]
    view = node("gpu-1", acceptance(gpus=cards), blocked=ReasonCode.NODE_DENIED)
    found = facts(view, ledger=held())
    assert states(found) == ["lost", "lost", "refused"]
    (row,) = node_rows(found)
    assert [x.detail for x in row.gpus] == ["GPU_IS_LOST", "xid 48", ""]


def test_without_the_ledger_nobody_says_that_a_gpu_is_free() -> None:
    old = replace(LedgerSnapshot(), fresh_until_ns=NOW_NS)
    assert states(facts(ONE, ledger=old)) == ["unknown"]


def test_a_split_gpu_is_held_where_a_part_of_it_is() -> None:
    card = gpu(0, G, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")])
    view = node("gpu-1", acceptance(gpus=[card]))
    found = facts(view, ledger=held(HolderState.CONFIRMED, "MIG-b"))
    assert states(found) == ["reserved"]
    (row,) = node_rows(found)
    assert row.gpus[0].reserved_by == ["team-a/train-0"]


OWN = GpuProcess(G, 7, POD.uid)


@pytest.mark.parametrize(
    ("processes", "wanted"),
    [
        ((OWN,), "used"),
        ((OWN, GpuProcess(G, 8, "another")), "unreserved-use"),
        ((OWN, GpuProcess(G, 8, None)), "unreserved-use"),
        (None, "unreserved-use"),
    ],
)
@pytest.mark.parametrize("others", [(), (record(holder(pod=PodRef("b", "")), gpu="MIG-c"),)])
def test_a_process_on_a_split_gpu_is_explained_by_any_part_that_its_pod_holds(
    processes: tuple[GpuProcess, ...] | None, wanted: str, others: tuple[GpuRecord, ...]
) -> None:
    """The driver names the whole GPU. A reservation without a pod explains no process."""
    parts = [mig_slice(x) for x in ("MIG-a", "MIG-b", "MIG-c")]
    accepted = acceptance(gpus=[gpu(0, G, mig=True, mig_devices=parts)], processes={G: 1})
    view = node("gpu-1", replace(accepted, processes=processes))
    records = (record(gpu="MIG-b"), *others)
    ledger = LedgerSnapshot.of(Entry(x, "1") for x in records)
    assert states(facts(view, ledger=ledger)) == [wanted]


@pytest.mark.parametrize(("user", "wanted"), [("uid-b", "used"), ("another", "unreserved-use")])
def test_a_process_on_a_split_gpu_is_explained_by_a_part_whose_record_follows(
    user: str, wanted: str
) -> None:
    parts = [mig_slice(x) for x in ("MIG-a", "MIG-b")]
    accepted = acceptance(gpus=[gpu(0, G, mig=True, mig_devices=parts)], processes={G: 1})
    given = (Allocation("a", "b", "c", "nvidia.com/mig-1g.10gb", "MIG-b::1"),)
    seen = replace(accepted, processes=(GpuProcess(G, 7, user),), allocations=given)
    found = facts(node("gpu-1", seen), to_record={"mig-b": frozenset({"uid-b"})})
    assert states(found) == [wanted]
    (row,) = node_rows(found)
    assert row.gpus[0].given_to == ["a/b"]


def test_serials_are_there_for_a_role_alone() -> None:
    (plain,), (told,) = node_rows(facts(ONE)), node_rows(facts(ONE), has_serials=True)
    assert told.gpus[0].serial == "165000000"
    assert plain.gpus[0].serial is not told.gpus[0].serial


# --- filters

FLEET = facts(healthy("gpu-1", gpus=2), healthy("gpu-2", "b", gpus=1), node("gpu-3"), ledger=held())


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(), ["gpu-1", "gpu-2", "gpu-3"]),
        (Wanted(node_state="unknown"), ["gpu-3"]),
        (Wanted(state="reserved"), ["gpu-1"]),
        (Wanted(namespace="team-a"), ["gpu-1"]),
        (Wanted(namespace="team"), []),
        (Wanted(attestation_hash=hash_of("b")[:12]), ["gpu-2"]),
        (Wanted(attestation_hash="v1:"), ["gpu-1", "gpu-2"]),
        (Wanted(model="h100"), ["gpu-1", "gpu-2"]),
        (Wanted(q="PU-2"), ["gpu-2"]),
        (Wanted(q="gpu-gpu-2-0"), ["gpu-2"]),
        (Wanted(q="165000000"), []),
        (Wanted(reason="NODE_NO_EVIDENCE"), ["gpu-3"]),
        (Wanted(mode="plugin"), []),
        (Wanted(zone="a"), []),
    ],
)
def test_nodes_are_filtered(wanted: Wanted, names: list[str]) -> None:
    assert [x.name for x in wanted_nodes(node_rows(FLEET), wanted)] == names


def test_a_namespace_has_what_kubelet_gave_its_pods_too() -> None:
    rows = list(node_rows(facts(allocated())))
    assert [x.name for x in wanted_nodes(rows, Wanted(namespace="a"))] == ["gpu-1"]
    assert [x.name for x in wanted_nodes(rows, Wanted(namespace="b"))] == []


def test_a_serial_is_found_by_whoever_may_see_it() -> None:
    rows = node_rows(FLEET, has_serials=True)
    found = wanted_gpus(rows, Wanted(q="165000001"))
    assert [(x.node, x.index) for x in found] == [("gpu-1", 1)]


def test_gpus_are_filtered_one_by_one() -> None:
    found = wanted_gpus(node_rows(FLEET), Wanted(state="verified"))
    assert [(x.node, x.index) for x in found] == [("gpu-1", 1), ("gpu-2", 0)]


def test_rows_begin_where_they_are_wanted() -> None:
    assert [x.name for x in node_rows(FLEET, after="gpu-1")] == ["gpu-2", "gpu-3"]
    assert [x.name for x in node_rows(FLEET, since="gpu-2")] == ["gpu-2", "gpu-3"]


def test_a_map_has_a_letter_for_each_gpu_and_counts_them() -> None:
    labels = {"gpu-1": KnownNode(labels={"topology.kubernetes.io/zone": "z1"})}
    rows = list(node_rows(replace(FLEET, directory=labels)))
    found = fleet_map(rows, Grouping.ZONE)
    assert [(x.name, [y.name for y in x.nodes]) for x in found.groups] == [
        ("z1", ["gpu-1"]),
        ("-", ["gpu-2", "gpu-3"]),
    ]
    cells = found.groups[0].nodes[0].cells
    assert [found.letters[x] for x in cells] == ["reserved", "verified"]
    assert (found.gpus["reserved"], found.gpus["verified"], found.gpus["lost"]) == (1, 2, 0)
    assert (found.nodes["eligible"], found.nodes["unknown"]) == (2, 1)
    by_class = fleet_map(rows, Grouping.CLASS)
    assert [x.name for x in by_class.groups] == [hash_of("a"), hash_of("b"), "-"]


def test_the_first_label_of_a_pool_counts() -> None:
    labels = {"karpenter.sh/nodepool": "h100", "node.kubernetes.io/instance-type": "p5"}
    found = replace(facts(ONE), directory={"gpu-1": KnownNode(labels=labels)})
    (row,) = node_rows(found)
    assert row.pool == "h100"
