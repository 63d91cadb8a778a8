"""The shell around the Verifier, without any network: order, races, and what never waits."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.fleet.attestation_result import (
    Accepted,
    BadNewsAccepted,
    Refused,
    StreamState,
    refused,
)
from controller.fleet.enrollment import (
    Denial,
    EnrollmentRecord,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    PinnedGpu,
)
from controller.fleet.quarantine import Denials
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind
from controller.fleet.view import NodeState
from controller.rpc.intake import Changes, EvidenceIntake, Result
from controller.verifier.context import Snapshots
from gpuwarden.audit.exhibit import bundle_digest, reverify
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.evidence import INSTANCE, NODE, Scene
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


class Desk:
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
            denials=Denials(self.store),
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
    desk = Desk()
    assert isinstance(await desk.take(), Accepted)
    assert desk.store.snapshot().records[NODE].instance == INSTANCE
    assert [record.kind for record in desk.audit.granted] == [RecordKind.EVIDENCE_ACCEPTED]
    assert desk.audit.noted == []
    assert desk.state() is NodeState.ELIGIBLE
    assert [grant for _, grant in desk.observed.results] == [True]


async def test_evidence_goes_with_its_record_where_it_is_authentic() -> None:
    desk = Desk()
    accepted = await desk.take()
    [granted] = desk.audit.granted
    assert isinstance(accepted, Accepted)
    assert granted.exhibit is not None
    assert granted.exhibit.digest == accepted.evidence_digest == granted.refs["evidence"]
    assert granted.refs["bundle"] == bundle_digest(desk.scene.roots)
    assert reverify(granted.exhibit, accepted.evidence_digest, desk.scene.wall)

    await desk.take()
    refused_one = await desk.take(inventory=inventory(gpu(9)))
    assert isinstance(refused_one, Refused)
    [round_, kept] = desk.audit.noted
    assert round_.exhibit is None
    assert kept.exhibit is not None
    assert kept.exhibit.digest == refused_one.evidence_digest == kept.refs["evidence"]


async def test_what_is_not_authentic_is_not_kept() -> None:
    desk = Desk()
    issued = desk.scene.challenge(desk.stream, 9)
    forged = replace(desk.scene.signed(desk.stream, issued), signature=b"no")
    assert isinstance(await desk.intake.take(desk.stream, forged, issued), Refused)
    [record] = desk.audit.noted
    assert record.exhibit is None
    assert "bundle" not in record.refs


async def test_bad_news_goes_with_its_record() -> None:
    desk = Desk(bad_news=True)
    news = await desk.take()
    assert isinstance(news, BadNewsAccepted)
    [record] = desk.audit.noted
    assert record.exhibit is not None
    assert record.exhibit.digest == news.evidence_digest


async def test_an_unchanged_round_waits_for_nothing() -> None:
    desk = Desk()
    await desk.take()
    desk.audit.held = asyncio.Event()
    assert isinstance(await desk.take(), Accepted)
    assert desk.audit.kinds() == [RecordKind.EVIDENCE_ROUND]


async def test_lost_races_for_the_enrolment_are_tried_again_and_then_given_up() -> None:
    desk = Desk()
    desk.store.losses = 3
    assert isinstance(await desk.take(), Accepted)
    desk = Desk()
    desk.store.losses = 1000
    result = await desk.take()
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.ENROLLMENT_STALE
    assert result.stream is not None
    assert desk.audit.granted == []


async def test_two_nodes_that_pin_one_gpu_at_the_same_moment_are_both_refused() -> None:
    desk = Desk()
    desk.store.rival = EnrollmentRecord("gpu-2", gpus=(PinnedGpu(uuid=gpu_uuid(1)),))
    result = await desk.take()
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.GPU_CLAIMED_TWICE
    assert desk.audit.granted == []


async def test_a_store_that_is_gone_stops_what_is_new() -> None:
    desk = Desk()
    desk.store.gone = True
    result = await desk.take()
    assert isinstance(result, Refused)
    assert (result.code, result.detail) == (ReasonCode.ENROLLMENT_STALE, "taken away")


async def test_what_changed_while_the_grant_was_written_is_seen() -> None:
    desk = Desk()
    desk.audit.held = asyncio.Event()
    taking = asyncio.create_task(desk.take())
    await desk.audit.asked.wait()
    record = desk.store.snapshot().records[NODE]
    denial = Denial("NODE_DENIED", "by hand", "spiffe://example.org/op", 1)
    assert await desk.store.compare_and_set(record, replace(record, denial=denial))
    desk.audit.held.set()
    result = await taking
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.NODE_DENIED
    assert desk.state() is not NodeState.ELIGIBLE


async def test_pins_that_changed_while_the_grant_was_written_are_settled_next_round() -> None:
    desk = Desk()
    desk.audit.held = asyncio.Event()
    taking = asyncio.create_task(desk.take())
    await desk.audit.asked.wait()
    record = desk.store.snapshot().records[NODE]
    other = replace(record, instance="b" * 32)
    assert await desk.store.compare_and_set(record, other)
    desk.audit.held.set()
    result = await taking
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.ENROLLMENT_STALE
    assert desk.state() is not NodeState.ELIGIBLE


async def test_a_refusal_reaches_the_registry_although_the_log_hangs() -> None:
    desk = Desk()
    await desk.take()
    desk.audit.held = asyncio.Event()
    result = await desk.take(node_name="gpu-2")
    assert isinstance(result, Refused)
    assert desk.state() is NodeState.REVOKED
    assert desk.audit.kinds() == [RecordKind.EVIDENCE_REFUSED]


async def test_a_quarantine_is_written_once_and_survives_races() -> None:
    desk = Desk()
    await desk.take(inventory=inventory(gpu(0)))
    desk.store.losses = 2
    changed = inventory(gpu(0), gpu(7))
    result = await desk.take(inventory=changed)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_CHANGED
    denial = desk.store.snapshot().records[NODE].denial
    assert denial is not None
    assert denial.code == "INVENTORY_CHANGED"
    await desk.intake.refuse(
        refused(Refusal(ReasonCode.INVENTORY_CHANGED, "again"), NODE), "spiffe://x/y"
    )
    assert desk.store.snapshot().records[NODE].denial == denial


@pytest.mark.parametrize("trouble", ["losses", "gone"])
async def test_a_quarantine_that_cannot_be_written_counts_here_all_the_same(trouble: str) -> None:
    desk = Desk()
    await desk.take(inventory=inventory(gpu(0)))
    setattr(desk.store, trouble, 1000)
    await desk.take(inventory=inventory(gpu(0), gpu(7)))
    assert desk.state() is NodeState.QUARANTINED
    assert desk.store.snapshot().records[NODE].denial is None


async def test_a_node_without_a_record_can_be_quarantined() -> None:
    desk = Desk()
    refusal = refused(Refusal(ReasonCode.DUPLICATE_AGENT, "two"), NODE)
    await desk.intake.refuse(refusal, "spiffe://x/y")
    assert desk.store.snapshot().records[NODE].denial is not None


async def test_trust_is_gone_and_recorded_even_where_nobody_can_be_told() -> None:
    desk = Desk()
    await desk.take()
    desk.observed.closed = True
    refusal = refused(Refusal(ReasonCode.NODE_NAME_MISMATCH, "another"), NODE)
    with pytest.raises(BrokenPipeError):
        await desk.intake.refuse(refusal, "spiffe://x/y")
    assert desk.state() is NodeState.REVOKED
    assert desk.audit.noted[-1].codes == ("NODE_NAME_MISMATCH",)


async def test_a_refusal_that_names_no_node_touches_none() -> None:
    desk = Desk()
    refusal = refused(Refusal(ReasonCode.PEER_ID_INVALID, "two names"), None)
    await desk.intake.refuse(refusal, "spiffe://x/y")
    assert desk.state() is None
    assert desk.audit.noted[0].subject == "peer/spiffe://x/y"


async def test_bad_news_takes_away_and_is_recorded() -> None:
    desk = Desk()
    await desk.take()
    desk.scene.bad_news = True
    result = await desk.take(gpu=gpu_uuid(1))
    assert isinstance(result, BadNewsAccepted)
    assert ChangeKind.GPU_UNHEALTHY in desk.observed.changes
    assert desk.audit.noted[-1].refs["xid"] == 79


async def test_an_answer_older_than_a_refusal_restores_nothing() -> None:
    desk = Desk()
    await desk.take()
    issued = desk.scene.challenge(desk.stream, 2)
    desk.scene.advance(1)
    await desk.intake.refuse(refused(Refusal(ReasonCode.GPU_DENIED, "x"), NODE), "spiffe://x/y")
    desk.scene.evidence = {}
    message = desk.scene.signed(desk.stream, issued)
    result = await desk.intake.take(desk.stream, message, issued)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.CHALLENGE_EXPIRED
    assert result.stream is not None
    assert desk.state() is NodeState.REVOKED
