from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from controller.binding.use import LedgerUse
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState, Origin, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.filter_and_score import filter_nodes
from controller.placement.gpu_map import Place
from controller.placement.preemption import none_of, preempt_nodes, waits_for
from controller.placement.requirements import Requirements, RequirementsInvalid
from controller.placement.snapshot import Scene
from controller.policy import Level, NodeMode, Policy
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.finding import Finding
from gpuwarden.policy.selector import parse_selector
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import LEASE_NS, acceptance, gpu, hash_of, mig_slice, node
from tests.builders.ledger import SHARE, holder, record
from tests.builders.scenes import scene

# --- Which nodes may be emptied for a pod, and for how long it waits instead

NODE, OTHER = "gpu-1", "gpu-2"
VICTIM, STAYS = "victim", "stays"
ONE = Requirements(managed=True, count=1)
TWO = Requirements(managed=True, count=2)
PLUGIN_ONE = Requirements(managed=True, count=1, requests=(("nvidia.com/gpu", 1),))
PAIR = node(NODE, acceptance(hash_of("a"), [gpu(0), gpu(1)]))
PLUGIN = replace(PAIR, mode=NodeMode.PLUGIN)
SPLIT = node(
    NODE,
    acceptance(
        hash_of("a"),
        [gpu(0, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")]), gpu(1)],
    ),
)


def pod_ref(uid: str | None) -> PodRef:
    return PodRef("team-a", uid, uid)


def held(device: str, *uids: str | None, at: str = NODE, **more: Any) -> GpuRecord:
    """The device, held for pods of these UIDs."""
    more = {"state": HolderState.CONFIRMED, **more}
    parts = [
        replace(holder(device, pod=pod_ref(uid), **more), reservation=f"v1.k.{number}")
        for number, uid in enumerate(uids)
    ]
    return replace(record(*parts, gpu=device), node=at)


def where(
    *nodes: NodeView, records: Iterable[GpuRecord] = (), uid: str = "urgent", **more: Any
) -> Scene:
    """A scene in which the ledger has these records."""
    ledger = LedgerSnapshot.of(Entry(each, "1") for each in records)
    use = LedgerUse(lambda: ledger).use(uid, None)
    return replace(
        scene(*nodes, **more),
        busy=use.busy,
        own=use.own,
        claimed=use.claimed,
        parts=use.parts,
        holders=use.holders,
    )


def using(view: NodeView, *processes: tuple[str, str | None]) -> NodeView:
    """The node with a process of a pod on each of these GPUs."""
    assert view.acceptance is not None
    found = tuple(GpuProcess(card, 7, uid) for card, uid in processes)
    counts = {card: sum(card == x for x, _ in processes) for card, _ in processes}
    return replace(
        view, acceptance=replace(view.acceptance, processes=found, processes_by_gpu=counts)
    )


def code_of(
    needs: Requirements | RequirementsInvalid, here: Scene, *victims: str, at: str = NODE
) -> ReasonCode | None:
    """What is against emptying the node; None where it may be done."""
    outcome = preempt_nodes({at: frozenset(victims)}, needs, here)
    totals = outcome.totals()
    assert (totals.passed, len(totals.rejected)) in {(1, 0), (0, 1)}
    assert outcome.passed == ([at] if totals.passed else [])
    return next(iter(totals.rejected), None)


BUSY = ReasonCode.GPU_BUSY
IN_USE = using(PAIR, ("GPU-0", VICTIM), ("GPU-1", VICTIM))
CASES: dict[str, tuple[NodeView, Requirements, list[GpuRecord], ReasonCode | None]] = {
    "GPUs are free, something else is short": (PAIR, TWO, [], None),
    "the victims have what is needed": (
        PAIR,
        TWO,
        [held("GPU-0", VICTIM), held("GPU-1", VICTIM)],
        None,
    ),
    "one is free, the victims have the other": (PAIR, TWO, [held("GPU-1", VICTIM)], None),
    "the victims have too little": (
        PAIR,
        TWO,
        [held("GPU-0", VICTIM), held("GPU-1", STAYS)],
        BUSY,
    ),
    "the victims have nothing": (PAIR, ONE, [held("GPU-0", STAYS), held("GPU-1", STAYS)], BUSY),
    "another shares the GPU": (PAIR, TWO, [held("GPU-0", VICTIM, STAYS)], BUSY),
    "all that share are victims": (PAIR, TWO, [held("GPU-0", VICTIM, VICTIM)], None),
    "held for a pod that is not born": (PAIR, TWO, [held("GPU-0", None)], BUSY),
    "a victim that has ended already": (
        PAIR,
        TWO,
        [held("GPU-0", VICTIM, state=HolderState.RELEASING)],
        None,
    ),
    "its processes go with it": (
        IN_USE,
        TWO,
        [held("GPU-0", VICTIM), held("GPU-1", VICTIM)],
        None,
    ),
    "use without a reservation goes, too": (IN_USE, TWO, [], None),
    "another process stays": (using(PAIR, ("GPU-0", VICTIM), ("GPU-0", STAYS)), TWO, [], BUSY),
    "a process of no pod stays": (using(PAIR, ("GPU-0", None)), TWO, [], BUSY),
    "a part that is not shown any more": (PAIR, TWO, [held("MIG-a", VICTIM)], None),
    "such a part of another": (PAIR, TWO, [held("MIG-a", STAYS)], BUSY),
    "a part": (
        SPLIT,
        replace(ONE, selector=parse_selector("mig=true")),
        [held("MIG-a", VICTIM), held("MIG-b", STAYS)],
        None,
    ),
    "the other part": (
        SPLIT,
        replace(ONE, uuids=("MIG-b",)),
        [held("MIG-a", VICTIM), held("MIG-b", STAYS)],
        BUSY,
    ),
    "the named GPU": (PAIR, replace(ONE, uuids=("GPU-1",)), [held("GPU-1", VICTIM)], None),
    "another than the named GPU": (
        PAIR,
        replace(ONE, uuids=("GPU-0",)),
        [held("GPU-0", STAYS), held("GPU-1", VICTIM)],
        BUSY,
    ),
    "kubelet counts": (PLUGIN, PLUGIN_ONE, [held("GPU-0", STAYS, origin=Origin.KUBELET)], None),
    "claims of victims where kubelet gives": (PLUGIN, PLUGIN_ONE, [held("GPU-0", VICTIM)], None),
    "claims of others where kubelet gives": (
        PLUGIN,
        PLUGIN_ONE,
        [held("GPU-0", STAYS)],
        ReasonCode.NODE_MODE,
    ),
    "no GPU is needed": (PAIR, Requirements(managed=True), [held("GPU-0", STAYS)], None),
}


@pytest.mark.parametrize(("view", "needs", "records", "code"), CASES.values(), ids=CASES)
def test_a_node_may_be_emptied_where_that_helps(
    view: NodeView, needs: Requirements, records: list[GpuRecord], code: ReasonCode | None
) -> None:
    assert code_of(needs, where(view, records=records), VICTIM) is code


@pytest.mark.parametrize(("view", "needs", "records", "code"), CASES.values(), ids=CASES)
def test_it_is_what_filter_says_when_the_victims_are_gone(
    view: NodeView, needs: Requirements, records: list[GpuRecord], code: ReasonCode | None
) -> None:
    accepted = view.acceptance
    assert accepted is not None
    stay = [(x.gpu, x.pod_uid) for x in accepted.processes or () if x.pod_uid != VICTIM]
    left = [x for x in records if any(y.pod.uid != VICTIM for y in x.holders)]
    later = filter_nodes([NODE], needs, where(using(view, *stay), records=left))
    assert later.totals().rejected == ({} if code is None else {code: 1})


def reason(view: NodeView, needs: Requirements | RequirementsInvalid = ONE, **more: Any) -> Any:
    """What is against a node whose GPUs the victims have."""
    return code_of(needs, where(view, records=[held("GPU-0", VICTIM)], **more), VICTIM)


def test_a_node_that_is_refused_for_good_is_not_emptied() -> None:
    accepted = PAIR.acceptance
    assert reason(PAIR) is None
    asks = replace(ONE, hashes=frozenset({hash_of("b")}))
    assert reason(PAIR, asks) is ReasonCode.HASH_MISMATCH
    assert reason(PAIR, replace(ONE, hashes=frozenset({hash_of("a")}))) is None
    assert reason(PAIR, replace(ONE, attestation_class="c")) is ReasonCode.CLASS_UNKNOWN
    assert reason(PAIR, replace(ONE, min_level=Level.L2)) is ReasonCode.LEVEL_TOO_LOW
    assert reason(PAIR, PLUGIN_ONE) is ReasonCode.NODE_MODE
    elsewhere = replace(ONE, mapped=True, place=Place(OTHER, (0,)))
    assert reason(PAIR, elsewhere) is ReasonCode.MAP_ELSEWHERE
    assert reason(PAIR, RequirementsInvalid((Finding("k", "v", "e"),))) is ReasonCode.REQ_INVALID
    nothing = Policy(allowed_hashes=frozenset())
    assert reason(PAIR, policy=nothing) is ReasonCode.CLASS_NOT_ALLOWED
    big = replace(ONE, selector=parse_selector("memory>=100Gi"))
    assert reason(PAIR, big) is ReasonCode.GPU_NO_MATCH
    assert reason(node(NODE)) is ReasonCode.NODE_NO_EVIDENCE
    blocked = node(NODE, accepted, blocked=ReasonCode.INVENTORY_CHANGED)
    assert reason(blocked) in {ReasonCode.NODE_QUARANTINED, ReasonCode.NODE_REFUSED}
    late = where(PAIR, records=[held("GPU-0", VICTIM)])
    late = replace(late, now=replace(late.now, boottime_ns=late.now.boottime_ns + LEASE_NS))
    assert code_of(ONE, late, VICTIM) is ReasonCode.NODE_STALE


def test_a_node_that_nobody_knows_is_not_emptied() -> None:
    assert code_of(ONE, where(PAIR), VICTIM, at="new") is ReasonCode.NODE_NO_EVIDENCE


def test_use_that_could_not_be_read_or_that_kubelet_shows_stays() -> None:
    accepted = PAIR.acceptance
    assert accepted is not None
    given = (Allocation("team-a", VICTIM, "main", "nvidia.com/gpu", "GPU-0"),)
    by_kubelet = replace(PAIR, acceptance=replace(accepted, allocations=given))
    assert code_of(TWO, where(by_kubelet), VICTIM) is BUSY
    unread = replace(accepted, processes=None, processes_by_gpu={"GPU-0": 1})
    assert code_of(TWO, where(replace(PAIR, acceptance=unread)), VICTIM) is BUSY


def test_every_node_is_judged_by_its_own_victims() -> None:
    second = node(OTHER, acceptance(hash_of("a"), [gpu(0, "GPU-x")]))
    bad = node("bad", acceptance(hash_of("b"), [gpu(0, "GPU-y")]))
    asks = replace(ONE, hashes=frozenset({hash_of("a")}))
    records = [held("GPU-0", "u1"), held("GPU-1", "u1"), held("GPU-x", "u2", at=OTHER)]
    here = where(PAIR, second, bad, records=records)
    names = {"bad": frozenset({"u3"}), OTHER: frozenset({"u2"}), NODE: frozenset({"u1"})}
    assert preempt_nodes(names, asks, here).passed == [OTHER, NODE]
    swapped = {OTHER: frozenset({"u1"}), NODE: frozenset({"u2"})}
    assert preempt_nodes(swapped, asks, here).passed == []
    denied = preempt_nodes(names, asks, here, frozenset({OTHER}))
    assert denied.passed == [NODE]
    assert denied.totals().rejected == {
        ReasonCode.BINDING_DENIED_RECENTLY: 1,
        ReasonCode.HASH_MISMATCH: 1,
    }
    assert preempt_nodes({}, asks, here).passed == []


def test_a_shared_gpu_stays_with_those_that_are_left() -> None:
    parts = [
        replace(
            holder("GPU-0", pod=replace(pod_ref(uid), owner="owner-a")), reservation=f"v1.k.{uid}"
        )
        for uid in ("u1", "u2")
    ]
    shared = replace(record(*parts, gpu="GPU-0", share=SHARE), node=NODE)
    here = where(PAIR, records=[shared])
    assert code_of(TWO, here, "u1") is BUSY
    assert code_of(TWO, here, "u1", "u2") is None


def test_what_might_be_is_not_remembered_as_what_is() -> None:
    here = where(IN_USE, records=[held("GPU-0", VICTIM), held("GPU-1", VICTIM)])
    accepted = IN_USE.acceptance
    assert accepted is not None
    pool = here.memory.pool(NODE, accepted)
    for _ in range(2):
        assert preempt_nodes({NODE: frozenset({VICTIM})}, ONE, here).passed == [NODE]
        assert here.memory.pool(NODE, accepted) is pool
        assert filter_nodes([NODE] * 4, ONE, here).passed == []


def test_none_of_them() -> None:
    outcome = none_of([NODE, OTHER])
    assert (outcome.passed, outcome.reasons) == ([], {})
    totals = outcome.totals()
    assert (totals.passed, totals.rejected) == (0, {BUSY: 2})


# --- a pod that has a nominated node


def waits(
    *records: GpuRecord,
    view: NodeView = PAIR,
    needs: Requirements = TWO,
    at: str = NODE,
    leaving: tuple[str, ...] = (),
    denied: frozenset[str] = frozenset(),
) -> bool:
    here = where(view, records=records)
    return waits_for(at, needs, here, lambda pod: pod.uid in leaving, denied)


def test_a_pod_waits_for_what_its_victims_give_back() -> None:
    mine, others = held("GPU-0", VICTIM), held("GPU-1", STAYS)
    ended = held("GPU-0", VICTIM, state=HolderState.RELEASING)
    assert waits(ended)
    assert waits(mine, leaving=(VICTIM,))
    assert waits(mine, leaving=(VICTIM,), view=using(PAIR, ("GPU-0", VICTIM)))
    assert waits(mine, others, leaving=(VICTIM, STAYS))


def test_a_pod_waits_for_nothing_else() -> None:
    mine, others = held("GPU-0", VICTIM), held("GPU-1", STAYS)
    ended = held("GPU-0", VICTIM, state=HolderState.RELEASING)
    assert not waits()
    assert not waits(mine)
    assert not waits(ended, others)
    assert not waits(ended, needs=ONE), "it passes as it is: something else is short there"
    assert not waits(ended, needs=replace(TWO, hashes=frozenset({hash_of("b")})))
    assert not waits(ended, at=OTHER)
    assert not waits(held("GPU-0", None), leaving=("",))


def test_a_pod_waits_while_its_binding_was_denied_a_moment_ago() -> None:
    assert waits(denied=frozenset({NODE}))
    assert not waits(denied=frozenset({OTHER}))
