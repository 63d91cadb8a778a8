"""Judges one message of an agent and carries the judgement out: enrollment, audit, fleet.

The order is: appraise; write the enrollment and appraise again; wait for the audit record of a
grant; appraise once more, because waiting takes time; only then swap the node's record. Refusals
and failure notices reach the fleet at once and wait for nothing. Must not talk to the peer.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from controller.fleet.attestation_result import (
    Accepted,
    EnrollmentChange,
    FailureNoticeAccepted,
    Refused,
    StreamState,
    refused,
)
from controller.fleet.enrollment import (
    AUTOMATIC,
    EnrollmentRecord,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
    write,
)
from controller.fleet.faults import Fault, reported
from controller.fleet.quarantine import QuarantineEntries
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind, TrustChange
from controller.policy import Consequence
from controller.record import AuditLog, AuditUnavailableError, Json, Record
from controller.verifier.challenge import IssuedChallenge
from controller.verifier.context import ReceivedMessage, Snapshots
from controller.verifier.verifier import Verifier
from gpuwarden.audit.archived_evidence import ArchivedEvidence
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.inventory_rules import is_gpu_uuid
from gpuwarden.evidence.model import Failure
from gpuwarden.moment import Moment
from gpuwarden.reasons import Effect, ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span

_MAX_DETAIL: Final = 300
_MAX_RACES: Final = 8
_GRANT_SECONDS: Final = 10.0

Result = Accepted | FailureNoticeAccepted | Refused
Changes = tuple[TrustChange, ...]


class AppraisalObserver(Protocol):
    """Takes note of every result, for metrics and logs. Must return at once.

    The recorder that implements it is above this layer.
    """

    def appraised(self, result: Result, *, grant: bool, seconds: float) -> None:
        """`seconds` is the time of the first appraisal, audit excluded."""

    def changed(self, changes: Changes, actor: str) -> None:
        """What followed for the fleet; `actor` caused it."""


class EvidenceIntake:
    """Judges messages and carries the judgement out; one for all streams."""

    def __init__(
        self,
        *,
        verifier: Verifier,
        store: EnrollmentStore,
        denials: QuarantineEntries,
        registry: FleetRegistry,
        audit: AuditLog,
        known: Callable[[], Snapshots],
        now: Callable[[], Moment],
        observer: AppraisalObserver,
    ) -> None:
        self._verifier = verifier
        self._store = store
        self._denials = denials
        self._registry = registry
        self._audit = audit
        self._known = known
        self._now = now
        self._observer = observer

    async def take(
        self, stream: StreamState, message: ReceivedMessage, issued: IssuedChallenge | Refusal
    ) -> Result:
        """Steps 4 to 20 for one message; the registry has it when this returns."""
        asked = stream

        def appraise(known: Snapshots, now: Moment) -> Result:
            nonlocal asked
            with span(Span.VERIFY, node=stream.node):
                found = self._verifier.appraise_message(
                    asked, message, issued, known=known, now=now
                )
            if isinstance(found, Accepted) and found.stream.appraised is not asked.appraised:
                asked = replace(stream, appraised=found.stream.appraised)
            return found

        def again() -> Result:
            return appraise(self._known(), self._now())

        known, now = self._known(), self._now()
        archived_evidence = _archived_evidence(stream, message, known, now)
        begin = time.perf_counter()
        result = appraise(known, now)
        seconds = time.perf_counter() - begin
        grant = False
        if isinstance(result, Accepted):
            result = await self._enroll(result, again, archived_evidence)
        times = self._times()
        if isinstance(result, Accepted):
            grant = self._registry.needs_grant(result, times[0])
            if grant:
                result = await self._grant(result, stream, again, archived_evidence)
                times = self._times()
        with span(Span.SWAP, code=_code(result)):
            result = await self._carry_out(result, stream, archived_evidence, times, grant=grant)
        self._observer.appraised(result, grant=grant, seconds=seconds)
        return result

    async def refuse(self, refusal: Refused, peer: str) -> None:
        """Carry out a refusal that no message caused (a stream that is not admitted)."""
        self._refuse(refusal, peer)
        await self._deny(refusal)
        self._observer.appraised(refusal, grant=False, seconds=0.0)

    async def _enroll(
        self,
        result: Result,
        appraise: Callable[[], Result],
        archived_evidence: ArchivedEvidence,
    ) -> Result:
        """Write the enrollment that is needed, and appraise again by what the store holds then."""
        for _ in range(_MAX_RACES):
            if not isinstance(result, Accepted) or result.enrollment is None:
                return result
            change = result.enrollment
            try:
                is_written = await write(self._store, change.old, change.new)
            except EnrollmentUnavailableError as error:
                return _stale(result, str(error))
            record = completed_record(change, result, archived_evidence) if is_written else None
            if record is not None:
                self._audit.note(record)
            result = appraise()
        if isinstance(result, Accepted) and result.enrollment is not None:
            return _stale(result, "the node's enrolment changes faster than it can be written")
        return result

    async def _grant(
        self,
        result: Accepted,
        stream: StreamState,
        appraise: Callable[[], Result],
        archived_evidence: ArchivedEvidence,
    ) -> Result:
        try:
            with span(Span.AUDIT_GRANT, node=result.node):
                async with asyncio.timeout(_GRANT_SECONDS):
                    await self._audit.grant(accepted_record(result, stream, archived_evidence))
        except (AuditUnavailableError, TimeoutError) as error:
            refusal = refused(Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error)), result.node)
            return replace(refusal, stream=result.stream)
        again = appraise()
        if isinstance(again, Accepted) and again.enrollment is not None:
            return _stale(again, "the node's enrolment changed while its grant was written")
        return again

    async def _carry_out(
        self,
        result: Result,
        stream: StreamState,
        archived_evidence: ArchivedEvidence,
        times: tuple[int, int],
        *,
        grant: bool,
    ) -> Result:
        now_ns, wall_ns = times
        peer = str(stream.peer)
        match result:
            case Accepted():
                changes = self._registry.accept(result, now_ns=now_ns, wall_ns=wall_ns)
                self._observer.changed(changes, peer)
                if any(change.kind is ChangeKind.OUTDATED for change in changes):
                    outdated = _outdated(result)
                    # The log may have its grant already: it must not end with that.
                    self._audit.note(refused_record(outdated, peer, archived_evidence))
                    return outdated
                if not grant:
                    self._audit.note(round_record(result, stream, archived_evidence))
            case FailureNoticeAccepted():
                changes = self._registry.failure_notice(result, now_ns=now_ns, wall_ns=wall_ns)
                self._observer.changed(changes, peer)
                for failure in result.failures:
                    consequence = self._registry.consequence(failure)
                    self._audit.note(
                        failure_record(result, failure, consequence, stream, archived_evidence)
                    )
                return await self._hold(result, stream.hello.boot_id)
            case Refused():
                self._refuse(result, peer, archived_evidence)
                await self._deny(result)
        return result

    async def _hold(
        self, notice: FailureNoticeAccepted, boot_id: str
    ) -> FailureNoticeAccepted | Refused:
        """Write the faults into the enrollment, from where only their end removes them.

        A notice that could not be written is not acknowledged, so that the agent sends it again.
        """
        for _ in range(_MAX_RACES):
            old = self._store.snapshot().records.get(notice.node)
            record = old or EnrollmentRecord(notice.node)
            new = replace(record, faults=self._faults(record, notice, boot_id))
            if new == record or notice.node not in self._known().directory.nodes:
                return notice
            try:
                if await write(self._store, old, new):
                    return notice
            except EnrollmentUnavailableError as error:
                return _stale(notice, str(error))
        return _stale(notice, "the node's enrollment changes faster than it can be written")

    def _faults(
        self, record: EnrollmentRecord, notice: FailureNoticeAccepted, boot_id: str
    ) -> tuple[Fault, ...]:
        faults = record.faults
        for x in notice.failures:
            is_held = self._registry.consequence(x) is not Consequence.NONE
            if x.xid is not None and is_held and x.gpu is not None and is_gpu_uuid(x.gpu):
                faults = reported(faults, x.gpu, x.xid, boot_id, int(x.happened_ms))
        return faults

    def _refuse(
        self, refusal: Refused, peer: str, archived_evidence: ArchivedEvidence | None = None
    ) -> None:
        """Revoke trust before this returns; the record follows, and no caller waits for it."""
        now_ns, wall_ns = self._times()
        changes = self._registry.refuse(refusal, now_ns=now_ns, wall_ns=wall_ns)
        self._observer.changed(changes, peer)
        self._audit.note(refused_record(refusal, peer, archived_evidence))

    def _times(self) -> tuple[int, int]:
        now = self._now()
        return now.boottime_ns, now.wall_ns

    async def _deny(self, refusal: Refused) -> None:
        """Write a quarantine into the store, so that every replica and restart agrees.

        Where that fails now, the registry of this replica holds it meanwhile.
        """
        if refusal.effect is Effect.QUARANTINE and refusal.node is not None:
            wall_ns = self._times()[1]
            denial = QuarantineEntry(
                refusal.code, refusal.detail, AUTOMATIC, wall_ns, refusal.candidate
            )
            await self._denials.deny(refusal.node, denial)


def _archived_evidence(
    stream: StreamState, message: ReceivedMessage, known: Snapshots, now: Moment
) -> ArchivedEvidence:
    """The message as it may be kept, with what its signature is verified against now."""
    return ArchivedEvidence(
        payload_type=message.payload_type,
        payload=message.payload,
        signature=message.signature,
        chain=stream.chain,
        roots=known.roots,
        received_ms=now.wall_ms,
    )


def _code(result: Result) -> str:
    return result.code.value if isinstance(result, Refused) else ReasonCode.ACCEPTED.value


def _stale(result: Accepted | FailureNoticeAccepted, detail: str) -> Refused:
    refusal = refused(Refusal(ReasonCode.ENROLLMENT_STALE, detail), result.node)
    return replace(refusal, stream=result.stream)


def _outdated(result: Accepted) -> Refused:
    """It passed, but the fleet knows something newer; the next challenge decides."""
    detail = "newer facts or a later refusal stand against this answer"
    refusal = refused(Refusal(ReasonCode.CHALLENGE_EXPIRED, detail), result.node)
    return replace(refusal, stream=result.stream, evidence_digest=result.evidence_digest)


# --- audit records: no secrets, short


def accepted_record(
    accepted: Accepted, stream: StreamState, archived_evidence: ArchivedEvidence | None = None
) -> Record:
    """A grant: from now on this node may be chosen for this hash."""
    return Record(
        RecordKind.EVIDENCE_ACCEPTED,
        actor=str(stream.peer),
        subject=f"node/{accepted.node}",
        decision="accepted",
        codes=(ReasonCode.ACCEPTED.value,),
        refs={
            "hash": accepted.attestation_hash,
            "level": accepted.level.value,
            "identity": accepted.identity_digest,
            "evidence": accepted.evidence_digest,
            "instance": stream.hello.instance_id,
            "bootId": stream.hello.boot_id,
            "agent": stream.hello.agent_version,
            "stream": stream.stream_id,
            "leaf": stream.leaf_sha256,
            "gpus": [gpu.uuid for gpu in accepted.evidence.inventory.gpus],
            "lost": [gpu.uuid for gpu in accepted.lost],
            **_bundle(archived_evidence),
        },
        archived_evidence=archived_evidence,
    )


def completed_record(
    change: EnrollmentChange,
    accepted: Accepted,
    archived_evidence: ArchivedEvidence | None = None,
) -> Record | None:
    """Enrolled GPUs that have a serial now and had none; None where there are none."""
    before = {x.uuid: x.serial for x in change.old.gpus} if change.old else {}
    gained: list[Json] = [
        f"{x.uuid} {x.serial}"
        for x in change.new.gpus
        if x.serial is not None and before.get(x.uuid, x.serial) is None
    ]
    if not gained:
        return None
    return Record(
        RecordKind.NODE_ENROLLMENT,
        actor=str(accepted.stream.peer),
        subject=f"node/{accepted.node}",
        decision="completed",
        refs={
            "serials": gained,
            "evidence": accepted.evidence_digest,
            **_bundle(archived_evidence),
        },
        archived_evidence=archived_evidence,
    )


def round_record(
    accepted: Accepted, stream: StreamState, archived_evidence: ArchivedEvidence | None = None
) -> Record:
    """An unchanged round; the log counts it, and archives it once something is granted by it."""
    return Record(
        RecordKind.EVIDENCE_REPEATED,
        actor=str(stream.peer),
        subject=f"node/{accepted.node}",
        decision="accepted",
        codes=(ReasonCode.ACCEPTED.value,),
        refs={"hash": accepted.attestation_hash, "evidence": accepted.evidence_digest},
        archived_evidence=archived_evidence,
    )


def refused_record(
    refusal: Refused, peer: str, archived_evidence: ArchivedEvidence | None = None
) -> Record:
    """A refusal, and what it did to the node if it named one; authentic evidence is kept."""
    archived_evidence = archived_evidence if refusal.evidence_digest else None
    return Record(
        RecordKind.EVIDENCE_REFUSED,
        actor=peer,
        subject=f"node/{refusal.node}" if refusal.node else f"peer/{peer}",
        decision="refused",
        codes=(refusal.code.value,),
        refs={
            "step": refusal.step,
            "effect": refusal.effect.value,
            "detail": refusal.detail[:_MAX_DETAIL],
            "evidence": refusal.evidence_digest,
            "findings": [finding.code.value for finding in refusal.findings],
            "contested": [f"{claim.uuid} {claim.owner}" for claim in refusal.contested],
            "lost": [gpu.uuid for gpu in refusal.lost],
            **_bundle(archived_evidence),
        },
        archived_evidence=archived_evidence,
    )


def failure_record(
    notice: FailureNoticeAccepted,
    failure: Failure,
    consequence: Consequence,
    stream: StreamState,
    archived_evidence: ArchivedEvidence | None = None,
) -> Record:
    """Trust that the node itself took away; what takes none away is not archived."""
    archived_evidence = archived_evidence if consequence is not Consequence.NONE else None
    return Record(
        RecordKind.NODE_STATE,
        actor=str(stream.peer),
        subject=f"node/{notice.node}",
        decision="failure-notice",
        refs={
            "kind": failure.kind,
            "gpu": failure.gpu,
            "xid": failure.xid,
            "count": failure.count,
            "consequence": consequence.value if failure.xid is not None else None,
            "evidence": notice.evidence_digest,
            **_bundle(archived_evidence),
        },
        archived_evidence=archived_evidence,
    )


def _bundle(archived_evidence: ArchivedEvidence | None) -> dict[str, Json]:
    """Against which roots the signer's chain was verified."""
    return {} if archived_evidence is None else {"bundle": archived_evidence.bundle}
