from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controller.binding.reconciliation import AbsentNodes
from controller.binding.request import BoundPod
from controller.binding.use import (
    Evictions,
    FaultChanges,
    FaultWatch,
    LedgerUse,
    UseCase,
    UseFault,
    UseFaultKind,
    UseReports,
    allocations_to_record,
    nothing_to_record,
    use_faults,
    without_early,
)
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import FleetSnapshot, NodeView
from controller.ledger.record import GpuRecord, Holder, HolderState, Origin, PodRef
from controller.ledger.release import GivenDevice, GivenGpu, NodeGone, UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.snapshot import DeviceUse
from controller.policy import NodeMode
from gpuwarden.evidence.model import Allocation, GpuProcess
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    fleet,
    gpu,
    hash_of,
    mig_slice,
    node,
)
from tests.builders.ledger import CALL, SHARE, holder, record
from tests.builders.node_use import (
    MANAGED,
    NODE,
    SomeBoundPods,
    bound,
    device,
    node_with,
    ref,
    use_report,
)

S = 1_000_000_000
MAX_PER_NODE = 256
SETTLES_NS = 60 * S
AGAIN_NS = 30 * S
AT_ONCE = 4

# --- Ledger, kubelet and driver compared, row by row

K = UseFaultKind


def held(
    gpu: str = "GPU-a",
    name: str = "train-0",
    *,
    origin: Origin = Origin.KUBELET,
    state: HolderState = HolderState.CONFIRMED,
    uid: str = "",
) -> GpuRecord:
    made = Holder(f"v1.k.{uid or name}", ref(name, uid), (gpu,), origin, CALL, state, restored=True)
    return GpuRecord(gpu, NODE, (made,))


def both(one: GpuRecord, other: GpuRecord) -> GpuRecord:
    return one.with_holder(other.holders[0])


def faults(*devices: Any, **case: Any) -> set[tuple[str, str, str | None]]:
    """Kind, GPU and pod of each."""
    found = all_faults(*devices, **case)
    assert {x.node for x in found} <= {NODE}
    return {(x.kind.value, x.gpu, x.pod.name if x.pod else x.owner or None) for x in found}


def all_faults(
    *devices: Any,
    users: dict[str, set[str | None]] | None = None,
    pods: tuple[BoundPod, ...] = (bound(),),
    records: tuple[GpuRecord, ...] = (),
    mode: NodeMode = NodeMode.PLUGIN,
    fits: Callable[[BoundPod, str], bool] = lambda _pod, _gpu: True,
    **changes: Any,
) -> frozenset[UseFault]:
    report = replace(use_report(*devices, users=users), **changes)
    ledger = LedgerSnapshot.of(Entry(x, "1") for x in records)
    card = gpu(1, "GPU-b", mig=True, mig_devices=[mig_slice("MIG-1")])
    accepted = acceptance(hash_of("a"), [gpu(0, "GPU-a"), card])
    case = UseCase(NODE, mode, accepted, report, ledger, SomeBoundPods([*pods]), fits)
    return use_faults(case)


def test_a_recorded_allocation_in_use_is_no_fault() -> None:
    assert faults(device(), users={"GPU-a": {"uid-train-0"}}, records=(held(),)) == set()


def test_an_allocation_without_a_reservation_is_unreserved_use() -> None:
    assert faults(device()) == {(K.UNRESERVED_USE, "GPU-a", "train-0")}
    plain = (bound(needs=None),)
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0"}}
    assert faults(device(), users=used, pods=plain) == {(K.UNRESERVED_USE, "GPU-a", "train-0")}
    assert faults(device("gone"), pods=()) == {(K.UNRESERVED_USE, "GPU-a", "gone")}
    elsewhere = (bound(node="gpu-2"),)
    assert faults(device(), pods=elsewhere) == {(K.UNRESERVED_USE, "GPU-a", "train-0")}


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


def test_a_gpu_that_only_another_pod_holds_is_not_reserved_for_this_one() -> None:
    assert faults(device(), records=(held(name="train-1"),)) == {
        (K.UNRESERVED_USE, "GPU-a", "train-0")
    }


def test_a_pod_of_that_name_on_another_node_is_not_meant() -> None:
    """It holds and asks for something else, and must not be evicted."""
    elsewhere = (bound(node="gpu-2"),)
    misfits = {"records": (held(),), "fits": lambda _pod, _gpu: False}
    assert faults(device(), pods=elsewhere, **misfits) == set()
    reserved = (held("GPU-b", origin=Origin.BINDING_WEBHOOK),)
    shown = faults(device(), pods=elsewhere, records=reserved)
    assert shown == {(K.UNRESERVED_USE, "GPU-a", "train-0")}


def test_a_fault_names_the_uid_of_its_pod_where_that_is_known() -> None:
    assert {x.pod for x in all_faults(device())} == {PodRef("team-a", "train-0", "uid-train-0")}
    unknown = all_faults(device(), pods=())
    assert {x.pod for x in unknown} == {PodRef("team-a", "train-0")}


def test_a_reserved_pod_with_another_gpu() -> None:
    reserved = held("GPU-b", origin=Origin.BINDING_WEBHOOK)
    given = faults(device(), records=(reserved,), mode=NodeMode.ENV)
    assert given == {(K.OTHER_GPU, "GPU-a", "train-0")}
    used = faults(users={"GPU-a": {"uid-train-0"}}, records=(reserved,), mode=NodeMode.ENV)
    assert used == {(K.OTHER_GPU, "GPU-a", "train-0")}


def test_a_pod_that_uses_more_than_kubelet_gave_it() -> None:
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0"}, "GPU-c": {"uid-train-0"}}
    found = faults(device(), users=used, records=(held(),))
    assert found == {(K.OTHER_GPU, "GPU-c", "train-0")}


def test_an_allocation_that_is_not_recorded_yet_is_never_a_fault_of_its_pod() -> None:
    used: dict[str, set[str | None]] = {"GPU-c": {"uid-train-0"}}
    shown = faults(device(), device(gpu="GPU-c"), users=used, records=(held(),))
    assert shown == {(K.UNRESERVED_USE, "GPU-c", "train-0")}


def test_without_an_allocation_report_no_pod_of_a_plugin_node_is_faulted() -> None:
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0", None}}
    assert faults(users=used, given=None) == {(K.UNRESERVED_USE, "GPU-a", None)}
    assert (K.UNRESERVED_USE, "GPU-a", "train-0") in faults(
        users=used, given=None, mode=NodeMode.ENV
    )


def test_processes_of_unknown_pods_and_of_none() -> None:
    found = faults(users={"GPU-a": {"uid-x", None}}, pods=())
    assert found == {(K.UNRESERVED_USE, "GPU-a", "uid-x"), (K.UNRESERVED_USE, "GPU-a", None)}


def test_a_pod_of_another_node_is_not_accused_by_its_uid() -> None:
    """Root of a node can give its processes any UID."""
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-train-0"}}
    elsewhere = replace(held("GPU-z", origin=Origin.BINDING_WEBHOOK), node="gpu-2")
    for mode in (NodeMode.ENV, NodeMode.PLUGIN):
        case: Any = {"users": used, "records": (elsewhere,), "mode": mode}
        (found,) = all_faults(pods=(bound(node="gpu-2"),), **case)
        assert (found.kind, found.pod, found.owner) == (K.UNRESERVED_USE, None, "uid-train-0")
        (here,) = all_faults(pods=(bound(),), **case)
        assert (here.kind, here.pod) == (K.OTHER_GPU, ref())


def test_unreadable_processes_show_nothing() -> None:
    assert faults(users={}, given=frozenset()) == set()
    report = replace(use_report(), users=None)
    assert faults(users=None, given=report.given) == set()


def test_a_process_of_a_mig_device_shows_on_the_whole_gpu() -> None:
    used: dict[str, set[str | None]] = {"GPU-b": {"uid-train-0"}}
    assert faults(users=used, records=(held("MIG-1"),)) == set()
    assert faults(users=used, records=(held("GPU-a"),)) == {(K.OTHER_GPU, "GPU-b", "train-0")}
    given = device(gpu="MIG-1")
    assert faults(given, users=used) == {(K.UNRESERVED_USE, "MIG-1", "train-0")}


@pytest.mark.parametrize(
    ("pod", "records", "mode", "is_told"),
    [
        (bound(), (), NodeMode.ENV, True),
        (bound(needs=RequirementsInvalid(())), (), NodeMode.ENV, True),
        (bound(needs=replace(MANAGED, count=0)), (), NodeMode.ENV, False),
        (bound(needs=Requirements()), (), NodeMode.ENV, False),
        (bound(needs=None), (), NodeMode.ENV, False),
        (bound(node="gpu-2"), (), NodeMode.ENV, False),
        (bound(), (held(origin=Origin.BINDING_WEBHOOK),), NodeMode.ENV, False),
        (bound(), (), NodeMode.PLUGIN, False),
    ],
)
def test_a_managed_pod_of_an_env_node_without_a_reservation(
    pod: BoundPod, records: tuple[GpuRecord, ...], mode: NodeMode, is_told: bool
) -> None:
    found = faults(pods=(pod,), records=records, mode=mode)
    assert found == ({(K.UNRESERVED, "", "train-0")} if is_told else set())


ASKS_TWO = replace(MANAGED, count=2, requests=(("nvidia.com/gpu", 2),))
SLICES = (device(gpu="GPU-a::0"), device(gpu="GPU-a::1"))


def test_two_slices_of_one_gpu_are_not_two_gpus() -> None:
    def of(*devices: Any, **pod: Any) -> set[tuple[str, str, str | None]]:
        records = (held(), held("GPU-b"))
        return faults(*devices, pods=(bound(**pod),), records=records)

    sliced = {(K.SLICED_GPU, "GPU-a", "train-0")}
    assert of(*SLICES, needs=ASKS_TWO) == sliced
    assert of(*SLICES, device(gpu="GPU-b::0"), needs=replace(ASKS_TWO, count=3)) == sliced
    assert of(*SLICES, device(gpu="GPU-b::0"), needs=ASKS_TWO) == set()
    assert of(device(gpu="GPU-a::0"), device(gpu="GPU-b::1"), needs=ASKS_TWO) == set()
    assert of(SLICES[0], needs=ASKS_TWO) == set(), "kubelet has not named all of them"
    assert of(*SLICES, needs=replace(ASKS_TWO, accepts=Guarantee.NODE)) == set()
    assert of(*SLICES, needs=replace(ASKS_TWO, accepts=Guarantee.SET)) == sliced
    assert of(*SLICES, needs=RequirementsInvalid(())) == set()
    assert of(*SLICES, needs=None) == set()
    assert of(*SLICES, needs=MANAGED) == set()
    nic = (device(gpu="pool/nic-0"), device(gpu="pool/nic-1"))
    assert of(*nic, needs=ASKS_TWO) == set()


def test_slices_of_a_pod_that_is_elsewhere_or_unknown_are_not_its() -> None:
    for pods in ((bound(needs=ASKS_TWO, node="gpu-2"),), ()):
        found = faults(*SLICES, pods=pods, records=(held(),))
        assert K.SLICED_GPU not in {kind for kind, _, _ in found}


def test_a_gpu_that_was_replaced_under_its_pod() -> None:
    gone = {(K.GONE_GPU, "GPU-old", "train-0")}
    for mode in (NodeMode.ENV, NodeMode.PLUGIN):
        records = (held("GPU-old", origin=Origin.BINDING_WEBHOOK),)
        assert faults(records=records, mode=mode) == gone
    for shown in ("GPU-a", "GPU-b", "MIG-1"):
        assert faults(records=(held(shown),), mode=NodeMode.ENV) == set()
    assert faults(records=(held("MIG-2"),)) == {(K.GONE_GPU, "MIG-2", "train-0")}
    lost = acceptance(hash_of("a"), [gpu(0, "GPU-a", lost=True)])
    for uuid, told in (("MIG-2", set()), ("GPU-old", {"GPU-old"})):
        ledger = LedgerSnapshot.of([Entry(held(uuid), "1")])
        pods = SomeBoundPods([bound()])
        case = UseCase(NODE, NodeMode.ENV, lost, use_report(), ledger, pods, lambda _x, _y: True)
        assert {x.gpu for x in use_faults(case) if x.kind is K.GONE_GPU} == told
    elsewhere = replace(held("GPU-old"), node="gpu-2")
    assert faults(records=(elsewhere,)) == set()
    assert faults(records=(held("GPU-old"),), pods=()) == set()
    assert faults(records=(held("GPU-old"),), pods=(bound(needs=None),)) == set()


# --- What kubelet gave as it should, and has no record yet


def test_what_kubelet_gave_to_managed_pods_is_to_be_recorded() -> None:
    pods = SomeBoundPods(
        [
            bound(),
            bound("train-1"),
            bound("train-2"),
            bound("plain", needs=None),
            bound("elsewhere", node="gpu-2"),
        ]
    )
    view = node_with(
        device(gpu="GPU-A"),
        device("train-1", "GPU-b::0"),
        device("train-2", "GPU-b::1"),
        device("plain", "GPU-c"),
        device("elsewhere", "GPU-d"),
        device("gone", "GPU-e"),
        device(gpu="pool/nic-0"),
    )
    found = allocations_to_record(view, pods=pods, unexplained=())
    assert found == {
        "gpu-a": frozenset({"uid-train-0"}),
        "gpu-b": frozenset({"uid-train-1", "uid-train-2"}),
    }
    assert allocations_to_record(view, pods=pods, unexplained={"gpu-b"}).keys() == {"gpu-a"}
    assert nothing_to_record(view) == {}


@pytest.mark.parametrize(
    "view", [node_with(device(), mode=NodeMode.ENV), node(NODE, mode=NodeMode.PLUGIN)]
)
def test_elsewhere_than_on_plugin_nodes_with_evidence_nothing_is_to_be_recorded(
    view: NodeView,
) -> None:
    assert allocations_to_record(view, pods=SomeBoundPods([bound()]), unexplained=()) == {}


# --- A disagreement is told when it has come to stand, and when it is over

ONE = UseFault(UseFaultKind.UNRESERVED_USE, NODE, "GPU-a", ref())
TWO = UseFault(UseFaultKind.OTHER_GPU, NODE, "GPU-b", ref())
NOBODY = UseFault(UseFaultKind.UNRESERVED_USE, NODE, "GPU-b", None)


def test_one_report_alone_is_nothing_yet() -> None:
    watch = FaultWatch()
    assert watch.reported(NODE, [ONE]).begun == ()
    assert list(watch.standing()) == []
    assert watch.reported(NODE, []).ended == ()
    assert watch.reported(NODE, [ONE]).begun == ()


def test_it_is_reported_once_however_many_reports_show_it() -> None:
    watch = FaultWatch()
    watch.reported(NODE, [ONE])
    assert watch.reported(NODE, [ONE, TWO]).begun == (ONE,)
    third = watch.reported(NODE, [ONE, TWO, NOBODY])
    assert (third.begun, third.ended) == ((TWO,), ())
    assert watch.counts() == {UseFaultKind.UNRESERVED_USE: 1, UseFaultKind.OTHER_GPU: 1}
    assert set(watch.standing()) == {ONE, TWO}


def test_it_is_over_with_the_first_report_that_does_not_show_it() -> None:
    watch = FaultWatch()
    for _ in range(3):
        watch.reported(NODE, [ONE])
    changes = watch.reported(NODE, [])
    assert (changes.begun, changes.ended) == ((), (ONE,))
    assert watch.counts() == {}
    watch.reported(NODE, [ONE])
    assert watch.reported(NODE, [ONE]).begun == (ONE,)


def test_a_report_that_could_not_read_everything_ends_nothing() -> None:
    watch = FaultWatch()
    for _ in range(2):
        watch.reported(NODE, [ONE])
    changes = watch.reported(NODE, [TWO], whole=False)
    assert (changes.begun, changes.ended) == ((), ())
    assert list(watch.standing()) == [ONE]
    assert watch.reported(NODE, [TWO]).ended == (ONE,)


def test_what_is_shown_too_early_neither_counts_nor_ends() -> None:
    watch = FaultWatch()
    for _ in range(3):
        assert watch.reported(NODE, [], early={ONE}) == FaultChanges((), ())
    assert watch.reported(NODE, [ONE]).begun == ()
    assert watch.reported(NODE, [], early={ONE}).begun == ()
    assert watch.reported(NODE, [ONE]).begun == (ONE,)
    assert watch.reported(NODE, [], early={ONE}).ended == ()
    assert list(watch.standing()) == [ONE]
    assert watch.reported(NODE, []).ended == (ONE,)


def test_what_went_on_over_a_restart_is_not_over_because_it_is_shown_too_early() -> None:
    watch = FaultWatch()
    watch.remember([LOGGED])
    assert watch.reported(NODE, [], early={LATER}) == FaultChanges((), (), (LATER,))
    assert [x.since_wall_ns for x in watch.standing()] == [7]


def test_of_one_node_what_counts_comes_before_what_is_too_early() -> None:
    watch = FaultWatch()
    early = [UseFault(UseFaultKind.OTHER_GPU, NODE, f"GPU-{n}", ref()) for n in range(1000)]
    watch.reported(NODE, [ONE], early=early)
    assert watch.reported(NODE, [ONE], early=early).begun == (ONE,)


@pytest.mark.parametrize(
    ("fault", "is_early"),
    [
        (ONE, True),
        (replace(ONE, kind=UseFaultKind.OTHER_GPU), True),
        (replace(ONE, kind=UseFaultKind.SLICED_GPU), False),
        (replace(ONE, kind=UseFaultKind.TAKEN_GPU), False),
        (replace(ONE, gpu="GPU-b"), False),
        (replace(ONE, node="gpu-2"), False),
        (replace(ONE, pod=ref("train-1")), False),
        (replace(ONE, pod=None, owner="uid-train-0"), False),
    ],
)
def test_only_what_a_record_may_end_is_too_early(fault: UseFault, is_early: bool) -> None:
    awaited = {GivenGpu(ref(), NODE, "GPU-a")}
    one, none = frozenset({fault}), frozenset[UseFault]()
    assert without_early([fault], awaited) == ((none, one) if is_early else (one, none))
    assert without_early([fault], ()) == (one, none)


def test_nodes_have_nothing_to_do_with_each_other() -> None:
    watch = FaultWatch()
    watch.reported(NODE, [ONE])
    assert watch.reported("gpu-2", [ONE]).begun == ()


LOGGED = replace(ONE, since_wall_ns=7)
LATER = replace(ONE, pod=replace(ref(), owner="uid-of-the-owner"), since_wall_ns=9 * S)


def test_what_a_restart_finds_as_it_was_goes_on_and_is_not_told_again() -> None:
    watch = FaultWatch()
    watch.remember([LOGGED])
    assert list(watch.standing()) == []
    changes = watch.reported(NODE, [LATER, TWO])
    assert changes == FaultChanges((), (), (LATER,))
    (standing,) = watch.standing()
    assert (standing, standing.since_wall_ns) == (LATER, 7)
    assert watch.counts() == {UseFaultKind.UNRESERVED_USE: 1}
    assert watch.reported(NODE, [TWO]).ended == (LATER,)
    watch.reported(NODE, [LATER])
    watch.reported(NODE, [LATER])
    assert [x.since_wall_ns for x in watch.standing()] == [9 * S]


def test_what_a_restart_does_not_find_any_more_is_over() -> None:
    watch = FaultWatch()
    watch.remember([LOGGED])
    assert watch.reported("gpu-2", []).ended == ()
    (ended,) = watch.reported(NODE, [TWO]).ended
    assert (ended, ended.since_wall_ns) == (ONE, 7)
    assert watch.counts() == {}
    assert watch.reported(NODE, [ONE]).begun == ()


def test_a_first_report_that_could_not_read_everything_ends_nothing_from_before() -> None:
    watch = FaultWatch()
    watch.remember([LOGGED])
    assert watch.reported(NODE, [TWO], whole=False).ended == ()
    watch.reported(NODE, [LATER])
    assert [x.since_wall_ns for x in watch.standing()] == [7]


@pytest.mark.parametrize(
    "other",
    [
        replace(LATER, kind=UseFaultKind.TAKEN_GPU),
        replace(LATER, gpu="GPU-b"),
        replace(LATER, pod=PodRef("team-b", "train-0", "uid-train-0")),
        replace(LATER, pod=PodRef("team-a", "train-1", "uid-train-0")),
        replace(LATER, pod=PodRef("team-a", "train-0", "uid-new")),
        replace(LATER, pod=None, owner="uid-9"),
    ],
)
def test_something_else_has_its_own_begin(other: UseFault) -> None:
    watch = FaultWatch()
    watch.remember([LOGGED])
    assert watch.reported(NODE, [other]).ended == (ONE,)
    assert watch.reported(NODE, [other]).begun == (other,)
    assert [x.since_wall_ns for x in watch.standing()] == [9 * S]


def test_of_processes_without_a_pod_the_uid_tells_which() -> None:
    watch = FaultWatch()
    watch.remember([replace(NOBODY, owner="uid-9", since_wall_ns=7)])
    changes = watch.reported(NODE, [replace(NOBODY, owner="uid-9"), NOBODY])
    assert changes == FaultChanges((), (), (replace(NOBODY, owner="uid-9"),))
    assert changes
    assert not watch.reported(NODE, [replace(NOBODY, owner="uid-9")])
    assert [(x.owner, x.since_wall_ns) for x in watch.standing()] == [("uid-9", 7)]


def test_of_one_node_not_all_is_remembered() -> None:
    watch = FaultWatch()
    many = [UseFault(UseFaultKind.UNRESERVED_USE, NODE, f"GPU-{n}", None) for n in range(1000)]
    watch.reported(NODE, many)
    assert len(watch.reported(NODE, many).begun) == MAX_PER_NODE


def test_what_is_remembered_is_chosen_in_one_order() -> None:
    """By GPU, pod and process, so that each report shows the same ones."""
    pods = [
        None,
        PodRef("0-lab", "z"),
        *(PodRef("team-a", f"train-{n}") for n in range(9)),
        PodRef("team-b", "a"),
    ]
    ordered = [
        *(UseFault(K.UNRESERVED_USE, NODE, "GPU-a", pod) for pod in pods),
        *(UseFault(K.UNRESERVED_USE, NODE, "GPU-b", None, f"uid-{n}") for n in range(9)),
    ]
    watch = FaultWatch()
    watch.reported(NODE, ordered)
    assert watch.reported(NODE, reversed(ordered)).begun == tuple(ordered)


# --- What evidence says of use, and what kubelet's silence is worth

GIVEN = Allocation("team-a", "train-0", "main", "nvidia.com/gpu", "GPU-0")


class Told:
    """A node whose evidence a test replaces."""

    def __init__(self, mode: NodeMode) -> None:
        self.mode = mode
        self.fleet: FleetSnapshot = fleet()
        self.reports = UseReports(lambda: self.fleet)

    def say(self, at_ns: int = NOW_NS, **facts: Any) -> UseReport:
        made = replace(acceptance(hash_of("a"), [gpu(0)], issued_ns=at_ns), **facts)
        self.fleet = fleet(node("n", made, mode=self.mode))
        found = self.reports.of("n")
        assert found is not None
        return found


def test_processes_and_devices() -> None:
    found = Told(NodeMode.ENV).say(
        processes=(GpuProcess("GPU-0", 1, "uid-1"), GpuProcess("GPU-0", 2, None)),
        allocations=(GIVEN,),
    )
    assert found == UseReport(
        "boot",
        NOW_NS,
        {"GPU-0": frozenset({"uid-1", None})},
        frozenset({GivenDevice("team-a", "train-0", "GPU-0")}),
        evidence="e" * 64,
    )


def test_what_could_not_be_read() -> None:
    assert Told(NodeMode.ENV).say().users is None
    assert Told(NodeMode.PLUGIN).say().given is None
    assert Told(NodeMode.ENV).say().given == frozenset()


def test_nothing_of_a_node_without_evidence() -> None:
    told = Told(NodeMode.ENV)
    assert told.reports.of("n") is None
    told.fleet = fleet(node("n"))
    assert told.reports.of("n") is None


def test_one_report_per_evidence() -> None:
    told = Told(NodeMode.ENV)
    first = told.say()
    assert told.reports.of("n") is first
    assert told.say(NOW_NS + 1) is not first


def test_a_kubelet_that_names_nothing_may_have_just_started() -> None:
    told = Told(NodeMode.PLUGIN)
    assert told.say(NOW_NS, allocations=(GIVEN,)).given != frozenset()
    assert told.say(NOW_NS + 1, allocations=()).given is None
    assert told.say(NOW_NS + SETTLES_NS, allocations=()).given is None
    assert told.say(NOW_NS + 1 + SETTLES_NS, allocations=()).given == frozenset()
    told.say(NOW_NS + 2 + SETTLES_NS, allocations=(GIVEN,))
    assert told.say(NOW_NS + 3 + SETTLES_NS, allocations=()).given is None


def test_a_kubelet_that_cannot_be_asked_says_nothing_however_long() -> None:
    told = Told(NodeMode.PLUGIN)
    assert told.say(NOW_NS).given is None
    assert told.say(NOW_NS + SETTLES_NS).given is None
    assert told.say(NOW_NS + SETTLES_NS, allocations=()).given is None


def test_silence_counts_again_from_a_node_that_comes_back() -> None:
    told = Told(NodeMode.PLUGIN)
    told.say(NOW_NS, allocations=())
    told.fleet = fleet(node("n"))
    assert told.reports.of("n") is None
    assert told.say(NOW_NS + SETTLES_NS, allocations=()).given is None
    assert told.say(NOW_NS + 2 * SETTLES_NS, allocations=()).given == frozenset()


def test_a_report_is_heard_while_its_lease_lasts() -> None:
    told = Told(NodeMode.ENV)
    report = told.say()
    heard = told.reports.heard("n", NOW_NS + LEASE_NS - 1)
    assert heard is report
    assert report.evidence == "e" * 64
    assert told.reports.heard("n", NOW_NS + LEASE_NS) is None
    assert told.reports.heard("unknown", NOW_NS) is None


def test_a_node_that_loses_its_evidence_meanwhile_is_not_heard() -> None:
    with_evidence = fleet(node("n", acceptance(hash_of("a"), [gpu(0)])))
    for after in (fleet(node("n")), fleet()):
        looks = iter([with_evidence, after])
        assert UseReports(lambda looks=looks: next(looks)).heard("n", NOW_NS) is None  # type: ignore[misc] # bound here


def test_on_an_env_node_kubelet_has_nothing_to_give() -> None:
    assert Told(NodeMode.ENV).say(allocations=()).given == frozenset()


def test_pods() -> None:
    told = Told(NodeMode.ENV)
    assert told.say().pods == frozenset()
    assert told.say(pods=("uid-1",)).pods == frozenset({"uid-1"})
    assert told.say(pods=None, pods_unread=True).pods is None


# --- Whom to evict, and when to ask again


def fault(kind: UseFaultKind, name: str = "train-0", gpu: str = "GPU-a") -> UseFault:
    return UseFault(kind, NODE, gpu, ref(name))


OTHER = fault(UseFaultKind.OTHER_GPU)
HERE = SomeBoundPods([bound(f"train-{n}") for n in range(AT_ONCE + 1)])


def test_only_pods_that_have_what_they_must_not_have() -> None:
    evictions = Evictions()
    for kind in UseFaultKind:
        is_due = evictions.due([fault(kind)], 0, HERE) == (ref(),)
        assert is_due == (kind in {K.OTHER_GPU, K.UNFIT_GPU, K.SLICED_GPU}), kind
    unknown = UseFault(UseFaultKind.OTHER_GPU, NODE, "GPU-a", None, "uid-9")
    assert evictions.due([unknown], 0, HERE) == ()


def test_no_pod_of_another_node_is_evicted() -> None:
    assert Evictions().due([OTHER], 0, HERE) == (ref(),)
    for pods in ([bound(node="gpu-2")], [bound(uid="uid-new")], []):
        assert Evictions().due([OTHER], 0, SomeBoundPods(pods)) == ()


def test_each_pod_once() -> None:
    evictions = Evictions()
    several = [OTHER, fault(UseFaultKind.UNFIT_GPU, gpu="GPU-b")]
    assert evictions.due(several, 0, HERE) == (ref(),)
    evictions.asked(ref(), done=True, now_ns=0)
    assert evictions.due(several, 10 * AGAIN_NS, HERE) == ()


def test_what_was_refused_is_asked_again_after_a_while() -> None:
    evictions = Evictions()
    evictions.asked(ref(), done=False, now_ns=0)
    assert evictions.due([OTHER], AGAIN_NS - 1, HERE) == ()
    assert evictions.due([OTHER], AGAIN_NS, HERE) == (ref(),)


def test_when_it_is_over_it_is_forgotten() -> None:
    evictions = Evictions()
    evictions.asked(ref(), done=True, now_ns=0)
    assert evictions.due([], 1, HERE) == ()
    assert evictions.due([OTHER], 2, HERE) == (ref(),)


def test_never_all_at_once() -> None:
    many = [fault(UseFaultKind.OTHER_GPU, f"train-{n}") for n in range(AT_ONCE + 1)]
    assert len(Evictions().due(many, 0, HERE)) == AT_ONCE


# --- What the ledger looks like to /filter; which nodes are gone

OWN, SHARED, OTHERS = (
    record(holder("GPU-a"), gpu="GPU-a"),
    record(holder("GPU-b"), gpu="GPU-b", share=SHARE),
    record(holder("GPU-c"), gpu="GPU-c"),
)
HELD = LedgerSnapshot.of([Entry(x, "1") for x in (SHARED, OTHERS)])


def test_what_others_hold_is_busy() -> None:
    use = LedgerUse(lambda: HELD)
    found = use.use("another", None)
    both = frozenset({"GPU-b", "GPU-c"})
    assert found == DeviceUse(both, claimed=both)
    assert use.use(None, None) is found
    own = DeviceUse(frozenset({"GPU-c"}), frozenset({"GPU-b"}), both)
    assert use.use("another", SHARE) == own


def test_a_pod_s_own_attempt_is_not() -> None:
    current = LedgerSnapshot.of([Entry(OWN, "1")])
    use = LedgerUse(lambda: current)
    assert use.use("uid-0", None) == DeviceUse(
        claimed=frozenset({"GPU-a"}), own=frozenset({"GPU-a"})
    )
    assert use.use("uid-1", None).busy == {"GPU-a"}
    current = LedgerSnapshot()
    assert use.use("uid-1", None) == DeviceUse()


@dataclass
class Directory:
    nodes: tuple[str, ...] = ("gpu-1",)
    fresh_until_ns: int = 1_000
    now_ns: int = 0

    def snapshot(self) -> DirectorySnapshot:
        return DirectorySnapshot({x: KnownNode("u") for x in self.nodes}, self.fresh_until_ns)


def test_a_node_is_gone_while_a_fresh_copy_lacks_it() -> None:
    directory = Directory()
    absent = AbsentNodes(directory.snapshot, lambda: directory.now_ns)
    assert absent.gone("gpu-1") is None
    directory.nodes, directory.now_ns = (), 10
    assert absent.gone("gpu-1") == NodeGone(10)
    directory.now_ns = 20
    assert absent.gone("gpu-1") == NodeGone(10)
    directory.now_ns = 1_000
    assert absent.gone("gpu-1") is None
    directory.fresh_until_ns = 2_000
    assert absent.gone("gpu-1") == NodeGone(1_000)
    directory.nodes = ("gpu-1",)
    assert absent.gone("gpu-1") is None


# --- Who holds the GPU that is used


def victims(*args: Any, **more: Any) -> set[tuple[str, ...]]:
    found = all_faults(*args, **more)
    return {tuple(x.name or "" for x in fault.victims) for fault in found}


def test_the_pods_that_hold_a_gpu_are_named_where_others_use_it() -> None:
    pods, mine = (bound(), bound("train-1")), held(name="train-1")
    given_to_another = victims(device(), records=(mine,), pods=pods)
    assert given_to_another == {("train-1",)}
    for user in (None, "uid-9", "uid-train-0"):
        used: dict[str, set[str | None]] = {"GPU-a": {user}}
        assert victims(users=used, records=(mine,), pods=pods) == {("train-1",)}
    assert victims(users={"GPU-a": {None}}, records=(), pods=pods) == {()}
    both_hold = both(held(name="train-1"), held())
    assert victims(device(), records=(both_hold,), pods=pods) == {("train-1",)}


def test_who_holds_a_gpu_of_another_node_is_no_victim_of_this_one() -> None:
    pods = (bound(), bound("train-1", node="gpu-2"))
    mine = replace(both(held(name="train-1"), held()), node="gpu-2")
    used: dict[str, set[str | None]] = {"GPU-a": {"uid-9"}}
    assert victims(users=used, records=(mine,), pods=pods) == {()}
    assert victims(device(), records=(mine,), pods=pods) == {()}


def test_a_pod_that_is_given_all_of_a_gpu_whose_part_it_holds_is_not_its_own_victim() -> None:
    pods, part = (bound(), bound("train-1")), held("MIG-1")
    assert victims(device(gpu="GPU-b"), records=(part,), pods=pods) == {()}
    assert victims(device("train-1", "GPU-b"), records=(part,), pods=pods) == {("train-0",)}


@pytest.mark.parametrize("pod", [PodRef("team-a", None, "uid-5"), PodRef("team-a", "x", None)])
def test_a_pod_that_is_not_there_yet_is_no_victim(pod: PodRef) -> None:
    unborn = held(name="train-1")
    record = replace(unborn, holders=(replace(unborn.holders[0], pod=pod),))
    assert victims(users={"GPU-a": {"uid-9"}}, records=(record,)) == {()}


def test_it_is_the_same_use_whoever_holds_the_gpu() -> None:
    fault = UseFault(UseFaultKind.UNRESERVED_USE, NODE, "GPU-a", None, "uid-9")
    assert fault == replace(fault, victims=(ref(),))
