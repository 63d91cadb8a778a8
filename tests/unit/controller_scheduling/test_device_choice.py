"""Devices of one node against a pod, in the two modes that exist."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pytest

from controller.fleet.view import GpuView
from controller.placement.devices import DevicePool
from controller.placement.node_verdict import Judge
from controller.placement.pod import Place
from controller.placement.requirements import Requirements
from controller.placement.selector import parse_selector
from controller.placement.texts import Guarantee
from controller.policy import NodeMode, Policy
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import acceptance, gpu, mig_slice, node
from tests.builders.scenes import scene

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


def env(count: int = 1, **wish: object) -> Requirements:
    return Requirements(guarded=True, count=count, **wish)  # type: ignore[arg-type] # fields by name


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


def plugin(count: int = 1, resource: str = "nvidia.com/gpu", **wish: object) -> Requirements:
    return env(count, requests=((resource, count),), **wish)


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
