from dataclasses import replace
from typing import Any

import pytest

from controller.explain.fit import PodFit
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState, Origin, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from controller.messages import (
    ReservationQuery,
    fit_message,
    gpu_messages,
    node_message,
    refusal_messages,
    reservation_page,
    trace_message,
    unreadable_pod,
    use_message,
)
from controller.placement.explanation import FitReport, NodeFit
from controller.placement.node_verdict import Limit, Promise
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.policy import Level
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import decode_record
from gpuwarden.evidence.model import Allocation, GpuProcess, LostGpu, MigDevice, NvLink
from gpuwarden.finding import Finding
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.builders.accounts import (
    GPU,
    MADE,
    OTHER_GPU,
    OTHER_UID,
    SCHEDULED,
    UID,
    account,
    held,
    node_of,
    pod_document,
    process,
    waiting_document,
)
from tests.builders.audit_log import GENESIS, line
from tests.builders.inventory import gpu_uuid, mig_uuid
from tests.builders.ledger import OTHER_POD, SHARE, holder, record
from tests.builders.node_views import S, acceptance, gpu_view, node_view, past_refusal


def test_an_eligible_node_with_all_its_facts() -> None:
    message = node_message(node_view(warnings=("clock off by 31 s",)), 40 * S)
    assert (message.name, message.state, message.code, message.detail) == (
        "gpu-1",
        "eligible",
        "",
        "",
    )
    assert (message.level, message.fresh_for_ms, message.mode) == ("L0", 60_000, "env")
    assert (message.driver, message.cuda, message.arch, message.cc) == (
        "570.86.10",
        "12.8",
        "x86_64",
        "off",
    )
    assert (message.gpu_count, message.lost_gpu_count) == (2, 0)
    assert list(message.products) == ["NVIDIA H100 80GB HBM3"]
    assert message.accepted_at == "2023-11-14T22:13:20.123Z"
    assert list(message.warnings) == ["clock off by 31 s"]
    assert message.evidence_digest == "e" * 64
    assert message.node_identity == "i" * 64


@pytest.mark.parametrize(
    ("node", "now", "state", "code", "detail"),
    [
        (node_view(), 100 * S, "stale", "NODE_STALE", ""),
        (
            node_view(refusals=(past_refusal(ReasonCode.CLOCK_SKEW, "off by 400 s"),)),
            100 * S,
            "stale",
            "NODE_STALE",
            "last refusal: CLOCK_SKEW off by 400 s",
        ),
        (node_view(acceptance=None), 0, "unknown", "NODE_NO_EVIDENCE", ""),
        (
            node_view(acceptance=None, refusals=(past_refusal(ReasonCode.SIG_INVALID, "bad"),)),
            0,
            "refused",
            "SIG_INVALID",
            "bad",
        ),
        (
            node_view(blocked=past_refusal(ReasonCode.GPU_CLAIMED_TWICE, "GPU-1")),
            0,
            "revoked",
            "GPU_CLAIMED_TWICE",
            "GPU-1",
        ),
        (
            node_view(blocked=past_refusal(ReasonCode.INVENTORY_CHANGED, "new GPU")),
            0,
            "quarantined",
            "INVENTORY_CHANGED",
            "new GPU",
        ),
        (
            node_view(refusals=(past_refusal(ReasonCode.CLOCK_SKEW),)),
            0,
            "eligible",
            "",
            "",
        ),
    ],
)
def test_state_code_and_detail(
    node: NodeView, now: int, state: str, code: str, detail: str
) -> None:
    message = node_message(node, now)
    assert (message.state, message.code, message.detail) == (state, code, detail)
    assert (message.fresh_for_ms > 0) == (state == "eligible")


@pytest.mark.parametrize(
    ("now", "promise", "shown"),
    [
        (10, Promise(Guarantee.EXACT), ("exact", "")),
        (10, Promise(Guarantee.NODE, Limit.PROTECTION_OFF), ("node", "protection is off")),
        (10, None, ("", "")),
        (10**12, Promise(Guarantee.EXACT), ("", "")),
    ],
    ids=["exact", "limited", "not asked", "stale"],
)
def test_what_an_eligible_node_promises(
    now: int, promise: Promise | None, shown: tuple[str, str]
) -> None:
    message = node_message(node_view(), now, promise_of=lambda _node: promise)
    assert (message.guarantee, message.guarantee_limit) == shown


def test_a_node_without_evidence_shows_no_facts() -> None:
    message = node_message(node_view(acceptance=None), 0)
    assert (message.level, message.attestation_hash, message.accepted_at) == ("", "", "")
    assert gpu_messages(node_view(acceptance=None)) == []


def test_absent_facts_are_empty() -> None:
    bare = gpu_view(
        serial=None,
        board_part_number=None,
        product=None,
        pci=None,
        subsystem=None,
        vbios=None,
        gsp=None,
        memory_mib=None,
        ecc=None,
        mig=None,
        virt=None,
        compute_capability=None,
        architecture=None,
        compute_mode=None,
        persistence_mode=None,
        fabric_kind=None,
    )
    node = node_view(acceptance=acceptance(gpus=(bare,)))
    (message,) = gpu_messages(node)
    assert (message.serial, message.ecc, message.mig, message.persistence_mode) == ("",) * 4
    assert (message.memory_mib, message.module_id, message.health) == (0, -1, "ok")
    assert list(node_message(node, 0).products) == []


def test_who_uses_a_gpu_is_told_with_its_mig_devices() -> None:
    migs = (MigDevice(uuid=mig_uuid(1), profile="1g.10gb", memory_mib=9728),)
    held = {"namespace": "team-a", "container": "main", "resource": "nvidia.com/gpu"}
    node = node_view(
        acceptance=acceptance(
            gpus=(gpu_view(0, uuid=gpu_uuid(1), mig_devices=migs), gpu_view(1, uuid=gpu_uuid(2))),
            processes=(
                GpuProcess(gpu=gpu_uuid(1), pid=1, pod_uid=None),
                GpuProcess(gpu=mig_uuid(1), pid=2, pod_uid=None),
                GpuProcess(gpu=gpu_uuid(3), pid=3, pod_uid=None),
            ),
            allocations=(
                Allocation(pod="b", device=mig_uuid(1), **held),
                Allocation(pod="a", device=f"{gpu_uuid(1)}::0", **held),
                Allocation(pod="a", device=gpu_uuid(1), **held),
                Allocation(pod="c", device="nvidia0", **held),
            ),
        )
    )
    first, second = gpu_messages(node)
    assert (first.process_count, list(first.allocated_to)) == (2, ["team-a/a", "team-a/b"])
    assert (second.process_count, list(second.allocated_to)) == (0, [])


def test_gpu_facts_lost_unhealthy_mig_links_and_labels() -> None:
    lost = LostGpu(uuid="GPU-x", index=1, pci_bus_id="00000000:01:00.0", error="GPU_IS_LOST")
    gpus = (
        gpu_view(
            0,
            mig=True,
            mig_devices=(MigDevice(uuid="MIG-1", profile="1g.10gb", memory_mib=9728),),
            nvlinks=(
                NvLink(link=0, active=True, peer=None),
                NvLink(link=1, active=False, peer="x"),
            ),
            module_id=3,
        ),
        gpu_view(1, lost=lost),
        gpu_view(2, unhealthy="xid 79", ecc=False),
    )
    node = node_view(acceptance=acceptance(gpus=gpus))
    message = node_message(node, 0, lambda _node, gpu: (f"gpu-{gpu.index}",))
    assert [gpu.health for gpu in message.gpus] == ["ok", "lost", "unhealthy"]
    assert message.lost_gpu_count == 1
    first = message.gpus[0]
    assert (first.mig, first.nvlinks_active, first.nvlinks_total, first.module_id) == (
        "on",
        1,
        2,
        3,
    )
    assert [(mig.uuid, mig.profile, mig.memory_mib) for mig in first.mig_devices] == [
        ("MIG-1", "1g.10gb", 9728)
    ]
    assert [list(gpu.labels) for gpu in message.gpus] == [["gpu-0"], ["gpu-1"], ["gpu-2"]]
    assert message.gpus[2].ecc == "off"


def test_refusals_are_bounded_and_keep_their_order() -> None:
    many = [past_refusal(ReasonCode.SIG_INVALID, str(number), 2**40) for number in range(30)]
    messages = refusal_messages(many)
    assert [message.detail for message in messages] == [str(number) for number in range(20)]
    assert messages[0].count == 2**32 - 1
    assert (messages[0].step, messages[0].at) == (13, "2023-11-14T22:13:20.000Z")


def test_a_lease_longer_than_the_field_is_capped() -> None:
    node = node_view(acceptance=replace(acceptance(), fresh_until_ns=2**62))
    assert node_message(node, 0).fresh_for_ms == 2**32 - 1


def test_use_is_sorted_and_names_hardware() -> None:
    held = [
        Allocation("b", "job", "main", "nvidia.com/gpu", f"{gpu_uuid(1)}::3"),
        Allocation("a", "job", "main", "gpu.nvidia.com", "node-1/gpu-0"),
    ]
    pids = (GpuProcess(gpu_uuid(2), 7, None), GpuProcess(gpu_uuid(1), 9, "uid"))
    accepted = replace(acceptance(), allocations=tuple(held), processes=pids)
    message = use_message(accepted)
    assert message is not None
    assert (message.allocations_read, message.processes_read) == (True, True)
    assert [(x.namespace, x.device, x.uuid) for x in message.allocations] == [
        ("a", "node-1/gpu-0", ""),
        ("b", f"{gpu_uuid(1)}::3", gpu_uuid(1)),
    ]
    assert [(x.gpu, x.pid, x.pod_uid) for x in message.processes] == [
        (gpu_uuid(1), 9, "uid"),
        (gpu_uuid(2), 7, ""),
    ]


def test_use_that_was_not_read_is_not_none() -> None:
    assert use_message(None) is None
    unread = use_message(acceptance())
    assert unread is not None
    assert (unread.allocations_read, unread.processes_read) == (False, False)
    empty = use_message(replace(acceptance(), allocations=(), processes=()))
    assert empty is not None
    assert (empty.allocations_read, empty.processes_read) == (True, True)


NEEDS = Requirements(managed=True, min_level=Level.L1, count=2)


def pod_fit(
    needs: Requirements | RequirementsInvalid,
    report: FitReport | None,
    *refusals: Refusal,
    name: str = "",
    warnings: tuple[str, ...] = (),
) -> PodFit:
    return PodFit(name, needs, refusals, warnings, report)


def test_an_unmanaged_pod_has_no_verdicts() -> None:
    message = fit_message([pod_fit(Requirements(), None)])
    assert (message.managed, message.code, list(message.fits)) == (False, "", [])


def test_a_pod_that_admission_refuses_has_all_its_reasons_and_warnings() -> None:
    refusals = (
        Refusal(ReasonCode.BYPASS_HOST_PID, "hostPID is set"),
        Refusal(ReasonCode.BYPASS_PRIVILEGED, "container main is privileged"),
    )
    message = fit_message([pod_fit(Requirements(), None, *refusals, warnings=("a", "b"))])
    assert (message.managed, message.code) == (True, "BYPASS_HOST_PID")
    assert message.detail == ("hostPID is set; BYPASS_PRIVILEGED container main is privileged")
    assert list(message.warnings) == ["a", "b"]
    invalid = RequirementsInvalid((Finding("k", "v", "x"),))
    refused = Refusal(ReasonCode.BYPASS_ANNOTATION, "copied")
    message = fit_message([pod_fit(invalid, None, refused)])
    assert (message.code, message.detail) == ("BYPASS_ANNOTATION", "copied")


def test_the_pods_of_a_map_are_told_apart() -> None:
    fits = (NodeFit("a", None, 7, Promise(Guarantee.EXACT)),)
    busy = (NodeFit("b", Refusal(ReasonCode.GPU_BUSY, "too few"), 0, None),)
    pods = [
        pod_fit(NEEDS, FitReport(fits, {}, None), name="web-0", warnings=("w",)),
        pod_fit(NEEDS, FitReport(busy, {}, None), name="web-1", warnings=("w", "v")),
    ]
    message = fit_message(pods)
    assert [(x.pod, x.node, x.passes) for x in message.fits] == [
        ("web-0", "a", True),
        ("web-1", "b", False),
    ]
    assert (message.managed, message.code, list(message.warnings)) == (True, "", ["w", "v"])
    gone = (Refusal(ReasonCode.REQ_INVALID, "no line"), Refusal(ReasonCode.BYPASS_ENV, "more"))
    later = (Refusal(ReasonCode.BYPASS_HOST_PID, "never shown"),)
    message = fit_message(
        [*pods, pod_fit(NEEDS, None, *gone, name="web-2"), pod_fit(NEEDS, None, *later, name="w")]
    )
    assert (message.code, message.detail) == ("REQ_INVALID", "web-2: no line; BYPASS_ENV more")


def test_every_node_with_its_verdict() -> None:
    report = FitReport(
        (
            NodeFit("a", None, 7, Promise(Guarantee.EXACT)),
            NodeFit("b", Refusal(ReasonCode.GPU_BUSY, "too few"), 0, None),
            NodeFit("c", None, 1, Promise(Guarantee.NODE, Limit.NO_TAINT)),
        ),
        {ReasonCode.GPU_BUSY: 1},
        None,
    )
    message = fit_message([pod_fit(NEEDS, report)])
    assert message.managed
    assert list(message.requirements) == ["evidence level: L1 or higher", "number of GPUs: 2"]
    assert [(fit.node, fit.passes, fit.code, fit.score, fit.guarantee) for fit in message.fits] == [
        ("a", True, "", 7, "exact"),
        ("b", False, "GPU_BUSY", 0, ""),
        ("c", True, "", 1, "node"),
    ]
    assert [fit.detail for fit in message.fits] == [
        "",
        "too few",
        "no more is promised: the node lacks the taint gpuwarden.dev/managed:NoExecute",
    ]


def test_a_pod_whose_requirements_cannot_be_read() -> None:
    invalid = RequirementsInvalid((Finding("gpuwarden.dev/min-level", "L9", "L0 to L3"),))
    report = FitReport((), {}, Refusal(ReasonCode.REQ_INVALID, "the same in other words"))
    message = fit_message([pod_fit(invalid, report)])
    assert (message.managed, message.code) == (True, "REQ_INVALID")
    assert "gpuwarden.dev/min-level" in message.detail


def test_a_pod_that_is_refused_as_a_whole() -> None:
    report = FitReport((), {}, Refusal(ReasonCode.CLASS_UNKNOWN, "no class gold"))
    message = fit_message([pod_fit(NEEDS, report)])
    assert (message.code, message.detail) == ("CLASS_UNKNOWN", "no class gold")


def test_bytes_that_are_no_pod() -> None:
    message = unreadable_pod("not a Pod: x")
    assert (message.managed, message.code, message.detail) == (True, "REQ_INVALID", "not a Pod: x")


# --- Accounts of pods as messages

WALL_NS = 1_800_000_000 * 1_000_000_000


def told(*args: Any, **more: Any) -> pb.ExplainPodResponse:
    found = account(*args, **more)
    assert found is not None
    return trace_message(found, WALL_NS)


def test_a_bound_pod() -> None:
    found = told(pod_document(), held(), node=node_of(process()))
    assert (found.namespace, found.name, found.uid, found.phase) == (
        "team-a",
        "train-0",
        UID,
        "Running",
    )
    assert found.managed
    assert not found.wrong
    assert found.stages[2] == pb.Stage(
        name="bound",
        state="reached",
        at=SCHEDULED,
        source="pod, by the API server",
        gpus=[GPU],
        findings=["node gpu-1", "gpuwarden issued its reservation id for this pod, node and GPUs"],
    )
    assert found.stages[4].evidence_digest == "e" * 64
    assert (found.guarantee_given, found.guarantee, found.guarantee_limit) == (
        "node",
        "node",
        "protection is off",
    )
    assert not found.rejections


def test_a_waiting_pod_says_which_nodes_reject_it_and_why() -> None:
    stale = replace(node_of(), acceptance=None)
    found = told(waiting_document(), node=stale)
    assert (found.passing, list(found.passing_nodes)) == (0, [])
    (rejection,) = found.rejections
    assert (rejection.code, rejection.count, list(rejection.nodes)) == (
        "NODE_NO_EVIDENCE",
        1,
        ["gpu-1"],
    )
    assert rejection.detail
    assert (found.guarantee, found.guarantee_limit) == ("", "")


def test_a_waiting_pod_that_could_go_somewhere() -> None:
    found = told(waiting_document())
    assert (found.passing, list(found.passing_nodes), found.guarantee) == (1, ["gpu-1"], "node")


def test_a_pod_that_is_refused_itself() -> None:
    broken = waiting_document()
    broken["metadata"]["annotations"] = {"gpuwarden.dev/min-level": "L9"}
    found = told(broken)
    assert found.code == "REQ_INVALID"
    assert "gpuwarden.dev/min-level" in found.detail
    assert found.wrong


def test_a_pod_that_is_gone_has_its_records_and_what_others_hold() -> None:
    refs = {"uid": UID, "node": "gpu-1", "gpus": [GPU, 7]}
    one = line(5, GENESIS, kind="bind.decision", decision="allowed", codes=["X"], refs=refs)
    odd = line(6, GENESIS, refs={"uid": None, "gpus": "none"})
    records = tuple(decode_record(x.removesuffix(b"\n")) for x in (one, odd))
    earlier = held(HolderState.RELEASING, OTHER_GPU, OTHER_UID, reservation="v1.k1.a")
    found = told(None, held(), earlier, recent=Recent(records, "2026-03-01T12:00:00.000Z"))
    assert (found.phase, found.managed, found.uid) == ("", False, UID)
    assert list(found.records) == [
        pb.PodRecord(
            seq=5,
            at="2026-03-01T12:00:00.000Z",
            kind="bind.decision",
            decision="allowed",
            codes=["X"],
            node="gpu-1",
            gpus=[GPU],
            uid=UID,
        ),
        pb.PodRecord(seq=6, at="2026-03-01T12:00:00.000Z", kind="node.state", decision="eligible"),
    ]
    assert [(x.id, x.made_at) for x in found.earlier] == [("v1.k1.a", MADE)]


# --- Reservations of a ledger as messages, page by page

MADE_AT = "2027-01-15T07:58:20Z"
"""100 s before."""


def ledger(*records: GpuRecord, made_at: str = MADE_AT) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1", made_at) for x in records)


def listed(here: LedgerSnapshot, **wanted: object) -> pb.ListReservationsResponse:
    return reservation_page(here, replace(ReservationQuery(), **wanted), WALL_NS)  # type: ignore[arg-type] # fields of ReservationQuery


def names(page: pb.ListReservationsResponse) -> list[str]:
    return [x.id for x in page.reservations]


def pods(count: int) -> list[GpuRecord]:
    refs = [PodRef("team-a", f"p{n}", f"uid-{n}") for n in range(count)]
    return [
        replace(record(holder(f"GPU-{n}", pod=x), gpu=f"GPU-{n}"), node=f"gpu-{n % 2}")
        for n, x in enumerate(refs)
    ]


def test_a_reservation_says_who_what_where_since_when() -> None:
    part = holder("GPU-a", "GPU-b", state=HolderState.CONFIRMED, origin=Origin.ADMISSION)
    young = replace(part, state=HolderState.PROPOSED)
    here = LedgerSnapshot.of(
        (
            Entry(record(part), "1", MADE_AT),
            Entry(record(young, gpu="GPU-b"), "1", "2027-01-15T07:59:00Z"),
        )
    )
    (found,) = listed(here).reservations
    assert found == pb.Reservation(
        id="v1.k.uid-0",
        namespace="team-a",
        pod="train-0",
        uid="uid-0",
        node="gpu-1",
        gpus=[
            pb.ReservedGpu(uuid="GPU-a", state="Confirmed", holders=1),
            pb.ReservedGpu(uuid="GPU-b", state="Proposed", holders=1),
        ],
        state="Proposed",
        origin="admission",
        made_at=MADE_AT,
        age_s=100,
    )


def test_pods_of_a_share_group_are_two_reservations_of_one_gpu() -> None:
    both = record(holder(), holder(pod=OTHER_POD, restored=True), share=SHARE)
    first, second = listed(ledger(both)).reservations
    assert (first.pod, second.pod) == ("train-0", "train-1")
    assert [x.gpus[0].holders for x in (first, second)] == [2, 2]
    assert {first.share_group, second.share_group} == {"gpu-1:0"}
    assert (first.restored, second.restored) == (False, True)


def test_a_reservation_that_kubelet_made_is_not_called_restored() -> None:
    """Its record is always written for a pod that runs."""
    (found,) = listed(ledger(record(holder(origin=Origin.KUBELET, restored=True)))).reservations
    assert (found.origin, found.restored) == ("kubelet", False)


def test_a_gpu_without_its_record_is_shown_without_a_state() -> None:
    (found,) = listed(ledger(record(holder("GPU-a", "GPU-b")))).reservations
    assert [(x.uuid, x.state) for x in found.gpus] == [("GPU-a", "Proposed"), ("GPU-b", "")]


def test_an_unborn_pod_has_no_name() -> None:
    unborn = holder(pod=PodRef("team-a", owner="o"), reservation="v1.k.n")
    (found,) = listed(ledger(record(unborn))).reservations
    assert (found.namespace, found.pod, found.uid) == ("team-a", "", "")


def test_pages_are_in_order_and_whole() -> None:
    here, after, found = ledger(*reversed(pods(7))), "", list[list[str]]()
    while True:
        page = listed(here, after=after, limit=3)
        found.append(names(page))
        after = page.next_after
        if not after:
            break
    assert [len(x) for x in found] == [3, 3, 1]
    assert [x for page in found for x in page] == sorted(f"v1.k.uid-{n}" for n in range(7))


def test_a_node_s_and_a_namespace_s_alone() -> None:
    foreign = PodRef("team-b", "x", "uid-9")
    here = ledger(*pods(4), replace(record(holder(pod=foreign)), node="gpu-9"))
    assert names(listed(here, node="gpu-1")) == ["v1.k.uid-1", "v1.k.uid-3"]
    assert len(names(listed(here, namespace="team-a"))) == 4
    assert names(listed(here, namespace="team-c")) == []
    assert listed(here, node="gpu-0", limit=1).next_after != ""
    assert listed(here, node="gpu-0", limit=2).next_after == ""


def test_a_store_without_times_says_none() -> None:
    for made_at in ("", "soon", "2027-01-15T08:00:01Z"):
        (found,) = listed(ledger(record(), made_at=made_at)).reservations
        assert (found.made_at, found.age_s) == (made_at, 0)
