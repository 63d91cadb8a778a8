"""Pods that have devices without a record: what stands in whose way."""

from dataclasses import replace
from typing import Any

import pytest

from controller.fleet.view import Acceptance
from controller.ledger.occupancy import Holders
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.devices import DevicePool, taken_without_record, used_by_holders_alone
from controller.placement.node_verdict import Judge
from controller.placement.pod import Place
from controller.placement.requirements import Requirements
from controller.placement.selector import parse_selector
from controller.placement.snapshot import PlacementMemory, Scene, placement_policy
from controller.placement.texts import REFUSALS, WITHOUT_RECORD
from controller.placement.verbs import filter_nodes, prioritize_nodes
from controller.policy import NodeMode, Policy
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import acceptance, fleet, gpu, hash_of, mig_slice, node
from tests.builders.ledger import OTHER_POD, SHARE, holder, record
from tests.builders.scenes import scene

SPLIT = gpu(2, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")])
BUSY = REFUSALS[ReasonCode.GPU_BUSY]
NO_PROCESSES = Policy(processes_count_as_use=False)


def shown(
    *, used: dict[str, tuple[str | None, ...]] | None = None, given: tuple[str, ...] = ()
) -> Acceptance:
    """Two whole GPUs and one of two parts: `used` by UIDs, `given` to the pod train-0."""
    processes = tuple(GpuProcess(x, 7, uid) for x, uids in (used or {}).items() for uid in uids)
    return replace(
        acceptance(hash_of("a"), [gpu(0), gpu(1), SPLIT]),
        processes=processes,
        processes_by_gpu={x: len(uids) for x, uids in (used or {}).items()},
        allocations=tuple(Allocation("team-a", "train-0", "main", "r", x) for x in given),
    )


def held(*records: GpuRecord) -> Holders:
    return Holders(LedgerSnapshot.of(Entry(x, "1") for x in records).entries)


def whose(card: str, **more: Any) -> GpuRecord:
    """Held for train-0, whose UID is uid-0."""
    return record(holder(card, **more), gpu=card)


def taken(
    found: Acceptance, holders: Holders | None = None, busy: tuple[str, ...] = ()
) -> set[str]:
    return set(taken_without_record(DevicePool(found), holders or Holders(), busy))


def test_what_a_stranger_has_is_taken() -> None:
    assert taken(shown()) == set()
    assert taken(shown(given=("GPU-0",))) == {"GPU-0"}
    assert taken(shown(given=("GPU-1::3",))) == {"GPU-1"}
    assert taken(shown(used={"GPU-1": ("uid-0",)})) == {"GPU-1"}
    assert taken(shown(given=("mlx5_0", "GPU-elsewhere"))) == set()


def test_processes_of_no_pod_are_for_the_policy_to_say() -> None:
    assert taken(shown(used={"GPU-1": (None,)})) == set()
    assert taken(shown(used={"GPU-1": (None, "uid-0")})) == {"GPU-1"}


def test_a_record_for_the_pod_explains_its_process() -> None:
    assert taken(shown(used={"GPU-0": ("uid-0",)}), held(whose("GPU-0"))) == set()
    assert taken(shown(used={"GPU-0": ("uid-1",)}), held(whose("GPU-0"))) == {"GPU-0"}
    assert taken(shown(given=("GPU-0",)), held(whose("GPU-0"))) == {"GPU-0"}


def test_what_others_hold_is_not_asked_about() -> None:
    assert taken(shown(given=("GPU-0", "GPU-1")), busy=("GPU-0",)) == {"GPU-1"}


def test_of_a_share_group_each_is_explained() -> None:
    group = held(replace(whose("GPU-0"), share=SHARE))
    assert taken(shown(used={"GPU-0": ("uid-0",)}), group) == set()
    assert taken(shown(used={"GPU-0": ("uid-0", "uid-9")}), group) == {"GPU-0"}


def test_a_part_is_taken_by_itself_and_with_the_whole() -> None:
    assert taken(shown(given=("MIG-a",))) == {"MIG-a"}
    assert taken(shown(used={"MIG-a": ("uid-0",)})) == {"MIG-a"}
    assert taken(shown(given=("GPU-2",))) == {"MIG-a", "MIG-b"}
    assert taken(shown(used={"GPU-2": ("uid-0",)})) == {"MIG-a", "MIG-b"}


def test_a_process_on_the_whole_is_explained_by_a_part() -> None:
    on_whole = shown(used={"GPU-2": ("uid-0",)})
    assert taken(on_whole, held(whose("MIG-b")), busy=("MIG-b",)) == set()
    assert taken(on_whole, held(whose("MIG-b", pod=OTHER_POD)), busy=("MIG-b",)) == {
        "MIG-a",
        "MIG-b",
    }


def test_while_a_pod_has_a_part_that_is_not_shown_no_gpu_is_free_whole() -> None:
    gone = shown(given=("MIG-gone",))
    assert taken(gone) == {"GPU-0", "GPU-1"}
    assert taken(gone, busy=("MIG-gone",)) == set()  # the ledger's to say, as of any part


def own(found: Acceptance, holders: Holders) -> set[str]:
    mine = ("GPU-0", "GPU-gone", "MIG-a")
    return set(used_by_holders_alone(DevicePool(found), holders, mine))


def test_processes_of_who_holds_it_alone() -> None:
    mine = held(whose("GPU-0"), whose("MIG-a"))
    assert own(shown(used={"GPU-0": ("uid-0", "uid-0")}), mine) == {"GPU-0"}
    assert own(shown(used={"GPU-0": ("uid-0", None)}), mine) == set()
    assert own(shown(used={"GPU-0": ("uid-0", "uid-9")}), mine) == set()
    assert own(shown(used={"GPU-0": ("uid-0",)}), Holders()) == set()
    assert own(shown(used={"GPU-1": ("uid-0",)}), held(whose("GPU-1"))) == set()
    assert own(shown(used={"GPU-2": ("uid-0",)}), mine) == {"MIG-a"}
    counted_only = replace(shown(), processes=None, processes_by_gpu={"GPU-0": 1})
    assert own(counted_only, mine) == set()


def where(
    found: Acceptance,
    *records: GpuRecord,
    policy: Policy | None = None,
    busy: tuple[str, ...] = (),
    mode: NodeMode = NodeMode.ENV,
    own: tuple[str, ...] = (),
) -> Scene:
    made = scene(node("n", found, mode=mode), policy=policy or Policy(), busy=busy)
    return replace(made, holders=held(*records), own=frozenset(own))


WHOLE = Requirements(guarded=True, count=1, selector=parse_selector("mig=false"))


def asks(count: int = 1, **wish: Any) -> Requirements:
    return Requirements(guarded=True, count=count, **wish)


@pytest.mark.parametrize("policy", [Policy(), NO_PROCESSES])
@pytest.mark.parametrize(
    "found", [shown(given=("GPU-0",)), shown(used={"GPU-0": ("uid-0",)})], ids=["given", "used"]
)
def test_another_one_is_chosen_and_too_few_say_why(found: Acceptance, policy: Policy) -> None:
    here = where(found, policy=policy)
    judge = Judge(asks(), here)
    assert judge.refusal("n") is None
    assert [x.uuid for x in judge.assigned("n")] == ["MIG-a"]
    assert [x.uuid for x in Judge(WHOLE, here).assigned("n")] == ["GPU-1"]
    offer = judge.offer("n")
    assert offer is not None
    assert [x.uuid for x in offer.free] == ["GPU-1", "MIG-a", "MIG-b"]
    assert filter_nodes(["n"], asks(2), here).reasons == {"n": WITHOUT_RECORD}
    assert prioritize_nodes(["n"], asks(2), here) == {"n": 0}


@pytest.mark.parametrize(
    "named", [{"uuids": ("GPU-0",)}, {"mapped": True, "place": Place("n", (0,))}]
)
def test_who_names_it_is_told_why(named: dict[str, Any]) -> None:
    for policy in (Policy(), NO_PROCESSES):
        for found in (shown(given=("GPU-0",)), shown(used={"GPU-0": ("uid-0",)})):
            here = where(found, policy=policy)
            assert Judge(asks(**named), here).refusal("n") == WITHOUT_RECORD
    assert Judge(asks(**named), where(shown(given=("GPU-1",)))).refusal("n") is None


def test_what_would_be_too_few_anyway_is_said_as_ever() -> None:
    here = where(shown(given=("GPU-0",)), busy=("GPU-1",))
    assert Judge(asks(2), here).refusal("n") == BUSY
    by_nobody = where(shown(used={"GPU-0": (None,)}))
    assert Judge(asks(2), by_nobody).refusal("n") == BUSY
    assert Judge(asks(2), where(shown(used={"GPU-0": (None, "uid-0")}))).refusal("n") == (
        WITHOUT_RECORD
    )


@pytest.mark.parametrize("policy", [Policy(), NO_PROCESSES])
def test_a_pod_is_not_in_the_way_of_what_it_holds_itself(policy: Policy) -> None:
    """Its attempt is not busy to it; that it runs already is no reason to move it."""
    found = shown(used={"GPU-0": ("uid-0",)})
    attempt = whose("GPU-0", state=HolderState.PROPOSED)
    here = where(found, attempt, policy=policy, own=("GPU-0",))
    assert [x.uuid for x in Judge(asks(), here).assigned("n", ["GPU-0"])] == ["GPU-0"]
    assert Judge(asks(uuids=("GPU-0",)), here).refusal("n") is None
    strange = shown(used={"GPU-0": ("uid-0", "uid-9")})
    here = where(strange, attempt, policy=policy, own=("GPU-0",))
    assert Judge(asks(uuids=("GPU-0",)), here).refusal("n") == WITHOUT_RECORD


def test_where_kubelet_chooses_it_counts_for_the_score_alone() -> None:
    pod = asks(requests=(("nvidia.com/gpu", 1),))
    crowded = node("crowded", shown(given=("GPU-0", "GPU-1")), mode=NodeMode.PLUGIN)
    empty = node("empty", shown(), mode=NodeMode.PLUGIN)
    here = scene(crowded, empty)
    assert filter_nodes(["crowded", "empty"], pod, here).passed == ["crowded", "empty"]
    offers = [Judge(pod, here).offer(x) for x in ("crowded", "empty")]
    assert [len(x.free) for x in offers if x is not None] == [2, 4]


def test_an_answer_does_not_outlive_who_holds_it() -> None:
    """A GPU that stays held passes to other pods: what it explains is others' use."""
    policy, memory = placement_policy(NO_PROCESSES), PlacementMemory()
    snapshot = fleet(node("n", shown(used={"GPU-2": ("uid-0",)})))
    needs = asks(uuids=("MIG-a",))
    for edition, pod in enumerate([OTHER_POD, None, OTHER_POD]):
        part = whose("MIG-b") if pod is None else whose("MIG-b", pod=pod)
        made = scene(snapshot=snapshot, policy=policy, memory=memory, busy=("MIG-b",))
        here = replace(made, holders=replace(held(part), edition=edition))
        passed = filter_nodes(["n"] * 4, needs, here).passed
        assert passed == ([] if pod is not None else ["n"] * 4)


def test_what_was_read_of_the_same_accounts_is_not_read_again() -> None:
    memory, first = PlacementMemory(), shown(given=("GPU-0",))
    before = memory.pool("n", first).pod_uses
    again = replace(first, challenge_issued_ns=first.challenge_issued_ns + 1)
    assert memory.pool("n", again).pod_uses is before
    for changed in (
        replace(again, allocations=()),
        replace(again, processes=(GpuProcess("GPU-1", 7, "uid-0"),)),
        replace(again, gpus=again.gpus[1:]),
    ):
        anew = memory.pool("n", changed).pod_uses
        assert anew == DevicePool(changed).pod_uses
        assert anew is not before
        assert memory.pool("n", again).pod_uses == before
