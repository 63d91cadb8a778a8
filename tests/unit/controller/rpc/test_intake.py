"""The shell around the Verifier, without any network: order, races, and what never waits."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.fleet.attestation_result import (
    Accepted,
    FailureNoticeAccepted,
    Refused,
    StreamState,
    refused,
)
from controller.fleet.directory import DirectorySnapshot
from controller.fleet.enrollment import (
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    QuarantineEntry,
)
from controller.fleet.quarantine import QuarantineEntries
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind
from controller.fleet.view import NodeState
from controller.rpc.intake import Changes, EvidenceIntake, Result
from controller.verifier.context import Snapshots
from gpuwarden.audit.archived_evidence import bundle_digest, reverify
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import Failure, GpuProcess
from gpuwarden.reasons import Effect, ReasonCode, Refusal
from tests.builders.evidence import INSTANCE, NODE, Scene, failure
from tests.builders.inventory import gpu, gpu_uuid, inventory
from tests.fakes.recording_audit import RecordingAudit


class RacingStore(MemoryEnrollmentStore):
    """Somebody else writes first, `losses` times; then it is gone or not."""

    losses = 0
    gone = False
    rival: EnrollmentRecord | None = None
    """Written by somebody else in the same moment as our first record."""

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        if self.gone:
            raise EnrollmentUnavailableError("taken away")
        if self.losses:
            self.losses -= 1
            return False
        if self.rival is not None:
            await super().create_if_absent(self.rival)
        return await super().create_if_absent(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        if self.gone:
            raise EnrollmentUnavailableError("taken away")
        if self.losses:
            self.losses -= 1
            return False
        return await super().compare_and_set(old, new)


@dataclass
class Observed:
    results: list[tuple[Result, bool]] = field(default_factory=list)
    changes: list[Any] = field(default_factory=list)
    closed: bool = False
    """Nothing can be logged any more."""

    def appraised(self, result: Result, *, grant: bool, seconds: float) -> None:
        assert seconds >= 0
        if self.closed:
            raise BrokenPipeError
        self.results.append((result, grant))

    def changed(self, changes: Changes, actor: str) -> None:
        assert actor.startswith("spiffe://")
        self.changes.extend(change.kind for change in changes)


class Workbench:
    """An intake with everything around it."""

    def __init__(self, **scene: Any) -> None:
        self.scene = Scene(**scene)
        self.store = RacingStore()
        self.registry = FleetRegistry()
        self.audit = RecordingAudit()
        self.observed = Observed()
        self.intake = EvidenceIntake(
            verifier=self.scene.verifier,
            store=self.store,
            denials=QuarantineEntries(self.store),
            registry=self.registry,
            audit=self.audit,
            known=self.known,
            now=lambda: self.scene.now,
            observer=self.observed,
        )
        self.stream: StreamState = self.scene.opened()
        self.number = 0

    def known(self) -> Snapshots:
        return replace(self.scene.known, enrollment=self.store.snapshot())

    async def take(self, **evidence: Any) -> Result:
        """One round with a good challenge."""
        self.number += 1
        self.scene.evidence = evidence
        issued = self.scene.challenge(self.stream, self.number)
        self.scene.advance(1)
        message = self.scene.signed(self.stream, issued)
        result = await self.intake.take(self.stream, message, issued)
        if result.stream is not None:
            self.stream = result.stream
        return result

    def state(self) -> NodeState | None:
        view = self.registry.snapshot().nodes.get(NODE)
        return view.state(self.scene.boottime_ns) if view else None


async def test_first_evidence_is_pinned_then_granted_then_swapped() -> None:
    workbench = Workbench()
    assert isinstance(await workbench.take(), Accepted)
    assert workbench.store.snapshot().records[NODE].instance == INSTANCE
    assert [record.kind for record in workbench.audit.granted] == [RecordKind.EVIDENCE_ACCEPTED]
    assert workbench.audit.noted == []
    assert workbench.state() is NodeState.ELIGIBLE
    assert [grant for _, grant in workbench.observed.results] == [True]


async def test_a_serial_that_a_newer_driver_reports_is_enrolled_and_audited_once() -> None:
    workbench = Workbench()
    await workbench.take(inventory=inventory(gpu(0, serial=None), gpu(1)))
    for _ in range(2):
        assert isinstance(await workbench.take(inventory=inventory(gpu(0), gpu(1))), Accepted)
    [record] = [x for x in workbench.audit.noted if x.kind is RecordKind.NODE_ENROLLMENT]
    assert (record.subject, record.decision) == (f"node/{NODE}", "completed")
    assert record.refs["serials"] == [f"{gpu_uuid(1)} {gpu(0).serial}"]
    assert record.archived_evidence is not None
    assert record.archived_evidence.digest == record.refs["evidence"]
    assert record.refs["bundle"] == record.archived_evidence.bundle
    assert workbench.store.snapshot().records[NODE].gpus[0].serial == gpu(0).serial
    assert workbench.state() is NodeState.ELIGIBLE


async def test_evidence_goes_with_its_record_where_it_is_authentic() -> None:
    workbench = Workbench()
    accepted = await workbench.take()
    [granted] = workbench.audit.granted
    assert isinstance(accepted, Accepted)
    assert granted.archived_evidence is not None
    assert granted.archived_evidence.digest == accepted.evidence_digest == granted.refs["evidence"]
    assert granted.refs["bundle"] == bundle_digest(workbench.scene.roots)
    assert reverify(granted.archived_evidence, accepted.evidence_digest, workbench.scene.wall)

    await workbench.take()
    refused_one = await workbench.take(inventory=inventory(gpu(9)))
    assert isinstance(refused_one, Refused)
    [round_, kept] = workbench.audit.noted
    assert round_.archived_evidence is not None
    assert round_.archived_evidence.digest == round_.refs["evidence"]
    assert kept.archived_evidence is not None
    assert kept.archived_evidence.digest == refused_one.evidence_digest == kept.refs["evidence"]


async def test_what_is_not_authentic_is_not_kept() -> None:
    workbench = Workbench()
    issued = workbench.scene.challenge(workbench.stream, 9)
    forged = replace(workbench.scene.signed(workbench.stream, issued), signature=b"no")
    assert isinstance(await workbench.intake.take(workbench.stream, forged, issued), Refused)
    [record] = workbench.audit.noted
    assert record.archived_evidence is None
    assert "bundle" not in record.refs


async def test_bad_news_goes_with_its_record() -> None:
    workbench = Workbench(failure_notice=True)
    news = await workbench.take()
    assert isinstance(news, FailureNoticeAccepted)
    [record] = workbench.audit.noted
    assert record.archived_evidence is not None
    assert record.archived_evidence.digest == news.evidence_digest


async def test_an_unchanged_round_waits_for_nothing() -> None:
    workbench = Workbench()
    await workbench.take()
    workbench.audit.held = asyncio.Event()
    assert isinstance(await workbench.take(), Accepted)
    assert workbench.audit.kinds() == [RecordKind.EVIDENCE_REPEATED]


async def test_lost_races_for_the_enrolment_are_tried_again_and_then_given_up() -> None:
    workbench = Workbench()
    workbench.store.losses = 3
    assert isinstance(await workbench.take(), Accepted)
    workbench = Workbench()
    workbench.store.losses = 1000
    result = await workbench.take()
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.ENROLLMENT_STALE
    assert result.stream is not None
    assert workbench.audit.granted == []


async def test_two_nodes_that_pin_one_gpu_at_the_same_moment_are_both_refused() -> None:
    workbench = Workbench()
    workbench.store.rival = EnrollmentRecord("gpu-2", gpus=(EnrolledGpu(uuid=gpu_uuid(1)),))
    result = await workbench.take()
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.GPU_CLAIMED_TWICE
    assert workbench.audit.granted == []


async def test_a_store_that_is_gone_stops_what_is_new() -> None:
    workbench = Workbench()
    workbench.store.gone = True
    result = await workbench.take()
    assert isinstance(result, Refused)
    assert (result.code, result.detail) == (ReasonCode.ENROLLMENT_STALE, "taken away")


async def test_what_changed_while_the_grant_was_written_is_seen() -> None:
    workbench = Workbench()
    workbench.audit.held = asyncio.Event()
    taking = asyncio.create_task(workbench.take())
    await workbench.audit.asked.wait()
    record = workbench.store.snapshot().records[NODE]
    denial = QuarantineEntry("NODE_DENIED", "by hand", "spiffe://example.org/op", 1)
    assert await workbench.store.compare_and_set(record, replace(record, denial=denial))
    workbench.audit.held.set()
    result = await taking
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.NODE_DENIED
    assert workbench.state() is not NodeState.ELIGIBLE


async def test_enrolled_gpus_that_changed_while_the_grant_was_written_are_settled_next_round() -> (
    None
):
    workbench = Workbench()
    workbench.audit.held = asyncio.Event()
    taking = asyncio.create_task(workbench.take())
    await workbench.audit.asked.wait()
    record = workbench.store.snapshot().records[NODE]
    other = replace(record, instance="b" * 32)
    assert await workbench.store.compare_and_set(record, other)
    workbench.audit.held.set()
    result = await taking
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.ENROLLMENT_STALE
    assert workbench.state() is not NodeState.ELIGIBLE


async def test_a_refusal_reaches_the_registry_although_the_log_hangs() -> None:
    workbench = Workbench()
    await workbench.take()
    workbench.audit.held = asyncio.Event()
    result = await workbench.take(node_name="gpu-2")
    assert isinstance(result, Refused)
    assert workbench.state() is NodeState.REVOKED
    assert workbench.audit.kinds() == [RecordKind.EVIDENCE_REFUSED]


async def test_a_quarantine_is_written_once_and_survives_races() -> None:
    workbench = Workbench()
    await workbench.take(inventory=inventory(gpu(0)))
    workbench.store.losses = 2
    changed = inventory(gpu(0), gpu(7))
    result = await workbench.take(inventory=changed)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_CHANGED
    denial = workbench.store.snapshot().records[NODE].denial
    assert denial is not None
    assert denial.code == "INVENTORY_CHANGED"
    await workbench.intake.refuse(
        refused(Refusal(ReasonCode.INVENTORY_CHANGED, "again"), NODE), "spiffe://x/y"
    )
    assert workbench.store.snapshot().records[NODE].denial == denial


@pytest.mark.parametrize("trouble", ["losses", "gone"])
async def test_a_quarantine_that_cannot_be_written_counts_here_all_the_same(trouble: str) -> None:
    workbench = Workbench()
    await workbench.take(inventory=inventory(gpu(0)))
    setattr(workbench.store, trouble, 1000)
    await workbench.take(inventory=inventory(gpu(0), gpu(7)))
    assert workbench.state() is NodeState.QUARANTINED
    assert workbench.store.snapshot().records[NODE].denial is None


async def test_a_node_without_a_record_can_be_quarantined() -> None:
    workbench = Workbench()
    refusal = refused(Refusal(ReasonCode.DUPLICATE_AGENT, "two"), NODE)
    await workbench.intake.refuse(refusal, "spiffe://x/y")
    assert workbench.store.snapshot().records[NODE].denial is not None


async def test_trust_is_gone_and_recorded_even_where_nobody_can_be_reported() -> None:
    workbench = Workbench()
    await workbench.take()
    workbench.observed.closed = True
    refusal = refused(Refusal(ReasonCode.NODE_NAME_MISMATCH, "another"), NODE)
    with pytest.raises(BrokenPipeError):
        await workbench.intake.refuse(refusal, "spiffe://x/y")
    assert workbench.state() is NodeState.REVOKED
    assert workbench.audit.noted[-1].codes == ("NODE_NAME_MISMATCH",)


async def test_a_refusal_that_names_no_node_touches_none() -> None:
    workbench = Workbench()
    refusal = refused(Refusal(ReasonCode.PEER_ID_INVALID, "two names"), None)
    await workbench.intake.refuse(refusal, "spiffe://x/y")
    assert workbench.state() is None
    assert workbench.audit.noted[0].subject == "peer/spiffe://x/y"


async def test_bad_news_takes_away_and_is_recorded() -> None:
    workbench = Workbench()
    await workbench.take()
    workbench.scene.failure_notice = True
    result = await workbench.take(gpu=gpu_uuid(1))
    assert isinstance(result, FailureNoticeAccepted)
    assert ChangeKind.GPU_UNHEALTHY in workbench.observed.changes
    assert workbench.audit.noted[-1].refs["xid"] == 79


class TestFaults:
    """What a notice takes away stays away until its end is seen."""

    async def sick(self, *failures: Failure) -> Workbench:
        """A node that was accepted and then reported `failures`."""
        workbench = Workbench()
        await workbench.take()
        await self.notice(workbench, *failures)
        return workbench

    async def notice(self, workbench: Workbench, *failures: Failure) -> Result:
        workbench.scene.failure_notice = True
        result = await workbench.take(failures=failures)
        workbench.scene.failure_notice = False
        workbench.scene.advance(1)
        return result

    def unhealthy(self, workbench: Workbench) -> str | None:
        acceptance = workbench.registry.snapshot().nodes[NODE].acceptance
        assert acceptance is not None
        return acceptance.gpus[0].unhealthy

    async def test_the_next_round_does_not_give_the_gpu_back(self) -> None:
        workbench = await self.sick(failure(48))
        assert isinstance(await workbench.take(), Accepted)
        assert self.unhealthy(workbench) == "xid 48, until the GPU is reset"

    async def test_a_restarted_controller_knows_it(self) -> None:
        workbench = await self.sick(failure(48))
        again = Workbench()
        again.store._snapshot = workbench.store.snapshot()
        await again.take()
        assert self.unhealthy(again) == "xid 48, until the GPU is reset"

    async def test_it_is_held_before_the_first_acceptance_too(self) -> None:
        workbench = Workbench()
        await self.notice(workbench, failure(48))
        await workbench.take()
        assert self.unhealthy(workbench) == "xid 48, until the GPU is reset"

    async def test_a_contained_error_ends_with_its_processes(self) -> None:
        workbench = await self.sick(failure(94))
        process = GpuProcess(gpu=gpu_uuid(1), pid=7, pod_uid=None)
        await workbench.take(processes=(process,))
        assert self.unhealthy(workbench) == "xid 94, until its processes end"
        await workbench.take(processes=())
        assert self.unhealthy(workbench) is None

    async def test_an_applications_error_takes_nothing_and_is_recorded(self) -> None:
        workbench = await self.sick(failure(31))
        assert self.unhealthy(workbench) is None
        assert workbench.store.snapshot().records[NODE].faults == ()
        assert workbench.audit.noted[-1].refs["consequence"] == "none"
        assert workbench.audit.noted[-1].archived_evidence is None

    async def test_sixty_at_once_are_sixty_records(self) -> None:
        failures = tuple(failure(1000 + n, happened_ms=n) for n in range(60))
        workbench = await self.sick(*failures)
        told = [x.refs["xid"] for x in workbench.audit.noted if x.decision == "failure-notice"]
        assert told == [x.xid for x in failures]
        assert len(workbench.store.snapshot().records[NODE].faults) == 60

    async def test_what_cannot_be_written_is_not_acknowledged(self) -> None:
        workbench = Workbench()
        await workbench.take()
        workbench.store.gone = True
        result = await self.notice(workbench, failure(48))
        assert isinstance(result, Refused)
        assert (result.code, result.effect) == (ReasonCode.ENROLLMENT_STALE, Effect.TRANSIENT)
        assert result.stream is not None
        assert self.unhealthy(workbench) == "xid 48"

    async def test_a_write_that_comes_second_is_made_again(self) -> None:
        workbench = Workbench()
        await workbench.take()
        workbench.store.losses = 2
        assert isinstance(await self.notice(workbench, failure(48)), FailureNoticeAccepted)
        assert [x.xid for x in workbench.store.snapshot().records[NODE].faults] == [48]

    async def test_writes_that_always_come_second_are_no_acknowledgement(self) -> None:
        workbench = Workbench()
        await workbench.take()
        workbench.store.losses = 100
        result = await self.notice(workbench, failure(48))
        assert isinstance(result, Refused)
        assert result.code is ReasonCode.ENROLLMENT_STALE

    @pytest.mark.parametrize("gpu", [None, "GPU-of-nobody", "MIG-1"])
    async def test_what_names_no_gpu_is_not_held(self, gpu: str | None) -> None:
        workbench = await self.sick(failure(48, gpu=gpu))
        assert workbench.store.snapshot().records[NODE].faults == ()

    async def test_a_node_that_the_cluster_does_not_know_gets_no_record(self) -> None:
        workbench = Workbench()
        workbench.scene.directory = DirectorySnapshot({})
        assert isinstance(await self.notice(workbench, failure(48)), FailureNoticeAccepted)
        assert NODE not in workbench.store.snapshot().records


async def test_an_answer_older_than_a_refusal_restores_nothing() -> None:
    workbench = Workbench()
    await workbench.take()
    issued = workbench.scene.challenge(workbench.stream, 2)
    workbench.scene.advance(1)
    await workbench.intake.refuse(
        refused(Refusal(ReasonCode.GPU_DENIED, "x"), NODE), "spiffe://x/y"
    )
    workbench.scene.evidence = {}
    message = workbench.scene.signed(workbench.stream, issued)
    result = await workbench.intake.take(workbench.stream, message, issued)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.CHALLENGE_EXPIRED
    assert result.stream is not None
    assert workbench.state() is NodeState.REVOKED
