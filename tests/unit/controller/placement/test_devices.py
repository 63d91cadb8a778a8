from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from controller.fleet.view import Acceptance, GpuView
from controller.ledger.occupancy import Holders
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.devices import (
    DevicePool,
    is_required,
    taken_without_record,
    used_by_holders_alone,
)
from controller.placement.filter_and_score import filter_nodes, prioritize_nodes
from controller.placement.gpu_map import Place
from controller.placement.node_verdict import Judge
from controller.placement.refusals import REFUSALS, WITHOUT_RECORD
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.selector import compile_labels
from controller.placement.snapshot import Scene, placement_policy
from controller.placement.verdict_cache import PlacementMemory
from controller.policy import NodeMode, Policy
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.policy.selector import parse_selector
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import acceptance, fleet, gpu, hash_of, mig_slice, node
from tests.builders.ledger import OTHER_POD, SHARE, holder, record
from tests.builders.scenes import scene

# --- Devices of one node against a pod, in the two modes that exist

NO_MATCH, BUSY, LOST = ReasonCode.GPU_NO_MATCH, ReasonCode.GPU_BUSY, ReasonCode.GPU_LOST
SPLIT = gpu(2, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b", "2g.20gb", 19968)])


def verdict(
    gpus: Iterable[GpuView],
    needs: Requirements,
    *,
    mode: NodeMode = NodeMode.ENV,
    busy: tuple[str, ...] = (),
    processes: Mapping[str, int] = MappingProxyType({}),
    policy: Policy | None = None,
) -> ReasonCode | None:
    view = node("n", acceptance(gpus=gpus, processes=processes), mode=mode)
    refusal = Judge(needs, scene(view, busy=busy, policy=policy or Policy())).refusal("n")
    return None if refusal is None else refusal.code


def env(count: int = 1, **requirement: object) -> Requirements:
    return Requirements(managed=True, count=count, **requirement)  # type: ignore[arg-type] # fields by name


def at(*devices: int | str) -> Requirements:
    return env(len(devices), mapped=True, place=Place("n", devices))


def test_enough_free_devices() -> None:
    pair = [gpu(0), gpu(1)]
    assert verdict(pair, env(2)) is None
    assert verdict(pair, env(3)) is NO_MATCH
    assert verdict([], env(1)) is NO_MATCH
    assert verdict(pair, env(2), busy=("GPU-1",)) is BUSY
    assert verdict(pair, env(1), busy=("GPU-1",)) is None
    assert verdict(pair, env(2), processes={"GPU-0": 1}) is BUSY
    assert verdict(pair, env(1), processes={"GPU-0": 1}) is None
    assert verdict(pair, env(2), processes={"GPU-0": 0}) is None


def test_policy_may_leave_processes_out() -> None:
    loose = Policy(processes_count_as_use=False)
    assert verdict([gpu(0)], env(1), processes={"GPU-0": 1}, policy=loose) is None
    assert verdict([gpu(0)], at(0), processes={"GPU-0": 1}, policy=loose) is None
    assert verdict([gpu(0)], at(0), busy=("GPU-0",), policy=loose) is BUSY


@pytest.mark.parametrize("broken", [gpu(1, lost=True), gpu(1, unhealthy="xid 79")])
def test_lost_and_unhealthy_gpus_are_never_given(broken: GpuView) -> None:
    assert verdict([gpu(0), broken], env(1)) is None
    assert verdict([gpu(0), broken], env(2)) is LOST
    assert verdict([gpu(0), broken], at(1)) is LOST
    assert verdict([gpu(0), broken], env(uuids=("GPU-1",))) is LOST
    assert verdict([gpu(0), broken], at(0)) is None


def test_a_lost_gpu_that_would_not_match_is_not_the_reason() -> None:
    needs = env(1, selector=parse_selector("memory>=100Gi"))
    assert verdict([gpu(0), gpu(1, lost=True)], needs) is NO_MATCH


def test_selector_and_labels_narrow() -> None:
    mixed = [gpu(0), gpu(1, product="NVIDIA A100", memory_mib=40960)]
    big = env(1, selector=parse_selector("memory>=79Gi"))
    assert verdict(mixed, big) is None
    assert verdict(mixed, big, busy=("GPU-0",)) is BUSY
    assert verdict(mixed, env(2, selector=parse_selector("memory>=79Gi"))) is NO_MATCH
    named = env(1, labels=frozenset({"model-nvidia-a100", "small"}))
    policy = Policy(labels={"small": "memory<=40Gi"})
    assert verdict(mixed, named, policy=policy) is None
    assert verdict(mixed[:1], named, policy=policy) is NO_MATCH


def test_named_devices() -> None:
    gpus = [gpu(0), gpu(1), SPLIT]
    assert verdict(gpus, at(0, "GPU-1")) is None
    assert verdict(gpus, at(0, "GPU-0")) is NO_MATCH
    assert verdict(gpus, at(7)) is NO_MATCH
    assert verdict(gpus, at("GPU-elsewhere")) is NO_MATCH
    assert verdict(gpus, at(1), busy=("GPU-1",)) is BUSY
    assert verdict(gpus, at(1), processes={"GPU-1": 3}) is BUSY
    assert verdict(gpus, env(uuids=("GPU-1",))) is None
    assert verdict(gpus, env(uuids=("GPU-1",), selector=parse_selector("mig=true"))) is NO_MATCH


def test_map_and_uuids_must_mean_the_same_devices() -> None:
    def both(uuid: str) -> Requirements:
        return env(1, mapped=True, place=Place("n", (1,)), uuids=(uuid,))

    assert verdict([gpu(0), gpu(1)], both("GPU-1")) is None
    assert verdict([gpu(0), gpu(1)], both("GPU-0")) is NO_MATCH


def test_an_index_names_a_whole_gpu_and_never_one_that_is_split() -> None:
    assert verdict([SPLIT], at(2)) is NO_MATCH
    assert verdict([SPLIT], at("GPU-2")) is NO_MATCH
    assert verdict([SPLIT], at("MIG-a")) is None


def test_indices_stay_when_another_gpu_is_lost() -> None:
    gpus = [gpu(0), gpu(1, lost=True), gpu(2, "GPU-c")]
    assert verdict(gpus, env(1, mapped=True, place=Place("n", (2,)), uuids=("GPU-c",))) is None


def test_mig_devices_are_devices_of_their_own() -> None:
    assert verdict([SPLIT], env(1, selector=parse_selector("mig-profile=1g.10gb"))) is None
    assert verdict([SPLIT], env(1, selector=parse_selector("memory>=40Gi"))) is NO_MATCH
    assert verdict([SPLIT], env(1)) is None
    assert verdict([SPLIT], env(1), busy=("MIG-a",)) is None
    assert verdict([SPLIT], env(1), busy=("GPU-2",)) is BUSY  # held whole, before it was split
    assert verdict([SPLIT], at("MIG-a"), busy=("GPU-2",)) is BUSY
    assert verdict([gpu(0, mig=True)], env(1)) is NO_MATCH
    assert (
        verdict([gpu(0, mig=True, lost=True, mig_devices=[mig_slice("MIG-x")])], at("MIG-x"))
        is LOST
    )


def test_several_devices_are_whole_ones() -> None:
    assert verdict([SPLIT], env(2)) is NO_MATCH
    assert verdict([SPLIT, gpu(0)], env(2)) is NO_MATCH
    assert verdict([SPLIT, gpu(0), gpu(1)], env(2)) is None


def test_a_process_on_the_parent_counts_for_each_part() -> None:
    profile = env(1, selector=parse_selector("mig=true"))
    assert verdict([SPLIT], profile, processes={"GPU-2": 1}) is BUSY
    assert verdict([SPLIT], profile, processes={"MIG-a": 1}) is None
    assert verdict([SPLIT], at("MIG-a"), processes={"MIG-a": 1}) is BUSY


def plugin(count: int = 1, resource: str = "nvidia.com/gpu", **requirement: object) -> Requirements:
    return env(count, requests=((resource, count),), **requirement)


def on_plugin(
    gpus: Iterable[GpuView],
    needs: Requirements,
    busy: tuple[str, ...] = (),
    processes: Mapping[str, int] = MappingProxyType({}),
) -> ReasonCode | None:
    return verdict(gpus, needs, mode=NodeMode.PLUGIN, busy=busy, processes=processes)


MIXED = [gpu(0), gpu(1, product="NVIDIA A100", memory_mib=40960)]
BIG = parse_selector("memory>=79Gi")


def test_kubelet_may_choose_among_equally_good_devices_only() -> None:
    assert on_plugin([gpu(0), gpu(1)], plugin(selector=BIG)) is None
    assert on_plugin(MIXED, plugin(selector=BIG)) is ReasonCode.EXACT_UNAVAILABLE
    assert on_plugin(MIXED[1:], plugin(selector=BIG)) is NO_MATCH
    assert on_plugin(MIXED, plugin(selector=BIG, accepts=Guarantee.SET)) is (
        ReasonCode.EXACT_UNAVAILABLE
    )
    assert on_plugin(MIXED, plugin(selector=BIG, accepts=Guarantee.NODE)) is None
    assert on_plugin(MIXED, plugin(2, selector=BIG, accepts=Guarantee.NODE)) is NO_MATCH


def test_scheduler_and_kubelet_count_on_plugin_nodes() -> None:
    assert on_plugin([gpu(0)], plugin(), busy=("GPU-0",), processes={"GPU-0": 1}) is None
    assert on_plugin([gpu(0)], plugin(2)) is NO_MATCH
    assert on_plugin([gpu(0), gpu(1, lost=True)], plugin(2)) is LOST


def test_named_devices_need_a_lesser_guarantee_on_plugin_nodes() -> None:
    pair = [gpu(0), gpu(1)]
    one, both = ("GPU-0",), ("GPU-0", "GPU-1")
    assert on_plugin(pair, plugin(uuids=one)) is ReasonCode.EXACT_UNAVAILABLE
    assert on_plugin(pair, plugin(mapped=True, place=Place("n", (0,)))) is (
        ReasonCode.EXACT_UNAVAILABLE
    )
    assert on_plugin(pair, plugin(uuids=one, accepts=Guarantee.SET)) is ReasonCode.EXACT_UNAVAILABLE
    assert on_plugin(pair, plugin(2, uuids=both, accepts=Guarantee.SET)) is None
    assert on_plugin(pair, plugin(uuids=one, accepts=Guarantee.NODE)) is None
    assert on_plugin(pair, plugin(uuids=("GPU-9",), accepts=Guarantee.NODE)) is NO_MATCH


def test_a_card_that_answers_but_is_unhealthy_could_be_chosen() -> None:
    gpus = [gpu(0), gpu(1, unhealthy="xid 48")]
    assert on_plugin(gpus, plugin()) is LOST
    assert on_plugin(gpus, plugin(accepts=Guarantee.NODE)) is None
    assert on_plugin([gpu(0), gpu(1, lost=True)], plugin()) is None


def test_what_a_resource_can_mean() -> None:
    part = mig_slice("MIG-me", "1g.10gb+me")
    pool = DevicePool(acceptance(gpus=[gpu(0), SPLIT, gpu(3, mig=True, mig_devices=[part])]))

    def uuids(resource: str) -> list[str]:
        return [device.uuid for device in pool.choosable(resource)]

    assert uuids("nvidia.com/gpu") == ["GPU-0"]
    assert uuids("nvidia.com/mig-1g.10gb") == ["MIG-a"]
    assert uuids("nvidia.com/mig-1g.10gb.me") == ["MIG-me"]
    assert uuids("nvidia.com/mig-7g.80gb") == []
    single = DevicePool(acceptance(gpus=[SPLIT]))
    assert [device.uuid for device in single.choosable("nvidia.com/gpu")] == ["MIG-a", "MIG-b"]


def test_a_pool_answers_many_different_questions() -> None:
    view = node("n", acceptance(gpus=[gpu(0)]))
    where = scene(view)
    for size in range(40):
        needs = env(1, selector=parse_selector(f"memory>={size}Gi"))
        assert Judge(needs, where).refusal("n") is None


# --- Pods that have devices without a record: what stands in whose way

SPLIT_EVENLY = gpu(2, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")])
BUSY_TEXT = REFUSALS[ReasonCode.GPU_BUSY]
NO_PROCESSES = Policy(processes_count_as_use=False)


def shown(
    *, used: dict[str, tuple[str | None, ...]] | None = None, given: tuple[str, ...] = ()
) -> Acceptance:
    """Two whole GPUs and one of two parts: `used` by UIDs, `given` to the pod train-0."""
    processes = tuple(GpuProcess(x, 7, uid) for x, uids in (used or {}).items() for uid in uids)
    return replace(
        acceptance(hash_of("a"), [gpu(0), gpu(1), SPLIT_EVENLY]),
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


def test_a_gpu_in_unreserved_use_is_taken() -> None:
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


WHOLE = Requirements(managed=True, count=1, selector=parse_selector("mig=false"))


def asks(count: int = 1, **requirement: Any) -> Requirements:
    return Requirements(managed=True, count=count, **requirement)


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
def test_who_names_it_is_reported_why(named: dict[str, Any]) -> None:
    for policy in (Policy(), NO_PROCESSES):
        for found in (shown(given=("GPU-0",)), shown(used={"GPU-0": ("uid-0",)})):
            here = where(found, policy=policy)
            assert Judge(asks(**named), here).refusal("n") == WITHOUT_RECORD
    assert Judge(asks(**named), where(shown(given=("GPU-1",)))).refusal("n") is None


def test_what_would_be_too_few_anyway_is_said_as_ever() -> None:
    here = where(shown(given=("GPU-0",)), busy=("GPU-1",))
    assert Judge(asks(2), here).refusal("n") == BUSY_TEXT
    by_nobody = where(shown(used={"GPU-0": (None,)}))
    assert Judge(asks(2), by_nobody).refusal("n") == BUSY_TEXT
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
        made = memory.pool("n", changed).pod_uses
        assert made == DevicePool(changed).pod_uses
        assert made is not before
        assert memory.pool("n", again).pod_uses == before


# --- Which devices a pod gets on a node that it passes


def assigned(
    gpus: Iterable[GpuView],
    count: int = 1,
    *,
    busy: tuple[str, ...] = (),
    preferred: tuple[str, ...] = (),
    **requirement: object,
) -> list[str]:
    needs = Requirements(managed=True, count=count, **requirement)  # type: ignore[arg-type] # fields by name
    view = node("n", acceptance(gpus=gpus), mode=NodeMode.ENV)
    judge = Judge(needs, scene(view, busy=busy))
    return [device.uuid for device in judge.assigned("n", preferred)]


def island(*indices: int) -> list[GpuView]:
    """GPUs behind one switch."""
    return [gpu(index, peers=[f"switch-{indices[0]}"]) for index in indices]


def test_the_first_free_ones() -> None:
    gpus = [gpu(index) for index in range(4)]
    assert assigned(gpus) == ["GPU-0"]
    assert assigned(gpus, busy=("GPU-0", "GPU-2")) == ["GPU-1"]
    assert assigned(gpus, 2, busy=("GPU-0",)) == ["GPU-1", "GPU-2"]
    assert assigned(gpus, 3, busy=("GPU-0", "GPU-1")) == []


@pytest.mark.parametrize(
    ("count", "busy", "expected"),
    [
        (1, (), ["GPU-8"]),
        (2, (), ["GPU-0", "GPU-1"]),
        (2, ("GPU-1", "GPU-4", "GPU-5"), ["GPU-6", "GPU-7"]),
        (4, (), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        (5, ("GPU-0",), ["GPU-1", "GPU-4", "GPU-5", "GPU-6", "GPU-7"]),
        (9, (), [f"GPU-{index}" for index in range(9)]),
    ],
)
def test_islands_are_kept_whole(count: int, busy: tuple[str, ...], expected: list[str]) -> None:
    gpus = [*island(0, 1, 2, 3), *island(4, 5, 6, 7), gpu(8)]
    assert assigned(gpus, count, busy=busy) == expected


def test_named_devices_in_the_pod_s_order() -> None:
    gpus = [gpu(index) for index in range(4)]
    assert assigned(gpus, 2, uuids=("GPU-3", "GPU-1")) == ["GPU-3", "GPU-1"]
    assert assigned(gpus, 2, mapped=True, place=Place("n", (2, "GPU-0"))) == ["GPU-2", "GPU-0"]
    assert assigned(gpus, 1, mapped=True, place=Place("n", (7,))) == []


def test_a_slice_before_a_whole_gpu() -> None:
    split = gpu(1, mig=True, mig_devices=[mig_slice("MIG-b", "2g.20gb", 19968), mig_slice("MIG-a")])
    assert assigned([gpu(0), split]) == ["MIG-a"]
    assert assigned([gpu(0), split], selector=parse_selector("mig=false")) == ["GPU-0"]


def test_what_was_asked_for_before() -> None:
    gpus = [gpu(index) for index in range(4)]
    assert assigned(gpus, preferred=("GPU-2",)) == ["GPU-2"]
    assert assigned(gpus, busy=("GPU-2",), preferred=("GPU-2",)) == ["GPU-0"]
    assert assigned(gpus, 2, preferred=("GPU-2",)) == ["GPU-0", "GPU-1"]
    assert assigned(gpus, 2, preferred=("GPU-2", "GPU-3")) == ["GPU-2", "GPU-3"]
    assert assigned(gpus, 1, preferred=("GPU-2", "GPU-3")) == ["GPU-0"]


def test_nothing_on_a_node_without_evidence() -> None:
    needs = Requirements(managed=True, count=1)
    assert Judge(needs, scene(node("n"))).assigned("n") == ()
    assert Judge(needs, scene()).assigned("n") == ()


# --- Whether what kubelet gave is what the pod has asked for

LABELS = compile_labels({"big": "memory>=40Gi"})
POOL = DevicePool(
    acceptance(
        hash_of("a"),
        [
            gpu(0, "GPU-big"),
            gpu(1, "GPU-small", memory_mib=16_000),
            gpu(2, "GPU-lost", lost=True),
            gpu(3, "GPU-mig", mig=True, mig_devices=[mig_slice("MIG-1")]),
        ],
    )
)
ANY = Requirements(managed=True, count=1)
BIG_GPU = replace(ANY, selector=parse_selector("memory>=40Gi"))


@pytest.mark.parametrize(
    ("needs", "uuid", "is_fine"),
    [
        (ANY, "GPU-big", True),
        (ANY, "MIG-1", True),
        (ANY, "GPU-of-nobody", False),
        (ANY, "GPU-mig", False),
        (BIG_GPU, "GPU-big", True),
        (BIG_GPU, "GPU-small", False),
        (BIG_GPU, "GPU-lost", True),
        (replace(BIG_GPU, accepts=Guarantee.SET), "GPU-small", False),
        (replace(BIG_GPU, accepts=Guarantee.NODE), "GPU-small", True),
        (replace(ANY, labels=frozenset({"big"})), "GPU-big", True),
        (replace(ANY, labels=frozenset({"big"})), "GPU-small", False),
        (replace(ANY, uuids=("GPU-big",)), "GPU-big", True),
        (replace(ANY, uuids=("GPU-big",)), "GPU-small", False),
        (replace(ANY, uuids=("GPU-gone",)), "GPU-big", False),
        (replace(ANY, mapped=True, place=Place("gpu-1", (0,))), "GPU-big", True),
        (replace(ANY, mapped=True, place=Place("gpu-1", (0,))), "GPU-small", False),
        (RequirementsInvalid(()), "GPU-big", False),
    ],
)
def test_what_the_requirement_admits(
    needs: Requirements | RequirementsInvalid, uuid: str, is_fine: bool
) -> None:
    assert is_required(needs, POOL, uuid, LABELS) == is_fine
