"""Ledger, kubelet and driver compared, row by row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.binding.request import BoundPod
from controller.binding.use import UseCase, UseFaultKind, use_faults
from controller.ledger.record import GpuRecord, Holder, HolderState, Origin
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.requirements import Requirements, RequirementsInvalid
from controller.policy import NodeMode
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice
from tests.builders.ledger import CALL
from tests.builders.node_use import (
    GUARDED,
    NODE,
    SomeBoundPods,
    bound,
    device,
    ref,
    use_report,
)

K = UseFaultKind


def held(
    gpu: str = "GPU-a",
    name: str = "train-0",
    *,
    origin: Origin = Origin.SETTLEMENT,
    state: HolderState = HolderState.CONFIRMED,
    uid: str = "",
) -> GpuRecord:
    made = Holder(f"v1.k.{uid or name}", ref(name, uid), (gpu,), origin, CALL, state, adopted=True)
    return GpuRecord(gpu, NODE, (made,))


def both(one: GpuRecord, other: GpuRecord) -> GpuRecord:
    return one.with_holder(other.holders[0])


def faults(
    *devices: Any,
    users: dict[str, set[str | None]] | None = None,
    pods: tuple[BoundPod, ...] = (bound(),),
    records: tuple[GpuRecord, ...] = (),
    mode: NodeMode = NodeMode.PLUGIN,
    fits: Callable[[BoundPod, str], bool] = lambda _pod, _gpu: True,
    **changes: Any,
) -> set[tuple[str, str, str | None]]:
    """Kind, GPU and pod of each."""
    report = replace(use_report(*devices, users=users), **changes)
    ledger = LedgerSnapshot.of(Entry(x, "1") for x in records)
    card = gpu(1, "GPU-b", mig=True, mig_devices=[mig_slice("MIG-1")])
    accepted = acceptance(hash_of("a"), [gpu(0, "GPU-a"), card])
    case = UseCase(NODE, mode, accepted, report, ledger, SomeBoundPods([*pods]), fits)
    found = use_faults(case)
    assert {x.node for x in found} <= {NODE}
    return {(x.kind.value, x.gpu, x.pod.name if x.pod else x.owner or None) for x in found}


def test_what_is_settled_and_used_agrees() -> None:
    assert faults(device(), users={"GPU-a": {"uid-train-0"}}, records=(held(),)) == set()


def test_what_kubelet_gave_and_nothing_explains_is_off_the_books() -> None:
    assert faults(device()) == {(K.OFF_BOOK, "GPU-a", "train-0")}
    plain = (bound(needs=None),)
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0"}}
    assert faults(device(), users=used, pods=plain) == {(K.OFF_BOOK, "GPU-a", "train-0")}
    assert faults(device("gone"), pods=()) == {(K.OFF_BOOK, "GPU-a", "gone")}
    elsewhere = (bound(node="gpu-2"),)
    assert faults(device(), pods=elsewhere) == {(K.OFF_BOOK, "GPU-a", "train-0")}


def test_a_device_that_is_no_gpu_is_none_of_our_business() -> None:
    assert faults(device(gpu="pool/nic-0")) == set()


def test_a_pod_that_is_being_released_still_explains_it() -> None:
    ending = held(state=HolderState.RELEASING)
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0"}}
    assert faults(device(), users=used, pods=(), records=(ending,)) == set()


def test_a_gpu_that_the_pod_has_not_asked_for() -> None:
    def misfits(pod: BoundPod, gpu: str) -> bool:
        return (pod.pod.name, gpu) != ("train-0", "GPU-a")

    shown = faults(device(), records=(held(),), fits=misfits)
    assert shown == {(K.UNFIT_GPU, "GPU-a", "train-0")}
    assert faults(device(), records=(held(),), pods=(bound(needs=None),), fits=misfits) == set()


def test_a_gpu_that_another_pod_holds() -> None:
    pods = (bound(), bound("train-1"))
    two = both(held(name="train-1"), held())
    one_gpu = faults(device(), records=(two,), pods=pods)
    assert one_gpu == {(K.TAKEN_GPU, "GPU-a", "train-0")}
    slices = (device(gpu="GPU-a::0"), device("train-1", "GPU-a::1"))
    assert faults(*slices, records=(two,), pods=pods) == set()
    ending = both(held(name="train-1", state=HolderState.RELEASING), held())
    assert faults(device(), records=(ending,), pods=pods) == set()


def test_a_reserved_pod_with_another_gpu() -> None:
    reserved = held("GPU-b", origin=Origin.GATE)
    given = faults(device(), records=(reserved,), mode=NodeMode.ENV)
    assert given == {(K.OTHER_GPU, "GPU-a", "train-0")}
    used = faults(users={"GPU-a": {"uid-train-0"}}, records=(reserved,), mode=NodeMode.ENV)
    assert used == {(K.OTHER_GPU, "GPU-a", "train-0")}


def test_a_settled_pod_that_uses_more_than_it_was_given() -> None:
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0"}, "GPU-c": {"uid-train-0"}}
    found = faults(device(), users=used, records=(held(),))
    assert found == {(K.OTHER_GPU, "GPU-c", "train-0")}


def test_what_is_given_and_not_settled_yet_is_never_a_fault_of_its_pod() -> None:
    used: dict[str, set[str | None]] = {"GPU-c": {"uid-train-0"}}
    shown = faults(device(), device(gpu="GPU-c"), users=used, records=(held(),))
    assert shown == {(K.OFF_BOOK, "GPU-c", "train-0")}


def test_without_kubelet_s_word_no_pod_of_a_plugin_node_is_accused() -> None:
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0", None}}
    assert faults(users=used, given=None) == {(K.OFF_BOOK, "GPU-a", None)}
    assert (K.OFF_BOOK, "GPU-a", "train-0") in faults(users=used, given=None, mode=NodeMode.ENV)


def test_processes_of_unknown_pods_and_of_none() -> None:
    found = faults(users={"GPU-a": {"uid-x", None}}, pods=())
    assert found == {(K.OFF_BOOK, "GPU-a", "uid-x"), (K.OFF_BOOK, "GPU-a", None)}


def test_unreadable_processes_show_nothing() -> None:
    assert faults(users={}, given=frozenset()) == set()
    report = replace(use_report(), users=None)
    assert faults(users=None, given=report.given) == set()


def test_a_process_of_a_mig_device_shows_on_the_whole_gpu() -> None:
    used: dict[str, set[str | None]] = {"GPU-b": {"uid-train-0"}}
    assert faults(users=used, records=(held("MIG-1"),)) == set()
    assert faults(users=used, records=(held("GPU-a"),)) == {(K.OTHER_GPU, "GPU-b", "train-0")}
    given = device(gpu="MIG-1")
    assert faults(given, users=used) == {(K.OFF_BOOK, "MIG-1", "train-0")}


@pytest.mark.parametrize(
    ("pod", "records", "mode", "is_told"),
    [
        (bound(), (), NodeMode.ENV, True),
        (bound(needs=RequirementsInvalid(())), (), NodeMode.ENV, True),
        (bound(needs=replace(GUARDED, count=0)), (), NodeMode.ENV, False),
        (bound(needs=Requirements()), (), NodeMode.ENV, False),
        (bound(needs=None), (), NodeMode.ENV, False),
        (bound(node="gpu-2"), (), NodeMode.ENV, False),
        (bound(), (held(origin=Origin.GATE),), NodeMode.ENV, False),
        (bound(), (), NodeMode.PLUGIN, False),
    ],
)
def test_a_guarded_pod_of_an_env_node_without_a_reservation(
    pod: BoundPod, records: tuple[GpuRecord, ...], mode: NodeMode, is_told: bool
) -> None:
    found = faults(pods=(pod,), records=records, mode=mode)
    assert found == ({(K.UNRESERVED, "", "train-0")} if is_told else set())
