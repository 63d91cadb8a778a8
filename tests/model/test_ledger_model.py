"""Every state of small worlds: no GPU is used twice, none is free in use, none is lost forever.

The last is that everything can still come to rest from every state. Each seeded fault must
be found, or the worlds prove nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.ledger.attempt import AttemptWatch, Move, Requeue, Wait, attempt_step
from controller.ledger.claim import Claim, Taken, Write, claim_on
from controller.ledger.record import GpuRecord, Holder, HolderState
from controller.ledger.release import (
    Known,
    ReleaseWatch,
    UseReport,
    after_report,
    allocation_recorded,
    released_by_operator,
)
from tests.model.explorer import FoundError, explore
from tests.model.ledger_plans import BOTH_GPUS, NO_DELETIONS, ORDERED, PUT_BACK, WHOLE
from tests.model.ledger_world import Plan, Rules, Steps

LEAST = 100_000
SIZES = {
    "two pods want one GPU, two replicas claim": 19_000,
    "two replicas see to one attempt, one crashes": 19_000,
    "one replica crashes between writes, answers are lost, a creation comes late": 63_000,
    "one pod, two nodes, two Bindings in flight": 22_000,
    "a record is removed by force, the replica crashes": 28_000,
    "the store is put back to an old copy": 53_000,
    "reports are on their way while the pod ends": 29_000,
    "a retry at the other replica": 8_000,
    "a share group": 38_000,
    PUT_BACK: 16_000,
    ORDERED: 27_000,
    "an operator releases, two replicas see to it": 8_000,
    "two replicas record what kubelet gave, one crashes": 6_000,
    "kubelet gives a GPU to two pods in turn": 22_000,
    "kubelet gives a GPU to a later pod of the same name, the replica crashes": 38_000,
    "kubelet gives another GPU to a later pod of the same name": 21_000,
}
"""States of each world at least: one that shrinks shows less than it did."""


@pytest.mark.parametrize("name", WHOLE)
def test_no_state_is_wrong_and_none_is_a_dead_end(name: str) -> None:
    found = explore(Steps(WHOLE[name], Rules()), most=10 * LEAST)
    assert found.complete
    assert found.stuck == ()
    assert found.states >= SIZES[name]


def test_the_worlds_are_large() -> None:
    assert SIZES.keys() == WHOLE.keys()
    assert sum(SIZES.values()) >= LEAST


def expires_without_requeue(*asked: Any) -> Any:
    found = attempt_step(*asked)
    return Move(HolderState.EXPIRED, "") if isinstance(found, Requeue) else found


def frees_the_gone(*asked: Any) -> Any:
    found = attempt_step(*asked)
    over = isinstance(found, Move) and found.to is HolderState.RELEASING
    return Move(HolderState.EXPIRED, "") if over else found


def never_expires(*asked: Any) -> Any:
    found = attempt_step(*asked)
    return Wait(0) if isinstance(found, Requeue) else found


def confirms_everything(*asked: Any) -> Any:
    found = attempt_step(*asked)
    return Move(HolderState.CONFIRMED, "") if isinstance(found, Wait) else found


def forgets_changes(
    watch: AttemptWatch | None, parts: tuple[Holder, ...], now_ns: int
) -> AttemptWatch:
    return watch or AttemptWatch(parts, now_ns)


def takes_back_everything(record: GpuRecord | None, claim: Claim) -> GpuRecord | None:
    mine = None if record is None else record.holder(claim.reservation)
    if record is None or mine is None or mine.state is not HolderState.PROPOSED:
        return None
    return record.moved(claim.reservation, HolderState.REVOKED)


def does_not_count_in(record: GpuRecord | None, claim: Claim, gpu: str) -> Any:
    found = claim_on(record, claim, gpu)
    if isinstance(found, Write) and record is not None and record.holder(claim.reservation):
        return Write(replace(record, version=record.version + 1))
    return found


def shares_with_anybody(record: GpuRecord | None, claim: Claim, gpu: str) -> Any:
    found = claim_on(record, claim, gpu)
    if isinstance(found, Taken) and record is not None and not record.holder(claim.reservation):
        return Write(record.with_holder(replace(claim.part(), restored=True)))
    return found


def asks_the_group_alone(record: GpuRecord | None, claim: Claim, gpu: str) -> Any:
    """Not who else has a part in it."""
    found = claim_on(record, claim, gpu)
    if isinstance(found, Taken) and record is not None and record.share == claim.share is not None:
        return Write(record.with_holder(claim.part()))
    return found


def trusts_the_end(watch: ReleaseWatch | None, *_: Any) -> Move | None:
    return None if watch is None else Move(HolderState.RELEASED, "")


def trusts_one_report(watch: ReleaseWatch, *asked: Any, **more: Any) -> ReleaseWatch:
    found = after_report(watch, *asked, **more)
    return replace(found, quiet=2) if found.quiet else found


def trusts_old_reports(
    watch: ReleaseWatch, holder: Holder, gpu: str, report: UseReport, **more: Any
) -> ReleaseWatch:
    return after_report(watch, holder, gpu, replace(report, asked_ns=2), **more)


def records_in_the_place_of_others(record: GpuRecord | None, *given: Any) -> GpuRecord | None:
    found = allocation_recorded(None, *given)
    if record is None or found is None or record.of_pod(str(found.holders[0].pod.uid)):
        return found if record is None else None
    return replace(found, version=record.version + 1)


def releases_attempts(record: GpuRecord | None, reservation: str, known: Known) -> Any:
    mine = None if record is None else record.holder(reservation)
    if record is not None and mine is not None and mine.state is HolderState.PROPOSED:
        return record.moved(reservation, HolderState.REVOKED)
    return released_by_operator(record, reservation, known)


def contradicts(record: GpuRecord | None, reservation: str, known: Known) -> Any:
    return released_by_operator(record, reservation, replace(known, report=None))


FAULTS: dict[str, tuple[Plan, Rules]] = {
    "an operator releases an attempt": (
        WHOLE[ORDERED],
        Rules(released_by_operator=releases_attempts),
    ),
    "an operator contradicts the node": (WHOLE[ORDERED], Rules(released_by_operator=contradicts)),
    "an operator is wrong about a silent node": (WHOLE[ORDERED], Rules(truthful=False)),
    "an attempt expires without a requeue": (
        WHOLE["two replicas see to one attempt, one crashes"],
        Rules(attempt_step=expires_without_requeue),
    ),
    "an attempt is confirmed by itself": (
        WHOLE["two replicas see to one attempt, one crashes"],
        Rules(attempt_step=confirms_everything),
    ),
    "an attempt of a pod that is gone is free at once": (
        WHOLE["two replicas see to one attempt, one crashes"],
        Rules(attempt_step=frees_the_gone),
    ),
    "an expiry does not notice that the attempt was taken up": (
        WHOLE["a retry at the other replica"],
        Rules(watch_attempt=forgets_changes),
    ),
    "a rollback takes back what others rely on": (
        BOTH_GPUS,
        Rules(rolled_back=takes_back_everything),
    ),
    "a retry is not counted in": (BOTH_GPUS, Rules(claim_on=does_not_count_in)),
    "the store does not compare": (
        WHOLE["two pods want one GPU, two replicas claim"],
        Rules(compares=False),
    ),
    "anybody shares": (
        WHOLE["two pods want one GPU, two replicas claim"],
        Rules(claim_on=shares_with_anybody),
    ),
    "a share group joins a stranger": (
        WHOLE[PUT_BACK],
        Rules(claim_on=asks_the_group_alone),
    ),
    "nobody looks at the use of a shared GPU": (WHOLE[PUT_BACK], Rules(looks_at_shared=False)),
    "a GPU is free when its pod has ended": (
        WHOLE["reports are on their way while the pod ends"],
        Rules(release_step=trusts_the_end),
    ),
    "one report is enough": (
        WHOLE["reports are on their way while the pod ends"],
        Rules(after_report=trusts_one_report),
    ),
    "reports from before the end count": (
        WHOLE["reports are on their way while the pod ends"],
        Rules(after_report=trusts_old_reports),
    ),
    "a recorded allocation takes the place of who is there": (
        WHOLE["kubelet gives another GPU to a later pod of the same name"],
        Rules(allocation_recorded=records_in_the_place_of_others),
    ),
    "a GPU that kubelet gave is free when its pod has ended": (
        WHOLE["kubelet gives a GPU to two pods in turn"],
        Rules(release_step=trusts_the_end),
    ),
    "grants do not wait for live pods' records": (
        WHOLE["the store is put back to an old copy"],
        Rules(waits_for_reconciliation=False),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found(name: str) -> None:
    plan, rules = FAULTS[name]
    with pytest.raises(FoundError):
        explore(Steps(plan, rules), most=10 * LEAST)


STUCK: dict[str, Callable[[], Rules]] = {
    "an attempt never expires": lambda: Rules(attempt_step=never_expires),
    "an end is never watched": lambda: Rules(watch_release=lambda *_: None),
    "what is released stays": lambda: Rules(release_step=lambda *_: None),
}


@pytest.mark.parametrize("name", STUCK)
def test_what_is_lost_for_ever_is_found(name: str) -> None:
    assert explore(Steps(NO_DELETIONS, Rules()), most=LEAST).stuck == ()
    assert explore(Steps(NO_DELETIONS, STUCK[name]()), most=10 * LEAST).stuck
