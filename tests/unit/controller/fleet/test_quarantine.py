from dataclasses import replace
from typing import Any

import pytest

from controller.fleet.enrollment import (
    AUTOMATIC,
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    QuarantineEntry,
)
from controller.fleet.faults import Fault
from controller.fleet.quarantine import (
    Change,
    EnrollmentChange,
    QuarantineEntries,
    Shown,
    accepted,
    enrollment_changes,
    enrollment_digest,
    released,
    show,
)
from controller.fleet.view import NodeView
from gpuwarden.evidence.model import LostGpu
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.node_views import acceptance, gpu_view, node_view, past_refusal

# --- A denial is written, or kept until it can be; the first one stands

FIRST = QuarantineEntry("INVENTORY_CHANGED", "swapped", AUTOMATIC, 1)
SECOND = QuarantineEntry("NODE_DENIED", "smells", "spiffe://x/operator/o", 2)
ANN, BOB = "spiffe://x/operator/ann", "user bob"
PINNED = EnrollmentRecord("gpu-1", gpus=(EnrolledGpu("GPU-a"),))


class Store(MemoryEnrollmentStore):
    """Loses `losses` races and is gone while `gone`."""

    losses = 0
    gone = False

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        return self._lets() and await super().create_if_absent(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        return self._lets() and await super().compare_and_set(old, new)

    def _lets(self) -> bool:
        if self.gone:
            raise EnrollmentUnavailableError("gone")
        self.losses -= 1
        return self.losses < 0


async def test_enrolled_gpus_stay_and_a_node_without_record_gets_one() -> None:
    store = Store([PINNED])
    denials = QuarantineEntries(store)
    assert await denials.deny("gpu-1", FIRST)
    assert await denials.deny("gpu-2", SECOND)
    assert store.snapshot().records["gpu-1"] == replace(PINNED, denial=FIRST)
    assert store.snapshot().records["gpu-2"] == EnrollmentRecord("gpu-2", denial=SECOND)
    assert denials.unwritten == {}


async def test_the_first_quarantine_entry_is_kept() -> None:
    store = Store([replace(PINNED, denial=FIRST)])
    denials = QuarantineEntries(store)
    assert await denials.deny("gpu-1", SECOND)
    assert store.snapshot().records["gpu-1"].denial == FIRST


async def test_a_denial_that_was_lifted_elsewhere_does_not_stand_in_for_a_new_one() -> None:
    """What this replica knows is older than the other's act."""

    class Stale(Store):
        stale = True

        def snapshot(self) -> EnrollmentSnapshot:
            return before if self.stale else super().snapshot()

        async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
            self.stale = False
            return await super().compare_and_set(old, new)

    denied = replace(PINNED, denial=FIRST)
    before = EnrollmentSnapshot.of([denied])
    store = Stale([PINNED])
    assert await QuarantineEntries(store).deny("gpu-1", SECOND)
    assert store.snapshot().records["gpu-1"].denial == SECOND


async def test_races_are_lost_a_few_times_only() -> None:
    store = Store([PINNED])
    denials = QuarantineEntries(store)
    store.losses = 7
    assert await denials.deny("gpu-1", FIRST)
    store = Store([PINNED])
    denials = QuarantineEntries(store)
    store.losses = 8
    assert not await denials.deny("gpu-1", FIRST)
    assert dict(denials.unwritten) == {"gpu-1": FIRST}


async def test_what_could_not_be_written_is_tried_again() -> None:
    store = Store([PINNED])
    denials = QuarantineEntries(store)
    store.gone = True
    assert not await denials.deny("gpu-1", FIRST)
    assert not await denials.deny("gpu-1", SECOND)
    await denials.retry()
    assert dict(denials.unwritten) == {"gpu-1": FIRST}
    store.gone = False
    await denials.retry()
    assert store.snapshot().records["gpu-1"].denial == FIRST
    assert denials.unwritten == {}


async def test_what_an_operator_decided_meanwhile_is_not_undone() -> None:
    store = Store([PINNED])
    denials = QuarantineEntries(store)
    store.gone = True
    await denials.deny("gpu-1", FIRST)
    denials.forget("gpu-1", SECOND)
    assert denials.unwritten
    denials.forget("gpu-1", FIRST)
    store.gone = False
    await denials.retry()
    assert store.snapshot().records["gpu-1"].denial is None


# --- What operators are shown, and that an act counts for exactly that and nothing else

OLD, NEW, SAME = (
    EnrolledGpu("GPU-old", "1"),
    EnrolledGpu("GPU-new", "2"),
    EnrolledGpu("GPU-same", "3"),
)
CANDIDATE = Candidate("INVENTORY_CHANGED", "uid-1", None, (NEW, SAME), "e" * 64)
DENIAL = QuarantineEntry("INVENTORY_CHANGED", "swapped", AUTOMATIC, 7, CANDIDATE)
RECORD = EnrollmentRecord(
    "gpu-1", node_uid="uid-1", gpus=(OLD, SAME), instance="a" * 32, denial=DENIAL
)
NOW = 50 * 1_000_000_000


def shown(record: EnrollmentRecord | None = RECORD, view: NodeView | None = None) -> Shown:
    return show("gpu-1", record, view, unwritten=None, now_ns=NOW)


def known(*records: EnrollmentRecord) -> EnrollmentSnapshot:
    return EnrollmentSnapshot.of(records or (RECORD,))


def code(result: EnrollmentRecord | Refusal) -> ReasonCode:
    assert isinstance(result, Refusal)
    return result.code


class TestCandidates:
    def test_what_the_denial_holds_comes_first(self) -> None:
        other = replace(CANDIDATE, gpus=(SAME,))
        assert shown(view=node_view(candidate=other)).candidate == CANDIDATE

    def test_then_what_the_last_evidence_showed(self) -> None:
        record = replace(RECORD, denial=None)
        assert shown(record, node_view(candidate=CANDIDATE)).candidate == CANDIDATE
        assert shown(None, node_view(candidate=CANDIDATE)).candidate == CANDIDATE
        assert shown(None).candidate is None

    def test_a_denial_that_is_not_written_yet_counts_as_one_that_is(self) -> None:
        bare = replace(RECORD, denial=None)
        found = show("gpu-1", bare, None, unwritten=DENIAL, now_ns=NOW)
        assert (found.denial, found.candidate) == (DENIAL, CANDIDATE)
        assert found.version == shown().version

    def test_a_gpu_that_is_lost_for_good_can_be_left_out(self) -> None:
        gone = LostGpu(gpu_view(0).uuid, 0, "", "GPU_IS_LOST")
        cards = (gpu_view(0, lost=gone), gpu_view(1))
        enrolled_gpus = tuple(EnrolledGpu(x.uuid, x.serial) for x in cards)
        record = EnrollmentRecord("gpu-1", node_uid="u", spire_agent="s", gpus=enrolled_gpus)
        view = node_view(acceptance=acceptance(gpus=cards))
        assert shown(record, view).candidate == Candidate(
            "GPU_LOST", "u", "s", enrolled_gpus[1:], "e" * 64
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"acceptance": None},
            {"acceptance": acceptance(fresh_until_ns=NOW)},
            {"blocked": past_refusal(ReasonCode.GPU_DENIED)},
        ],
    )
    def test_otherwise_there_is_none(self, changes: dict[str, Any]) -> None:
        gone = LostGpu(gpu_view(0).uuid, 0, "", "GPU_IS_LOST")
        lost = acceptance(gpus=(gpu_view(0, lost=gone),))
        enrolled_gpus = (EnrolledGpu(gpu_view(0).uuid), EnrolledGpu(gpu_view(1).uuid))
        fields = changes or {"acceptance": acceptance()}
        if fields.get("acceptance") and changes:
            fields = {"acceptance": replace(fields["acceptance"], gpus=lost.gpus)}
        record = EnrollmentRecord("gpu-1", gpus=enrolled_gpus)
        assert shown(record, node_view(**fields)).candidate is None

    def test_no_gpu_left_is_no_hardware(self) -> None:
        gone = LostGpu(gpu_view(0).uuid, 0, "", "GPU_IS_LOST")
        view = node_view(acceptance=acceptance(gpus=(gpu_view(0, lost=gone),)))
        record = EnrollmentRecord("gpu-1", gpus=(EnrolledGpu(gpu_view(0).uuid),))
        assert shown(record, view).candidate is None


class TestVersion:
    def test_it_is_the_same_for_the_same(self) -> None:
        assert shown().version == shown(replace(RECORD)).version
        assert shown().version.startswith("v1:sha256:")

    @pytest.mark.parametrize(
        "record",
        [
            replace(RECORD, gpus=(OLD,)),
            replace(RECORD, gpus=(replace(OLD, serial="9"), SAME)),
            replace(RECORD, gpus=(replace(OLD, identity_key="c" * 64), SAME)),
            replace(RECORD, node_uid="uid-2"),
            replace(RECORD, spire_agent="s"),
            replace(RECORD, denial=None),
            replace(RECORD, denial=replace(DENIAL, reason="x")),
            replace(RECORD, denial=replace(DENIAL, actor="x")),
            replace(RECORD, denial=replace(DENIAL, code="x")),
            replace(RECORD, denial=replace(DENIAL, wall_ns=8)),
            replace(RECORD, denial=replace(DENIAL, candidate=None)),
            replace(RECORD, denial=replace(DENIAL, candidate=replace(CANDIDATE, gpus=(SAME,)))),
            replace(RECORD, node="gpu-2"),
        ],
    )
    def test_it_changes_with_everything_that_is_judged_by(self, record: EnrollmentRecord) -> None:
        assert shown(record).version != shown().version

    @pytest.mark.parametrize(
        "record",
        [
            replace(RECORD, instance="b" * 32, superseded=("a" * 32,)),
            replace(
                RECORD, denial=replace(DENIAL, candidate=replace(CANDIDATE, evidence_digest=""))
            ),
            replace(RECORD, gpus=(replace(OLD, pci_bus_id="x"), SAME)),
        ],
    )
    def test_but_not_with_what_changes_by_itself(self, record: EnrollmentRecord) -> None:
        assert shown(record).version == shown().version


class TestChanges:
    def test_removed_first_and_kept_last(self) -> None:
        assert enrollment_changes(shown()) == (
            EnrollmentChange(Change.REMOVED, "GPU-old", "1", ""),
            EnrollmentChange(Change.ADDED, "GPU-new", "", "2"),
            EnrollmentChange(Change.KEPT, "GPU-same", "3", "3"),
        )

    @pytest.mark.parametrize(
        ("pinned", "offered", "change"),
        [
            (EnrolledGpu("G", "1"), EnrolledGpu("G", "2"), Change.CHANGED),
            (EnrolledGpu("G", "1"), EnrolledGpu("G", None), Change.CHANGED),
            (EnrolledGpu("G", complete=False), EnrolledGpu("G", "2"), Change.KEPT),
            (EnrolledGpu("G", "1", "k"), EnrolledGpu("G", "1"), Change.KEPT),
            (EnrolledGpu("G", "1"), EnrolledGpu("G", "1", "k"), Change.KEPT),
            (EnrolledGpu("G", "1", "k"), EnrolledGpu("G", "1", "l"), Change.CHANGED),
        ],
    )
    def test_when_a_gpu_is_the_same(
        self, pinned: EnrolledGpu, offered: EnrolledGpu, change: Change
    ) -> None:
        denial = replace(DENIAL, candidate=replace(CANDIDATE, gpus=(offered,)))
        lines = enrollment_changes(shown(replace(RECORD, gpus=(pinned,), denial=denial)))
        assert [x.change for x in lines] == [change]

    def test_ids_that_changed_are_lines_too(self) -> None:
        candidate = replace(CANDIDATE, gpus=(OLD, SAME), node_uid="uid-2", spire_agent="s")
        lines = enrollment_changes(
            shown(replace(RECORD, denial=replace(DENIAL, candidate=candidate)))
        )
        assert lines[:2] == (
            EnrollmentChange(Change.CHANGED, "node UID", "uid-1", "uid-2"),
            EnrollmentChange(Change.CHANGED, "SPIRE agent", "", "s"),
        )

    def test_none_without_a_candidate(self) -> None:
        assert enrollment_changes(shown(None)) == ()


class TestAccepting:
    def test_the_candidate_becomes_the_enrolled_gpus_and_the_denial_ends(self) -> None:
        after = accepted(shown(), known(), shown().version, actor=ANN)
        assert after == EnrollmentRecord(
            "gpu-1",
            node_uid="uid-1",
            gpus=(replace(NEW, enrolled=True), replace(SAME, enrolled=True)),
            instance="a" * 32,
            lifted_ns=DENIAL.wall_ns,
            lifted_by=ANN,
        )
        assert enrollment_digest(after) == enrollment_digest(CANDIDATE)

    def test_a_proven_key_stays_pinned_with_its_board(self) -> None:
        record = replace(RECORD, gpus=(replace(SAME, identity_key="k"),))
        after = accepted(shown(record), known(record), shown(record).version, actor=ANN)
        assert isinstance(after, EnrollmentRecord)
        assert [x.identity_key for x in after.gpus] == [None, "k"]
        other = replace(RECORD, gpus=(replace(SAME, serial="9", identity_key="k"),))
        after = accepted(shown(other), known(other), shown(other).version, actor=ANN)
        assert isinstance(after, EnrollmentRecord)
        assert [x.identity_key for x in after.gpus] == [None, None]

    def test_something_else_than_what_was_shown_is_not_accepted(self) -> None:
        assert (
            code(accepted(shown(), known(), "v1:sha256:0", actor=ANN))
            is ReasonCode.ENROLLMENT_CONFLICT
        )

    def test_nothing_shown_is_nothing_to_accept(self) -> None:
        bare = shown(replace(RECORD, denial=replace(DENIAL, candidate=None)))
        assert (
            code(accepted(bare, known(), bare.version, actor=ANN)) is ReasonCode.CANDIDATE_UNKNOWN
        )

    @pytest.mark.parametrize("enrolled", [True, False])
    def test_nobody_is_given_what_is_pinned_for_another(self, enrolled: bool) -> None:
        owner = EnrollmentRecord("gpu-2", gpus=(replace(NEW, enrolled=enrolled),))
        result = accepted(shown(), known(RECORD, owner), shown().version, actor=ANN)
        assert code(result) is ReasonCode.GPU_CLAIMED_TWICE


class TestReleasing:
    def test_only_the_denial_ends(self) -> None:
        ended = replace(RECORD, denial=None, lifted_ns=DENIAL.wall_ns, lifted_by=ANN)
        assert released(shown(), shown().version, actor=ANN) == ended

    def test_an_unwritten_denial_ends_too(self) -> None:
        bare = replace(RECORD, denial=None)
        found = show("gpu-1", bare, None, unwritten=DENIAL, now_ns=NOW)
        assert released(found, found.version, actor=ANN) == replace(
            bare, lifted_ns=DENIAL.wall_ns, lifted_by=ANN
        )

    def test_what_was_lifted_before_stays_lifted(self) -> None:
        """With the name of who has ended the latest quarantine."""
        for later_ns in (0, 1):
            later = replace(RECORD, lifted_ns=DENIAL.wall_ns + later_ns, lifted_by=ANN)
            assert later.lifted(DENIAL, BOB) == replace(later, denial=None)
        ended = replace(RECORD, lifted_ns=1, lifted_by=ANN)
        assert ended.lifted(None, BOB) == replace(ended, denial=None)
        assert ended.lifted(DENIAL, BOB).lifted_by == BOB
        assert ended.lifted(DENIAL, BOB).denied(DENIAL).lifted_by == BOB

    def test_something_else_than_what_was_shown_is_not_released(self) -> None:
        assert code(released(shown(), "", actor=ANN)) is ReasonCode.ENROLLMENT_CONFLICT

    def test_a_quarantine_ends_first_and_faults_with_a_second_act(self) -> None:
        fault = Fault("GPU-same", 48, "boot", 1)
        sick = shown(replace(RECORD, faults=(fault,)))
        after = released(sick, sick.version, actor=ANN)
        assert isinstance(after, EnrollmentRecord)
        assert (after.denial, after.faults) == (None, (fault,))
        again = show("gpu-1", after, None, unwritten=None, now_ns=NOW)
        healed = released(again, again.version, actor=ANN)
        assert isinstance(healed, EnrollmentRecord)
        assert healed.faults == (replace(fault, ended=True),)
        free = show("gpu-1", healed, None, unwritten=None, now_ns=NOW)
        assert code(released(free, free.version, actor=ANN)) is ReasonCode.QUARANTINE_UNKNOWN

    def test_a_fault_that_was_not_shown_is_not_released(self) -> None:
        free = replace(RECORD, denial=None)
        seen = shown(replace(free, faults=(Fault("GPU-same", 94, "boot", 1),)))
        later = shown(replace(free, faults=(Fault("GPU-same", 94, "boot", 2),)))
        assert code(released(later, seen.version, actor=ANN)) is ReasonCode.ENROLLMENT_CONFLICT

    def test_who_is_not_denied_cannot_be_released(self) -> None:
        free = shown(replace(RECORD, denial=None))
        assert code(released(free, free.version, actor=ANN)) is ReasonCode.QUARANTINE_UNKNOWN
