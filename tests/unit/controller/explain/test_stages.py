"""What each stage says, and where two of them do not agree."""

from dataclasses import replace
from typing import Any

import pytest

from controller.binding.request import BoundPod
from controller.explain.pod import AllocationTrace
from controller.explain.stages import Stage, StageName, StageState
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState, Origin, PodRef
from controller.ledger.release import GivenGpu, UseReport, allocation_recorded
from controller.ledger.reservation_id import ReservationIds, ReservationKey
from controller.placement.requirements import Requirements
from controller.policy import NodeMode
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import decode_record
from gpuwarden.evidence.model import Allocation, GpuProcess, LostGpu
from gpuwarden.reasons import ReasonCode
from tests.builders.accounts import (
    CREATED,
    GPU,
    ID,
    MADE,
    NODE,
    OTHER_GPU,
    OTHER_UID,
    REQUIREMENT,
    SCHEDULED,
    STARTED,
    TOLD,
    UID,
    account,
    given,
    held,
    node_of,
    pod_document,
    process,
    waiting_document,
)
from tests.builders.audit_log import GENESIS, line
from tests.builders.fleet_views import past
from tests.builders.ledger import CALL, SHARE, holder

# --- What each stage says, and where two of them do not agree

THIRD_GPU = "GPU-gpu-1-2"
FIVE = [StageName.REQUIRED, StageName.RESERVED, StageName.BOUND, StageName.KUBELET, StageName.NVML]
EMPTY_ERA = "1970-01-01T00:00:00.000Z"
"""When the builders' evidence was accepted."""


def told(*args: Any, **more: Any) -> AllocationTrace:
    found = account(*args, **more)
    assert found is not None
    return found


def stage(name: StageName, *args: Any, **more: Any) -> Stage:
    return next(x for x in told(*args, **more).stages if x.name is name)


def states(found: AllocationTrace) -> list[StageState]:
    return [x.state for x in found.stages]


def _uuid(gpu: str) -> str:
    """As the driver writes UUIDs: kubelet's other names of devices are none."""
    return f"GPU-00000000-0000-0000-0000-00000000000{gpu[-1]}"


def test_a_pod_that_has_what_it_was_given_on_an_env_node() -> None:
    found = told(pod_document(), held(), node=node_of(process()))
    assert [x.name for x in found.stages] == FIVE
    assert states(found) == [
        StageState.REACHED,
        StageState.REACHED,
        StageState.REACHED,
        StageState.UNNEEDED,
        StageState.REACHED,
    ]
    assert [x.at for x in found.stages] == [CREATED, MADE, SCHEDULED, EMPTY_ERA, EMPTY_ERA]
    assert [x.evidence for x in found.stages] == ["", "", "", "e" * 64, "e" * 64]
    assert [x.gpus for x in found.stages] == [(), (GPU,), (GPU,), (), (GPU,)]
    assert found.stages[0].findings == ("GPU selector: memory>=1Gi", "number of GPUs: 1")
    assert found.stages[1].findings == (
        "Confirmed on gpu-1, by the binding webhook",
        f"reservation {ID}",
    )
    assert found.stages[2].findings == (
        "node gpu-1",
        "gpuwarden issued its reservation id for this pod, node and GPUs",
    )
    assert f"a container started {STARTED}, says kubelet" in found.stages[3].findings
    assert found.stages[4].findings == ("processes of it: 1",)
    assert (found.given, found.is_wrong, found.case.uid) == ("node", False, UID)


def test_a_pod_that_waits() -> None:
    found = told(waiting_document())
    assert states(found) == [StageState.REACHED, *[StageState.WAITING] * 4]
    bound = found.stages[2]
    assert bound.findings == ("scheduler: Unschedulable: 0/3 nodes are available",)
    assert bound.at == SCHEDULED
    assert (found.given, found.is_wrong) == ("", False)


def test_a_scheduler_s_long_story_is_cut() -> None:
    (line,) = stage(StageName.BOUND, waiting_document("x" * 5000)).findings
    assert len(line) < 500


def test_a_pod_that_nobody_has_looked_at() -> None:
    document = pod_document(REQUIREMENT, node="", phase="Pending", conditions=None)
    assert stage(StageName.BOUND, document).findings == ("no scheduler has said anything yet",)


def test_a_pod_that_asks_for_nothing_of_ours() -> None:
    found = told(pod_document({}), node=node_of())
    assert states(found) == [
        StageState.UNNEEDED,
        StageState.UNNEEDED,
        StageState.REACHED,
        StageState.UNNEEDED,
        StageState.UNNEEDED,
    ]


def test_a_requirement_that_cannot_be_read() -> None:
    required = stage(StageName.REQUIRED, pod_document({"gpuwarden.dev/min-level": "L9"}, node=""))
    assert required.state is StageState.MISMATCH
    assert "cannot be read: gpuwarden.dev/min-level" in required.findings[0]


def test_a_managed_pod_without_a_gpu_needs_no_reservation() -> None:
    found = stage(StageName.RESERVED, pod_document({"gpuwarden.dev/min-level": "L0"}))
    assert (found.state, found.findings) == (
        StageState.UNNEEDED,
        ("it asks for no GPU, so nothing is reserved",),
    )


@pytest.mark.parametrize(
    ("annotations", "mode", "state"),
    [
        (REQUIREMENT | TOLD, NodeMode.ENV, StageState.MISSING),
        (REQUIREMENT, NodeMode.ENV, StageState.MISSING),
        (REQUIREMENT | TOLD, NodeMode.PLUGIN, StageState.MISSING),
        (REQUIREMENT, NodeMode.PLUGIN, StageState.WAITING),
        (REQUIREMENT, NodeMode.PER_GPU, StageState.UNNEEDED),
        (REQUIREMENT, NodeMode.DRA, StageState.UNNEEDED),
    ],
)
def test_a_bound_pod_that_the_ledger_does_not_know(
    annotations: dict[str, str], mode: NodeMode, state: StageState
) -> None:
    document = pod_document(annotations)
    assert stage(StageName.RESERVED, document, node=node_of(mode=mode)).state is state


def test_kubelet_s_allocation_is_recorded_later() -> None:
    """The record comes with a later report, so until then the pod lacks nothing."""
    found = told(pod_document(REQUIREMENT), node=node_of(process(), mode=NodeMode.PLUGIN))
    assert (found.stages[1].state, found.is_wrong) == (StageState.WAITING, False)
    text = "recorded once two reports of the node show what kubelet gave it"
    assert found.stages[1].findings == (text,)


@pytest.mark.parametrize(
    ("node", "changes", "state", "text"),
    [
        (
            node_of(mode=NodeMode.PLUGIN),
            {"ids": None},
            StageState.UNNEEDED,
            "what kubelet gave it is not recorded: admission.idKeys is not set",
        ),
        (
            node_of(mode=NodeMode.PLUGIN),
            {"report_only": True},
            StageState.UNNEEDED,
            "report-only: nothing is reserved",
        ),
        (
            node_of(mode=NodeMode.PLUGIN, allocations=(given("0"),)),
            {},
            StageState.UNKNOWN,
            "kubelet's ids of its devices name no GPU, so none can be recorded",
        ),
        (
            replace(node_of(), name="gpu-2"),
            {},
            StageState.UNKNOWN,
            "gpuwarden has no evidence of gpu-1, nor knows its mode",
        ),
        (
            node_of(mode=NodeMode.PER_GPU),
            {},
            StageState.UNNEEDED,
            "nothing is reserved on a node of mode per-gpu",
        ),
    ],
    ids=["no keys", "report-only", "ids without UUIDs", "unknown node", "another mode"],
)
def test_where_no_record_will_come(
    node: NodeView, changes: dict[str, Any], state: StageState, text: str
) -> None:
    found = stage(StageName.RESERVED, pod_document(REQUIREMENT), node=node, **changes)
    assert (found.state, found.findings) == (state, (text,))


def test_a_waiting_pod_in_report_only_mode_waits_for_no_reservation() -> None:
    found = stage(StageName.RESERVED, waiting_document(), report_only=True)
    assert found.state is StageState.UNNEEDED


def test_each_reservation_of_the_pod_is_named() -> None:
    """On a plugin node each GPU is a reservation of its own."""
    second = held(gpu=OTHER_GPU, reservation="v1.k1.other")
    found = stage(StageName.RESERVED, pod_document(), held(), second)
    assert (found.state, found.gpus) == (StageState.REACHED, (GPU, OTHER_GPU))
    assert f"reservations {ID}, v1.k1.other" in found.findings


def test_what_each_reservation_lacks_is_missing() -> None:
    """Not only what the first of them does."""
    holder_of_both = replace(
        held(gpu=OTHER_GPU).holders[0], gpus=(GPU, OTHER_GPU, THIRD_GPU), reservation="v1.k1.other"
    )
    second = replace(held(gpu=OTHER_GPU), holders=(holder_of_both,))
    found = stage(StageName.RESERVED, pod_document(), held(), second)
    assert found.state is StageState.MISSING
    assert f"no records of {THIRD_GPU.lower()}" in found.findings


def test_a_reservation_that_lacks_a_gpu() -> None:
    one = replace(held(), holders=(replace(held().holders[0], gpus=(GPU, OTHER_GPU)),))
    found = stage(StageName.RESERVED, pod_document(), one)
    assert found.state is StageState.MISSING
    assert f"no records of {OTHER_GPU.lower()}" in found.findings


def test_what_is_special_about_a_reservation_is_said() -> None:
    mine = replace(held().holders[0], restored=True)
    shared = replace(held(), holders=(mine, holder(GPU)), share=SHARE)
    lines = stage(StageName.RESERVED, pod_document(), shared).findings
    assert "shared with 1 other under gpu-1:0" in lines
    assert any(x.startswith("the ledger had lost it") for x in lines)


def test_a_gpu_that_kubelet_gave_was_not_lost() -> None:
    """Its record is made from a report of a pod that runs (`allocation_recorded`)."""
    report = UseReport("boot", 0, {}, frozenset())
    made = allocation_recorded(None, GivenGpu(held().holders[0].pod, NODE, GPU), ID, CALL, report)
    assert made is not None
    assert made.holders[0].restored
    lines = stage(StageName.RESERVED, pod_document(), made).findings
    assert f"Confirmed on {NODE}, by kubelet's allocation" in lines
    assert not any("lost" in x for x in lines)


def test_a_ledger_that_is_not_known() -> None:
    for changes, text in (
        ({"ledger": None}, "this controller reserves nothing: it has no admission.tls"),
        ({"now_ns": 2**63}, "the ledger was not read lately"),
    ):
        found = stage(StageName.RESERVED, pod_document(), held(), **changes)
        assert (found.state, found.findings) == (StageState.UNKNOWN, (text,))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"gpuwarden.dev/reservation-id": "v1.k1.forged"},
            "gpuwarden did not issue the reservation id on the pod for this pod, node and GPUs",
        ),
        (
            {"gpuwarden.dev/gpu-uuids-assigned": OTHER_GPU},
            "the GPUs on the pod are not those that the ledger holds for it",
        ),
    ],
)
def test_a_pod_that_was_assigned_something_else(changes: dict[str, str], text: str) -> None:
    found = stage(StageName.BOUND, pod_document(REQUIREMENT | TOLD | changes), held())
    assert found.state is StageState.MISMATCH
    assert text in found.findings


LOST_KEY: Any = {"ids": ReservationIds("lab", (ReservationKey("k2", b"2" * 32),))}


def test_an_id_whose_key_is_lost_counts_as_the_ledger_has_it() -> None:
    found = stage(StageName.BOUND, pod_document(), held(), **LOST_KEY)
    assert found.state is StageState.REACHED
    assert found.findings == (
        "node gpu-1",
        "its reservation id is by no key of admission.idKeys; the ledger has just this one",
    )


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (None, {}),
        (held(reservation="v1.k1.another"), {}),
        (held(HolderState.PROPOSED), {}),
        (held(HolderState.RELEASING), {}),
        (replace(held(), node="gpu-2"), {}),
        (held(gpu=OTHER_GPU), {}),
        (held(), {"gpuwarden.dev/gpu-uuids-assigned": OTHER_GPU}),
        (held(), {"gpuwarden.dev/gpu-uuids-assigned": f"{GPU},{OTHER_GPU}"}),
    ],
)
def test_an_id_whose_key_is_lost_is_nobody_s_where_the_ledger_has_another(
    record: GpuRecord | None, changes: dict[str, str]
) -> None:
    document = pod_document(REQUIREMENT | TOLD | changes)
    found = stage(StageName.BOUND, document, *filter(None, (record,)), **LOST_KEY)
    assert found.state is StageState.MISMATCH
    assert any(x.startswith("gpuwarden did not issue the reservation id") for x in found.findings)
    assert not any("admission.idKeys" in x for x in found.findings)


NO_KEY = "its reservation id is by no key of admission.idKeys"
FORGED = "gpuwarden did not issue the reservation id on the pod for this pod, node and GPUs"


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ((), NO_KEY),
        ((held(HolderState.RELEASING),), f"{NO_KEY}; the ledger has just this one"),
    ],
    ids=["released", "releasing"],
)
def test_the_key_of_a_pod_that_has_ended_may_be_removed(
    records: tuple[GpuRecord, ...], text: str
) -> None:
    found = told(pod_document(phase="Succeeded"), *records, **LOST_KEY)
    assert found.stages[2].findings == ("node gpu-1", text, "it has ended: Succeeded")
    assert (found.stages[2].state, found.is_wrong) == (StageState.REACHED, False)


@pytest.mark.parametrize(
    ("reservation", "records", "more"),
    [
        ("v1.k1.forged", (), LOST_KEY),
        (ID[:-1] + ("0" if ID[-1] != "0" else "1"), (), {}),
        (ID, (held(reservation="v1.k1.another"),), LOST_KEY),
        (ID, (held(gpu=OTHER_GPU),), LOST_KEY),
        (ID, (replace(held(), node="gpu-2"),), LOST_KEY),
    ],
    ids=["no id", "forged", "another id", "another GPU", "another node"],
)
def test_a_pod_that_has_ended_may_carry_no_other_id(
    reservation: str, records: tuple[GpuRecord, ...], more: dict[str, Any]
) -> None:
    carries = REQUIREMENT | TOLD | {"gpuwarden.dev/reservation-id": reservation}
    document = pod_document(carries, phase="Succeeded")
    found = stage(StageName.BOUND, document, *records, **more)
    assert found.state is StageState.MISMATCH
    assert FORGED in found.findings
    assert not any(x.startswith(NO_KEY) for x in found.findings)


def test_a_pod_that_was_bound_past_us() -> None:
    found = stage(StageName.BOUND, pod_document(REQUIREMENT), held())
    assert "it is bound without the reservation id" in found.findings
    elsewhere = replace(held(), node="gpu-2")
    assert "it is reserved on gpu-2" in stage(StageName.BOUND, pod_document(), elsewhere).findings


def test_a_class_that_has_changed_since() -> None:
    document = pod_document(
        REQUIREMENT | TOLD | {"gpuwarden.dev/attestation-hash": "v1:sha256:old"}
    )
    found = stage(StageName.BOUND, document, held())
    assert found.state is StageState.REACHED
    assert any(x.startswith("the node's class was v1:sha256:old, it is") for x in found.findings)


@pytest.mark.parametrize(
    ("mode", "allocations", "state", "text"),
    [
        (NodeMode.PLUGIN, (given(),), StageState.REACHED, None),
        (NodeMode.PLUGIN, (given(OTHER_GPU),), StageState.MISMATCH, "not the GPUs that the ledger"),
        (NodeMode.PLUGIN, (), StageState.WAITING, "kubelet shows no device of it"),
        (NodeMode.PLUGIN, None, StageState.UNKNOWN, "kubelet was not asked"),
        (NodeMode.ENV, None, StageState.UNNEEDED, "on an env node kubelet gives no GPUs"),
        (NodeMode.ENV, (given(),), StageState.MISMATCH, "kubelet gave GPUs on an env node"),
        (NodeMode.ENV, (), StageState.UNNEEDED, "on an env node kubelet gives no GPUs"),
    ],
)
def test_what_kubelet_gave(
    mode: NodeMode, allocations: tuple[Allocation, ...] | None, state: StageState, text: str | None
) -> None:
    node = node_of(
        mode=mode, allocations=tuple(map(_real, allocations)) if allocations else allocations
    )
    found = stage(StageName.KUBELET, pod_document(), held(gpu=_uuid(GPU)), node=node)
    assert found.state is state
    assert found.evidence == "e" * 64
    assert text is None or any(text in x for x in found.findings)


def of_kubelet(*gpus: str) -> list[GpuRecord]:
    return [
        held(gpu=x, reservation=f"v1.k1.{n}", origin=Origin.KUBELET, restored=True)
        for n, x in enumerate(gpus)
    ]


BEFORE = "kubelet gave its GPUs before the node's mode was env"


@pytest.mark.parametrize("gpus", [[GPU], [GPU, OTHER_GPU]], ids=["one", "two"])
def test_a_pod_keeps_what_kubelet_gave_when_the_mode_changes(gpus: list[str]) -> None:
    gpus = list(map(_uuid, gpus))
    node = node_of(*map(process, gpus), allocations=tuple(map(given, gpus)))
    found = told(pod_document(REQUIREMENT), *of_kubelet(*gpus), node=node)
    assert found.stages[2].findings == ("node gpu-1",)
    assert (found.stages[3].state, found.stages[3].findings[0]) == (StageState.REACHED, BEFORE)
    assert not found.is_wrong


def test_on_an_env_node_kubelet_may_have_given_nothing_else() -> None:
    """No GPU without a record, none in the place of the recorded one, none beside a claim."""
    one, two = _uuid(GPU), _uuid(OTHER_GPU)
    claimed = held(gpu=two, reservation="v1.k1.claimed")
    late = "kubelet gave GPUs on an env node"
    fewer = "not the GPUs that the ledger holds for it"
    for records, gpus, text in (
        (of_kubelet(one), (one, two), late),
        (of_kubelet(one), (two,), late),
        ([], (one,), late),
        ([*of_kubelet(one), claimed], (one, two), late),
        (of_kubelet(one, two), (one,), fewer),
    ):
        node = node_of(allocations=tuple(map(given, gpus)))
        found = stage(StageName.KUBELET, pod_document(REQUIREMENT), *records, node=node)
        assert (found.state, found.findings[0]) == (StageState.MISMATCH, text)


def test_a_pod_with_a_claim_and_a_gpu_of_kubelet_needs_its_id() -> None:
    claimed = held(gpu=OTHER_GPU, reservation="v1.k1.claimed")
    found = stage(StageName.BOUND, pod_document(REQUIREMENT), *of_kubelet(GPU), claimed)
    assert "it is bound without the reservation id" in found.findings


def test_a_gpu_that_is_not_recorded_yet_is_no_mismatch() -> None:
    """Each GPU of kubelet's is recorded for itself, one after the other."""
    gpus = (_uuid(GPU), _uuid(OTHER_GPU))
    node = node_of(*map(process, gpus), mode=NodeMode.PLUGIN, allocations=tuple(map(given, gpus)))
    document = pod_document(REQUIREMENT)
    found = told(document, *of_kubelet(gpus[0]), node=node)
    assert (found.stages[3].state, found.stages[4].state) == (StageState.REACHED,) * 2
    assert f"not recorded yet: {gpus[1]}" in found.stages[3].findings
    assert not found.is_wrong
    whole = told(document, *of_kubelet(*gpus), node=node)
    assert not any("recorded" in x for x in whole.stages[3].findings)
    fewer = node_of(mode=NodeMode.PLUGIN, allocations=(given(gpus[0]),))
    assert told(document, *of_kubelet(*gpus), node=fewer).is_wrong
    claimed = [
        replace(x, holders=(replace(x.holders[0], origin=Origin.ADMISSION),))
        for x in of_kubelet(gpus[0])
    ]
    assert told(document, *claimed, node=node).is_wrong


@pytest.mark.parametrize("mode", [NodeMode.PLUGIN, NodeMode.ENV])
def test_a_pod_that_asks_for_no_gpu_waits_for_none(mode: NodeMode) -> None:
    found = told(pod_document({"gpuwarden.dev/min-level": "L0"}), node=node_of(mode=mode))
    assert states(found)[3:] == [StageState.UNNEEDED] * 2
    waiting = pod_document({"gpuwarden.dev/min-level": "L0"}, node="", phase="Pending")
    assert states(told(waiting))[3:] == [StageState.UNNEEDED] * 2


def test_a_pod_whose_requirement_cannot_be_read_may_still_get_gpus() -> None:
    document = pod_document({"gpuwarden.dev/min-level": "L9"})
    found = told(document, node=node_of(mode=NodeMode.PLUGIN))
    assert states(found)[1:] == [StageState.WAITING, StageState.REACHED, *[StageState.WAITING] * 2]


def test_another_pod_s_devices_are_not_its_own() -> None:
    foreign = Allocation("team-b", "train-0", "main", "nvidia.com/gpu", _uuid(GPU))
    node = node_of(mode=NodeMode.PLUGIN, allocations=(foreign,))
    assert (
        stage(StageName.KUBELET, pod_document(REQUIREMENT), node=node).state is StageState.WAITING
    )


@pytest.mark.parametrize(
    ("processes", "state", "text"),
    [
        ((process(),), StageState.REACHED, "processes of it: 1"),
        ((), StageState.WAITING, "no process of it"),
        ((process(OTHER_GPU),), StageState.MISMATCH, f"it uses {OTHER_GPU}, which is not its own"),
        ((process(uid=None),), StageState.MISMATCH, f"process 7 of no pod uses {GPU} too"),
        (
            (process(), process(uid=OTHER_UID)),
            StageState.MISMATCH,
            f"process 7 of pod UID {OTHER_UID} (no live pod of this node) uses {GPU} too",
        ),
        ((process(OTHER_GPU, OTHER_UID),), StageState.WAITING, "no process of it"),
    ],
)
def test_what_runs_on_its_gpus(processes: tuple[Any, ...], state: StageState, text: str) -> None:
    found = stage(StageName.NVML, pod_document(), held(), node=node_of(*processes))
    assert (found.state, found.findings) == (state, (text,))


LOST = {"lost": LostGpu(uuid=GPU, index=0, pci_bus_id="", error="GPU_IS_LOST")}
SICK = {"unhealthy": "xid 79, until the GPU is reset"}
IS_LOST = f"its GPU {GPU} is lost (GPU_IS_LOST): delete the pod"
IS_SICK = (
    f"its GPU {GPU} is unhealthy (xid 79, until the GPU is reset): delete the pod if it does not"
    " work any more"
)


def with_first(node: NodeView, fault: dict[str, Any]) -> NodeView:
    """The node, whose first GPU has failed."""
    assert node.acceptance is not None
    first, *others = node.acceptance.gpus
    gpus = (replace(first, **fault), *others)
    return replace(node, acceptance=replace(node.acceptance, gpus=gpus))


@pytest.mark.parametrize(
    ("fault", "node", "findings"),
    [
        (SICK, node_of(process()), (IS_SICK, "processes of it: 1")),
        (LOST, node_of(), (IS_LOST, "no process of it")),
        (LOST | SICK, node_of(), (IS_LOST, "no process of it")),
        (LOST, node_of(read=False), (IS_LOST, "the driver did not list processes")),
        (
            SICK,
            node_of(process(uid=None)),
            (IS_SICK, f"process 7 of no pod uses {GPU} too"),
        ),
    ],
)
def test_a_pod_whose_gpu_has_failed_is_told(
    fault: dict[str, Any], node: NodeView, findings: tuple[str, ...]
) -> None:
    found = told(pod_document(), held(), node=with_first(node, fault))
    assert (found.stages[4].state, found.stages[4].findings) == (StageState.MISMATCH, findings)
    assert found.is_wrong


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("vbios: UNKNOWN", "vbios: UNKNOWN"),
        ("serial: not reported, 1320923002148 is enrolled", "serial: not reported"),
    ],
)
def test_a_gpu_that_was_not_read_whole_may_still_work(error: str, shown: str) -> None:
    """And its serial is not for everybody."""
    lost = {"lost": LostGpu(uuid=GPU, index=0, pci_bus_id="", error=error)}
    for fault, word in ((lost, "lost"), ({"unhealthy": error}, "unhealthy")):
        found = stage(StageName.NVML, pod_document(), held(), node=with_first(node_of(), fault))
        text = f"its GPU {GPU} is {word} ({shown}): delete the pod if it does not work any more"
        assert found.findings[0] == text


def test_a_gpu_that_has_failed_is_that_of_its_parts() -> None:
    needs = REQUIREMENT | TOLD | {"gpuwarden.dev/gpu-uuids-assigned": PART}
    node = with_first(node_of(split=(PART, BESIDE)), SICK)
    assert IS_SICK in stage(StageName.NVML, pod_document(needs), held(gpu=PART), node=node).findings


def test_what_kubelet_gave_may_have_failed_before_its_record() -> None:
    node = node_of(mode=NodeMode.PLUGIN, allocations=(given(_uuid(GPU)),))
    node = with_first(node, SICK | {"uuid": _uuid(GPU)})
    found = told(pod_document(REQUIREMENT), node=node)
    assert found.stages[4].findings[0] == IS_SICK.replace(GPU, _uuid(GPU))
    assert not told(pod_document({}), node=node).is_wrong


def test_another_gpu_that_has_failed_is_not_its_own() -> None:
    elsewhere = pod_document(REQUIREMENT | TOLD | {"gpuwarden.dev/gpu-uuids-assigned": OTHER_GPU})
    found = stage(StageName.NVML, elsewhere, held(gpu=OTHER_GPU), node=with_first(node_of(), LOST))
    assert (found.state, found.findings) == (StageState.WAITING, ("no process of it",))


@pytest.mark.parametrize("document", [pod_document(phase="Failed"), None], ids=["ended", "gone"])
def test_a_pod_that_has_ended_needs_its_gpu_no_more(document: dict[str, Any] | None) -> None:
    releasing = held(HolderState.RELEASING)
    found = told(document, releasing, node=with_first(node_of(), LOST))
    assert (found.stages[4].findings, found.is_wrong) == (("no process of it",), False)


def test_a_pod_that_is_being_deleted_is_not_to_be_deleted() -> None:
    document = pod_document()
    document["metadata"]["deletionTimestamp"] = STARTED
    found = stage(StageName.NVML, document, held(), node=with_first(node_of(), LOST))
    assert found.findings[0] == f"its GPU {GPU} is lost (GPU_IS_LOST)"


PART = "MIG-00000000-0000-0000-0000-00000000000a"
BESIDE = "MIG-00000000-0000-0000-0000-00000000000b"


def beside(uid: str = OTHER_UID) -> GpuRecord:
    """Another pod has the other part of the GPU."""
    ref = PodRef("team-b", "infer-0", uid)
    return GpuRecord(BESIDE, NODE, (holder(BESIDE, pod=ref, reservation="v1.k1.b"),))


def on_its_part(*processes: GpuProcess, others: tuple[GpuRecord, ...] = (), **more: Any) -> Stage:
    """Where the pod has one of two parts of a GPU; the driver names the GPU for both."""
    changes = {"now_ns": more.pop("now_ns")} if "now_ns" in more else {}
    told = REQUIREMENT | TOLD | {"gpuwarden.dev/gpu-uuids-assigned": PART}
    node = node_of(*processes, split=(PART, BESIDE), **more)
    return stage(StageName.NVML, pod_document(told), held(gpu=PART), *others, node=node, **changes)


def test_a_process_on_a_part_is_named_on_the_whole_gpu() -> None:
    found = on_its_part(process())
    assert (found.state, found.gpus, found.findings) == (
        StageState.REACHED,
        (GPU,),
        ("processes of it: 1",),
    )
    found = on_its_part(process(OTHER_GPU))
    assert found.findings == (f"it uses {OTHER_GPU}, which is not its own",)


@pytest.mark.parametrize(
    ("other", "more"),
    [
        (process(uid=OTHER_UID), {"others": (beside(),)}),
        (process(OTHER_GPU, OTHER_UID), {}),
        (
            process(uid=OTHER_UID),
            {
                "mode": NodeMode.PLUGIN,
                "allocations": (Allocation("team-b", "x", "main", "nvidia.com/gpu", BESIDE),),
            },
        ),
        (process(uid=OTHER_UID), {"mode": NodeMode.PLUGIN, "allocations": None}),
        (process(uid=OTHER_UID), {"now_ns": 2**63}),
    ],
    ids=["held", "another GPU", "kubelet gave it", "kubelet was not asked", "unread ledger"],
)
def test_the_owner_of_the_neighbouring_mig_device_is_not_unreserved_use(
    other: GpuProcess, more: dict[str, Any]
) -> None:
    assert on_its_part(process(), other, **more).state is StageState.REACHED


@pytest.mark.parametrize(
    ("other", "more"),
    [
        (process(uid=None), {"others": (beside(),)}),
        (process(uid=OTHER_UID), {}),
        (process(uid=OTHER_UID), {"others": (beside("0b7c1a52-0000-4000-8000-000000000003"),)}),
        (
            process(uid=OTHER_UID),
            {
                "mode": NodeMode.PLUGIN,
                "allocations": (Allocation("team-a", "train-0", "main", "nvidia.com/gpu", PART),),
            },
        ),
    ],
    ids=["of no pod", "nobody has it", "a third pod's", "kubelet gave none but its own"],
)
def test_nobody_else_has_a_reason_to_be_on_its_gpu(other: GpuProcess, more: dict[str, Any]) -> None:
    found = on_its_part(process(), other, **more)
    unknown = f"pod UID {other.pod_uid} (no live pod of this node)"
    who = unknown if other.pod_uid else "no pod"
    assert (found.state, found.findings) == (
        StageState.MISMATCH,
        (f"process 7 of {who} uses {GPU} too",),
    )


def test_a_pod_with_another_gpu_is_unreserved_use_on_this_one() -> None:
    elsewhere = held(gpu=OTHER_GPU, uid=OTHER_UID, reservation="v1.k1.b")
    found = told(pod_document(), held(), elsewhere, node=node_of(process(uid=OTHER_UID)))
    assert found.stages[4].state is StageState.MISMATCH


def test_pods_of_its_share_group_are_not_unreserved_use() -> None:
    other = holder(GPU, reservation="v1.k1.z", pod=replace(held().holders[0].pod, uid=OTHER_UID))
    shared = replace(held(), holders=(held().holders[0], other), share=SHARE)
    node = node_of(process(), process(uid=OTHER_UID))
    assert stage(StageName.NVML, pod_document(), shared, node=node).state is StageState.REACHED


def sliced(pod: str, number: int) -> Allocation:
    namespace, _, name = pod.partition("/")
    return Allocation(namespace, name, "main", "nvidia.com/gpu", f"{_uuid(GPU)}::{number}")


def neighbour(needs: Requirements | None, uid: str = OTHER_UID) -> Any:
    """Finds one other pod."""
    found = BoundPod(PodRef("team-b", "infer-0", uid), NODE, needs)
    return {OTHER_UID: found}.get


BESIDE_IT = (sliced("team-a/train-0", 0), sliced("team-b/infer-0", 1), sliced("team-b/infer-0", 2))
BOTH_RUN = (process(_uuid(GPU)), process(_uuid(GPU), OTHER_UID))


def test_that_others_have_slices_of_its_gpu_is_said() -> None:
    elsewhere = Allocation("team-b", "x", "main", "nvidia.com/gpu", f"{_uuid(OTHER_GPU)}::0")
    whole = Allocation("team-b", "y", "main", "nvidia.com/gpu", _uuid(GPU))
    node = node_of(mode=NodeMode.PLUGIN, allocations=(*BESIDE_IT, elsewhere, whole))
    found = stage(StageName.NVML, pod_document(REQUIREMENT), node=node)
    text = f"kubelet gave slices of {_uuid(GPU)} to 1 other pod"
    assert found.findings == ("no process of it", text)
    alone = node_of(mode=NodeMode.PLUGIN, allocations=(BESIDE_IT[0], elsewhere))
    assert stage(StageName.NVML, pod_document(REQUIREMENT), node=alone).findings == (
        "no process of it",
    )
    ended = stage(StageName.NVML, pod_document(REQUIREMENT, phase="Failed"), node=node)
    assert ended.findings == ("no process of it",)


def test_a_managed_pod_with_a_slice_is_at_home_before_its_record() -> None:
    node = node_of(*BOTH_RUN, mode=NodeMode.PLUGIN, allocations=BESIDE_IT)
    records = of_kubelet(_uuid(GPU))
    managed = neighbour(Requirements(managed=True, count=1))
    found = stage(StageName.NVML, pod_document(REQUIREMENT), *records, node=node, pod_of=managed)
    assert found.state is StageState.REACHED
    for allocations, pod_of in (
        (BESIDE_IT, neighbour(None)),
        (BESIDE_IT[:1], managed),
        ((BESIDE_IT[0], Allocation("team-b", "infer-0", "m", "r", _uuid(GPU))), managed),
        (BESIDE_IT, {}.get),
    ):
        node = node_of(*BOTH_RUN, mode=NodeMode.PLUGIN, allocations=allocations)
        found = stage(StageName.NVML, pod_document(REQUIREMENT), *records, node=node, pod_of=pod_of)
        assert found.state is StageState.MISMATCH


STATIC_UID = "0123456789abcdef0123456789abcdef"
"""By which the node knows a static pod; the API server's copy of it has another."""


@pytest.mark.parametrize("status", [{}, {"phase": "Failed"}], ids=["runs", "has ended"])
def test_a_static_pod_is_not_accused_of_its_own_process(status: dict[str, Any]) -> None:
    document = pod_document(REQUIREMENT | {"kubernetes.io/config.mirror": STATIC_UID}, **status)
    node = node_of(process(uid=STATIC_UID), mode=NodeMode.PLUGIN)
    found = stage(StageName.NVML, document, *of_kubelet(GPU), node=node)
    assert (found.state, found.findings[0]) == (StageState.REACHED, "processes of it: 1")


def test_a_static_pod_beside_it_is_known_by_its_record() -> None:
    other = holder(GPU, reservation="v1.k1.z", pod=PodRef("team-b", "infer-0", OTHER_UID))
    both = replace(held(), holders=(held().holders[0], other))
    static = dict.fromkeys((STATIC_UID, OTHER_UID), BoundPod(other.pod, NODE, None))
    node = node_of(process(), process(uid=STATIC_UID))
    found = stage(StageName.NVML, pod_document(), both, node=node, pod_of=static.get)
    assert found.state is StageState.REACHED
    found = stage(StageName.NVML, pod_document(), held(), node=node, pod_of=static.get)
    assert found.findings == (f"process 7 of pod team-b/infer-0 uses {GPU} too",)


def test_a_driver_that_does_not_list_processes() -> None:
    assert stage(StageName.NVML, pod_document(), held(), node=node_of(read=False)).state is (
        StageState.UNKNOWN
    )


def test_a_node_without_evidence_or_standing_says_so() -> None:
    silent = replace(node_of(), acceptance=None)
    for name in (StageName.KUBELET, StageName.NVML):
        assert stage(name, pod_document(), held(), node=silent).state is StageState.UNKNOWN
    banned = replace(node_of(process()), blocked=past(ReasonCode.NODE_DENIED))
    found = stage(StageName.NVML, pod_document(), held(), node=banned)
    assert found.state is StageState.REACHED
    assert "the node is revoked: this is the last that it proved" in found.findings


def test_a_pod_that_has_ended_and_still_runs() -> None:
    ended = pod_document(phase="Failed")
    found = told(ended, held(HolderState.RELEASING), node=node_of(process()))
    assert found.stages[1].findings[0] == "Releasing on gpu-1, by the binding webhook"
    assert "something of it still runs" in found.stages[4].findings[1]
    assert not found.is_wrong


def test_nothing_is_left_of_a_pod_that_has_ended() -> None:
    """Its GPU may be another pod's by now."""
    ended = pod_document(phase="Succeeded")
    found = told(ended, node=node_of(process(uid=OTHER_UID)))
    assert states(found) == [
        StageState.REACHED,
        StageState.OVER,
        StageState.REACHED,
        StageState.UNNEEDED,
        StageState.OVER,
    ]


def _real(one: Allocation) -> Allocation:
    return Allocation(one.namespace, one.pod, one.container, one.resource, _uuid(one.device))


@pytest.mark.parametrize("report_only", [False, True])
def test_in_report_only_mode_a_bound_pod_lacks_no_reservation(*, report_only: bool) -> None:
    """Nothing is reserved there, so nothing is missing."""
    found = told(pod_document(REQUIREMENT), node=node_of(process()), report_only=report_only)
    reserved = found.stages[1]
    if report_only:
        assert (reserved.state, found.is_wrong) == (StageState.UNNEEDED, False)
        assert reserved.findings == ("report-only: nothing is reserved",)
    else:
        assert (reserved.state, found.is_wrong) == (StageState.MISSING, True)


def test_in_report_only_mode_a_reservation_that_is_gone_is_still_missing() -> None:
    found = told(pod_document(), node=node_of(process()), report_only=True)
    assert (found.stages[1].state, found.is_wrong) == (StageState.MISSING, True)


def test_whose_process_it_is_stands_there_as_it_can_be_looked_up() -> None:
    exporter = BoundPod(PodRef("kube-system", "exporter-gpu-1", OTHER_UID), NODE, None)
    strange = node_of(process(), process(uid=OTHER_UID))
    found = told(pod_document(), held(), node=strange, pod_of={OTHER_UID: exporter}.get)
    assert found.stages[4].findings == (
        f"process 7 of pod kube-system/exporter-gpu-1 uses {GPU} too",
    )


def test_a_pod_of_another_node_is_not_named_for_a_process_here() -> None:
    elsewhere = BoundPod(PodRef("team-b", "infer-0", OTHER_UID), "another", None)
    strange = node_of(process(), process(uid=OTHER_UID))
    found = told(pod_document(), held(), node=strange, pod_of={OTHER_UID: elsewhere}.get)
    unknown = f"process 7 of pod UID {OTHER_UID} (no live pod of this node) uses {GPU} too"
    assert found.stages[4].findings == (unknown,)


def test_a_pod_that_ended_before_it_was_bound_waits_for_nothing() -> None:
    document = waiting_document()
    document["status"]["phase"] = "Failed"
    found = told(document)
    assert states(found)[1:] == [StageState.OVER] * 4
    assert found.stages[2].findings == (
        "it was bound to no node",
        "it has ended: Failed",
        "scheduler: Unschedulable: 0/3 nodes are available",
    )
    assert found.explanation is not None
    assert (found.explanation.passing, found.explanation.promise) == (0, None)


def test_in_report_only_mode_the_answer_that_did_not_count_is_said() -> None:
    refs = {"uid": UID, "node": NODE}
    made = line(7, GENESIS, kind="bind.decision", decision="reported", codes=["A", "B"], refs=refs)
    recent = Recent((decode_record(made.removesuffix(b"\n")),), MADE)
    document = pod_document(REQUIREMENT)
    found = stage(StageName.BOUND, document, recent=recent, report_only=True)
    text = "report-only: the binding webhook would have refused it with A, B: record 7"
    assert (found.state, found.findings) == (StageState.REACHED, ("node gpu-1", text))


@pytest.mark.parametrize("node", ["", NODE])
def test_how_a_pod_has_ended_is_said(node: str) -> None:
    document = pod_document(REQUIREMENT, node=node, phase="Failed", reason="Evicted", message="m")
    lines = stage(StageName.BOUND, document).findings
    assert "it has ended: Failed: Evicted: m" in lines
    succeeded = pod_document(REQUIREMENT, node=node, phase="Succeeded")
    assert "it has ended: Succeeded" in stage(StageName.BOUND, succeeded).findings
    assert not any("ended" in x for x in stage(StageName.BOUND, pod_document()).findings)


def test_a_pod_that_is_being_deleted_says_so() -> None:
    document = pod_document()
    document["metadata"]["deletionTimestamp"] = STARTED
    text = f"it is being deleted, and has to be gone by {STARTED}"
    assert text in stage(StageName.BOUND, document, held()).findings
    assert not any("deleted" in x for x in stage(StageName.BOUND, pod_document()).findings)
