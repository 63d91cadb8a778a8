"""Snapshots and decisions as protobuf messages: views in, messages out, nothing decided. Pure.

Absent facts become empty strings, as the protocol says. Times are shown, never compared. `now_ns`
is CLOCK_BOOTTIME of this controller, `wall_ns` its wall clock.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from msgspec.structs import astuple

from controller.admission.eviction import Evictions
from controller.explain.fit import PodFit
from controller.explain.pod import AllocationTrace
from controller.explain.stages import Stage
from controller.explain.status import gpu_health
from controller.fleet.enrollment import EnrolledGpu, QuarantineEntry
from controller.fleet.quarantine import EnrollmentChange, Shown, enrollment_changes
from controller.fleet.view import Acceptance, GpuView, NodeState, NodeView, PastRefusal
from controller.ledger.record import Holder, HolderState, ShareGroup, key_of
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.explanation import NodeFit, Rejection
from controller.placement.node_verdict import Promise
from controller.placement.requirements import RequirementsInvalid, describe
from gpuwarden.audit.record import LogRecord
from gpuwarden.evidence.use_rules import device_uuid
from gpuwarden.moment import NS_PER_MS, NS_PER_S, rfc3339
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2, placement_pb2

# --- nodes and GPUs

LabelsOf = Callable[[NodeView, GpuView], tuple[str, ...]]
"""Policy labels that hold for a GPU, sorted."""
PromiseOf = Callable[[NodeView], Promise | None]
"""The most that a node promises pods."""

_U32 = 2**32 - 1
_MAX_REFUSALS = 20

_CODE_OF_STATE = {
    NodeState.UNKNOWN: ReasonCode.NODE_NO_EVIDENCE,
    NodeState.STALE: ReasonCode.NODE_STALE,
}


def no_labels(_node: NodeView, _gpu: GpuView) -> tuple[str, ...]:
    """For answers in which labels play no part."""
    return ()


def no_promise(_node: NodeView) -> Promise | None:
    """For answers in which guarantees play no part."""
    return None


def node_message(
    node: NodeView,
    now_ns: int,
    labels_of: LabelsOf = no_labels,
    promise_of: PromiseOf = no_promise,
) -> fleet_pb2.Node:
    """One node with its GPUs as of `now_ns`."""
    state = node.state(now_ns)
    code, detail = _why(node, state)
    message = fleet_pb2.Node(
        name=node.name, state=state.value, code=code, detail=detail, mode=node.mode.value
    )
    message.warnings.extend(node.warnings)
    if node.acceptance is not None:
        _add_acceptance(message, node.acceptance)
        if state is NodeState.ELIGIBLE:
            message.fresh_for_ms = _remaining_ms(node.acceptance, now_ns)
            _add_promise(message, promise_of(node))
        message.gpus.extend(gpu_messages(node, labels_of))
    return message


def gpu_messages(node: NodeView, labels_of: LabelsOf = no_labels) -> list[fleet_pb2.Gpu]:
    """The GPUs of the last accepted evidence of `node`, in PCI bus order."""
    if node.acceptance is None:
        return []
    found = [_gpu_message(node, gpu, labels_of) for gpu in node.acceptance.gpus]
    for message in found:
        message.attestation_hash = node.acceptance.attestation_hash
        _add_use(message, node.acceptance)
    return found


def use_message(accepted: Acceptance | None) -> fleet_pb2.GpuUse | None:
    """Allocations and processes of the last accepted evidence."""
    if accepted is None:
        return None
    message = fleet_pb2.GpuUse(
        allocations_read=accepted.allocations is not None,
        processes_read=accepted.processes is not None,
    )
    message.allocations.extend(
        fleet_pb2.Allocation(
            namespace=one.namespace,
            pod=one.pod,
            container=one.container,
            resource=one.resource,
            device=one.device,
            uuid=device_uuid(one.device) or "",
        )
        for one in sorted(accepted.allocations or (), key=astuple)
    )
    message.processes.extend(
        fleet_pb2.GpuProcess(gpu=one.gpu, pid=one.pid, pod_uid=one.pod_uid or "")
        for one in sorted(accepted.processes or (), key=lambda x: (x.gpu, x.pid))
    )
    return message


def refusal_messages(refusals: Iterable[PastRefusal]) -> list[fleet_pb2.PastRefusal]:
    """Past refusals, newest first, as many as a person reads."""
    return [
        fleet_pb2.PastRefusal(
            at=rfc3339(refusal.wall_ns),
            code=refusal.code.value,
            detail=refusal.detail,
            step=refusal.step,
            count=min(refusal.count, _U32),
        )
        for refusal in tuple(refusals)[:_MAX_REFUSALS]
    ]


def _why(node: NodeView, state: NodeState) -> tuple[str, str]:
    if state is NodeState.ELIGIBLE:
        return "", ""
    if node.blocked is not None:
        return node.blocked.code.value, node.blocked.detail
    last = node.refusals[0] if node.refusals else None
    if state is NodeState.REFUSED and last is not None:
        return last.code.value, last.detail
    detail = f"last refusal: {last.code} {last.detail}".rstrip() if last else ""
    return _CODE_OF_STATE[state].value, detail


def _add_acceptance(message: fleet_pb2.Node, accepted: Acceptance) -> None:
    message.level = accepted.level.value
    message.attestation_hash = accepted.attestation_hash
    message.driver = accepted.host.driver or ""
    message.cuda = accepted.host.cuda or ""
    message.arch = accepted.host.arch
    message.cc = accepted.host.cc or ""
    message.system_uuid = accepted.host.system_uuid or ""
    message.gpu_count = len(accepted.gpus)
    message.lost_gpu_count = sum(gpu.lost is not None for gpu in accepted.gpus)
    message.products.extend(sorted({gpu.product for gpu in accepted.gpus if gpu.product}))
    message.evidence_digest = accepted.evidence_digest
    message.node_identity = accepted.identity_digest
    message.instance_id = accepted.instance_id
    message.boot_id = accepted.boot_id
    message.agent_version = accepted.agent_version
    message.accepted_at = rfc3339(accepted.accepted_wall_ns)
    message.warnings.extend(accepted.warnings)


def _add_promise(message: fleet_pb2.Node, promise: Promise | None) -> None:
    if promise is not None:
        message.guarantee = promise.guarantee.value
        message.guarantee_limit = "" if promise.limit is None else promise.limit.value


def _remaining_ms(accepted: Acceptance, now_ns: int) -> int:
    return min(max(accepted.fresh_until_ns - now_ns, 0) // NS_PER_MS, _U32)


def _gpu_message(node: NodeView, gpu: GpuView, labels_of: LabelsOf) -> fleet_pb2.Gpu:
    message = fleet_pb2.Gpu(
        node=node.name,
        index=gpu.index,
        uuid=gpu.uuid,
        serial=gpu.serial or "",
        board_part_number=gpu.board_part_number or "",
        product=gpu.product or "",
        pci_bus_id=gpu.pci_bus_id,
        pci=gpu.pci or "",
        subsystem=gpu.subsystem or "",
        vbios=gpu.vbios or "",
        gsp=gpu.gsp or "",
        memory_mib=gpu.memory_mib or 0,
        ecc=_on_off(gpu.ecc),
        mig=_on_off(gpu.mig),
        virt=gpu.virt or "",
        compute_capability=gpu.compute_capability or "",
        architecture=gpu.architecture or "",
        health=gpu_health(gpu),
        chassis_serial=gpu.chassis_serial or "",
        fabric=gpu.fabric_kind or "",
        compute_mode=gpu.compute_mode or "",
        persistence_mode=_on_off(gpu.persistence_mode),
        nvlinks_active=sum(link.active for link in gpu.nvlinks),
        nvlinks_total=len(gpu.nvlinks),
        module_id=-1 if gpu.module_id is None else gpu.module_id,
    )
    message.labels.extend(labels_of(node, gpu))
    message.mig_devices.extend(
        fleet_pb2.MigDevice(
            uuid=mig.uuid, profile=mig.profile or "", memory_mib=mig.memory_mib or 0
        )
        for mig in gpu.mig_devices
    )
    return message


def _add_use(message: fleet_pb2.Gpu, accepted: Acceptance) -> None:
    """Who uses the GPU or its MIG devices, by the node's word."""
    parts = {message.uuid, *(x.uuid for x in message.mig_devices)}
    message.process_count = sum(x.gpu in parts for x in accepted.processes or ())
    message.allocated_to.extend(
        sorted(
            {
                f"{x.namespace}/{x.pod}"
                for x in accepted.allocations or ()
                if device_uuid(x.device) in parts
            }
        )
    )


def _on_off(mode: bool | None) -> str:  # noqa: FBT001 - a value to render, not a switch
    return "" if mode is None else ("on" if mode else "off")


# --- enrollment


def enrollment_message(shown: Shown) -> fleet_pb2.Enrollment:
    """Everything that an operator judges by."""
    record, candidate = shown.record, shown.candidate
    message = fleet_pb2.Enrollment(
        gpus=[_enrolled_gpu_message(enrolled_gpu) for enrolled_gpu in record.gpus],
        node_uid=record.node_uid or "",
        spire_agent=record.spire_agent or "",
        version=shown.version,
        faults=[fleet_pb2.GpuFault(gpu=x.gpu, xid=x.xid) for x in shown.faults],
    )
    if record.lifted_ns is not None and record.lifted_by is not None:
        message.previous_quarantine_ended_by = record.lifted_by
        message.previous_quarantine_at = rfc3339(record.lifted_ns)
    if shown.denial is not None:
        message.denial.CopyFrom(_denial(shown.denial))
    if candidate is not None:
        message.candidate.CopyFrom(
            fleet_pb2.Candidate(
                code=candidate.code,
                evidence_digest=candidate.evidence_digest,
                changes=change_messages(enrollment_changes(shown)),
            )
        )
    return message


def change_messages(changes: Iterable[EnrollmentChange]) -> list[fleet_pb2.EnrollmentChange]:
    """The difference between enrolled GPUs and candidate, line by line."""
    return [
        fleet_pb2.EnrollmentChange(
            change=x.change.value, subject=x.subject, enrolled=x.enrolled, offered=x.offered
        )
        for x in changes
    ]


def _enrolled_gpu_message(enrolled_gpu: EnrolledGpu) -> fleet_pb2.EnrolledGpu:
    return fleet_pb2.EnrolledGpu(
        uuid=enrolled_gpu.uuid,
        serial=enrolled_gpu.serial or "",
        identity_key=enrolled_gpu.identity_key or "",
        pci_bus_id=enrolled_gpu.pci_bus_id or "",
        enrolled=enrolled_gpu.enrolled,
    )


def _denial(denial: QuarantineEntry) -> fleet_pb2.Denial:
    return fleet_pb2.Denial(
        code=denial.code, reason=denial.reason, actor=denial.actor, at=rfc3339(denial.wall_ns)
    )


# --- verdicts of /filter and /prioritize about a pod


def fit_message(pods: Sequence[PodFit]) -> fleet_pb2.FitPodResponse:
    """All verdicts about an object's pods, at least one; the first refused pod gives the code."""
    needs = pods[0].needs
    lines = () if isinstance(needs, RequirementsInvalid) else describe(needs)
    message = fleet_pb2.FitPodResponse(requirements=lines)
    message.warnings.extend(dict.fromkeys(text for pod in pods for text in pod.warnings))
    for pod in pods:
        refusals = _against(pod)
        message.managed |= bool(refusals) or pod.report is not None
        if refusals and not message.code:
            texts = (refusals[0].detail, *(f"{x.code} {x.detail}" for x in refusals[1:]))
            detail = "; ".join(texts)
            message.code = refusals[0].code
            message.detail = f"{pod.name}: {detail}" if pod.name else detail
        if pod.report is not None:
            message.fits.extend(_fit(fit, pod.name) for fit in pod.report.fits)
    return message


def _against(pod: PodFit) -> tuple[Refusal, ...]:
    if pod.refusals:
        return pod.refusals
    if isinstance(pod.needs, RequirementsInvalid):
        return (Refusal(ReasonCode.REQ_INVALID, pod.needs.detail()),)
    found = None if pod.report is None else pod.report.pod_refusal
    return () if found is None else (found,)


def unreadable_pod(error: str) -> fleet_pb2.FitPodResponse:
    """The bytes are no pod."""
    return fleet_pb2.FitPodResponse(managed=True, code=ReasonCode.REQ_INVALID, detail=error)


def _fit(fit: NodeFit, pod: str) -> fleet_pb2.Fit:
    message = fleet_pb2.Fit(node=fit.node, pod=pod)
    if fit.refusal is not None:
        message.code, message.detail = fit.refusal.code, fit.refusal.detail
        return message
    message.passes, message.score = True, fit.score
    if fit.promise is not None:
        message.guarantee = fit.promise.guarantee.value
        message.detail = limit_text(fit.promise)
    return message


def limit_text(promise: Promise) -> str:
    """Why no more is promised; empty where there is nothing to say."""
    return "" if promise.limit is None else f"no more is promised: {promise.limit}"


# --- reservations, in the order of their ids, so that equal ledgers give equal pages

MAX_RESERVATIONS: Final = 500
"""Reservations of one page."""
_ORDER: Final = tuple(HolderState)


@dataclass(frozen=True, slots=True)
class ReservationQuery:
    """Which reservations: those of a node, of a namespace, after an id; empty for all."""

    node: str = ""
    namespace: str = ""
    after: str = ""
    limit: int = MAX_RESERVATIONS


def reservation_page(
    ledger: LedgerSnapshot, wanted: ReservationQuery, wall_ns: int
) -> placement_pb2.ListReservationsResponse:
    """At most `limit` reservations, and where the next page begins."""
    ids = heapq.nsmallest(wanted.limit + 1, _ids(ledger, wanted))
    shown = ids[: wanted.limit]
    return placement_pb2.ListReservationsResponse(
        reservations=[reservation_message(ledger, x, wall_ns) for x in shown],
        next_after=shown[-1] if len(ids) > wanted.limit else "",
    )


def reservation_message(
    ledger: LedgerSnapshot, name: str, wall_ns: int
) -> placement_pb2.Reservation:
    """One reservation that the ledger has; raises IndexError for one that it has not."""
    entries = ledger.holding(name)
    held = {x.record.key: (x, part) for x in entries if (part := x.record.holder(name)) is not None}
    first, holder = next(iter(held.values()))
    states = [part.state for _, part in held.values()]
    made_at = min((x.made_at for x in entries if x.made_at), default="")
    return placement_pb2.Reservation(
        id=name,
        namespace=holder.pod.namespace,
        pod=holder.pod.name or "",
        uid=holder.pod.uid or "",
        node=first.record.node,
        gpus=[_reserved_gpu(x, held.get(key_of(x))) for x in holder.gpus],
        state=min(states, key=_ORDER.index).value,
        origin=holder.origin.value,
        made_at=made_at,
        age_s=_age_s(made_at, wall_ns),
        share_group=_share(first.record.share),
        restored=any(part.was_lost for _, part in held.values()),
    )


def _ids(ledger: LedgerSnapshot, wanted: ReservationQuery) -> Iterator[str]:
    for name in ledger.by_reservation:
        if name <= wanted.after:
            continue
        entry = ledger.holding(name)[0]
        holder = entry.record.holder(name)
        namespace = "" if holder is None else holder.pod.namespace
        if wanted.node in {"", entry.record.node} and wanted.namespace in {"", namespace}:
            yield name


def _reserved_gpu(uuid: str, held: tuple[Entry, Holder] | None) -> placement_pb2.ReservedGpu:
    if held is None:
        return placement_pb2.ReservedGpu(uuid=uuid)
    entry, part = held
    return placement_pb2.ReservedGpu(
        uuid=entry.record.gpu, state=part.state.value, holders=len(entry.record.holders)
    )


def _share(share: ShareGroup | None) -> str:
    return "" if share is None else share.entry


def _age_s(made_at: str, wall_ns: int) -> int:
    """0 where it is not known, or not past by this clock."""
    try:
        made_s = datetime.fromisoformat(made_at).timestamp()
    except ValueError:
        return 0
    return min(max(wall_ns // NS_PER_S - int(made_s), 0), _U32)


# --- pods that the taint of managed nodes evicts, in the order of their keys


def eviction_page(
    found: Evictions, after: str, limit: int
) -> placement_pb2.CheckProtectionResponse:
    """At most `limit` pods behind the key `after`, and where the next page begins."""
    left = (pod for pod in found.pods if pod.key > after)
    first = heapq.nsmallest(limit + 1, left, key=lambda x: x.key)
    shown = first[:limit]
    return placement_pb2.CheckProtectionResponse(
        nodes=found.nodes,
        pods=[
            placement_pb2.EvictedPod(
                node=x.node, namespace=x.namespace, name=x.name, after_s=min(x.after_s, _U32)
            )
            for x in shown
        ],
        next_after=shown[-1].key if len(first) > limit else "",
    )


# --- allocation trace of one pod

_LISTED: Final = 64
"""GPUs of one record, and earlier reservations of one name."""


def trace_message(account: AllocationTrace, wall_ns: int) -> placement_pb2.ExplainPodResponse:
    """All of it; `wall_ns` for ages."""
    case, found = account.case, account.explanation
    message = placement_pb2.ExplainPodResponse(
        namespace=case.namespace,
        name=case.name,
        uid=case.uid,
        phase="" if case.pod is None else case.pod.phase or "Unknown",
        managed=case.managed,
        stages=map(_stage, account.stages),
        wrong=account.is_wrong,
        guarantee_given=account.given,
        records=map(_record, account.recent.records),
        records_since=account.recent.since,
        earlier=_earlier(account, wall_ns),
        report_only=case.report_only,
    )
    if found is not None:
        if found.refusal is not None:
            message.code, message.detail = found.refusal.code, found.refusal.detail
        message.passing = found.passing
        message.passing_nodes.extend(found.examples)
        message.rejections.extend(map(_rejection, found.rejections))
        if found.promise is not None:
            message.guarantee = found.promise.guarantee
            message.guarantee_limit = found.promise.limit or ""
    return message


def _stage(one: Stage) -> placement_pb2.Stage:
    return placement_pb2.Stage(
        name=one.name,
        state=one.state,
        at=one.at,
        source=one.source,
        evidence_digest=one.evidence,
        gpus=one.gpus,
        findings=one.findings,
    )


def _rejection(one: Rejection) -> placement_pb2.Rejection:
    return placement_pb2.Rejection(
        code=one.code, detail=one.detail, count=one.count, nodes=one.nodes
    )


def _record(one: LogRecord) -> placement_pb2.PodRecord:
    gpus, node, uid = one.refs.get("gpus"), one.refs.get("node"), one.refs.get("uid")
    return placement_pb2.PodRecord(
        seq=one.seq,
        at=one.ts,
        kind=one.kind,
        decision=one.decision,
        codes=one.codes,
        node=node if isinstance(node, str) else "",
        gpus=[x for x in gpus[:_LISTED] if isinstance(x, str)] if isinstance(gpus, list) else (),
        uid=uid if isinstance(uid, str) else "",
    )


def _earlier(account: AllocationTrace, wall_ns: int) -> list[placement_pb2.Reservation]:
    ledger = LedgerSnapshot.of(entry for entry, _ in account.others)
    names = sorted({holder.reservation for _, holder in account.others})
    return [reservation_message(ledger, x, wall_ns) for x in names[:_LISTED]]
