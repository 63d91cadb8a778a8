from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.audit.sealing import LogIdentity, Sealer
from controller.binding.records import (
    ReservationChange,
    ended_record,
    kept_record,
    reservation_record,
    restored_record,
)
from controller.binding.use_records import allocation_record
from controller.fleet.enrollment import AUTOMATIC, Candidate, QuarantineEntry
from controller.fleet.quarantine import QuarantineFate
from controller.ledger.record import HolderState, PodRef
from controller.ledger.release import GivenGpu
from controller.ledger.restore import LivePod, LoggedGrant
from controller.operations.logged import open_grants, quarantine_entries, quarantine_record
from controller.record import Record
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.record import LogRecord, RecordKind, decode_record
from tests.builders.logged import logged as logged_grants

# --- What one log says about denials is what its replica saw last

SEALER = Sealer(LogIdentity("lab/a", "boot", "instance"))
FIRST = QuarantineEntry("NODE_DENIED", "smells", "spiffe://x/operator/o", 1_700_000_000_123_456_789)
SECOND = QuarantineEntry("INVENTORY_CHANGED", "swapped", AUTOMATIC, FIRST.wall_ns + 1)
EXISTS, LIFTED, LOST = QuarantineFate


def logged(node: str, denial: QuarantineEntry, fate: QuarantineFate) -> LogRecord:
    """As it comes back from the log."""
    return decode_record(SEALER.seal(quarantine_record(node, denial, fate), 0, BEFORE_FIRST).line)


def test_a_quarantine_entry_in_force_is_restored_unchanged() -> None:
    found = quarantine_entries([logged("gpu-1", FIRST, EXISTS), logged("gpu-2", SECOND, LOST)])
    assert found == {"gpu-1": FIRST, "gpu-2": SECOND}


def test_only_what_was_lifted_is_gone() -> None:
    both = [logged("gpu-1", FIRST, EXISTS), logged("gpu-2", FIRST, EXISTS)]
    assert quarantine_entries([*both, logged("gpu-1", FIRST, LIFTED)]) == {"gpu-2": FIRST}
    assert quarantine_entries([*both, logged("gpu-1", SECOND, LIFTED)]) == {"gpu-2": FIRST}
    newer = [*both, logged("gpu-1", SECOND, EXISTS), logged("gpu-1", FIRST, LIFTED)]
    assert quarantine_entries(newer) == {"gpu-1": SECOND, "gpu-2": FIRST}
    assert quarantine_entries([logged("gpu-1", FIRST, LIFTED)]) == {}


def test_the_longest_denial_fits_into_a_record() -> None:
    shown = Candidate("INVENTORY_CHANGED", None, None, (), "e" * 64)
    longest = QuarantineEntry(
        "A" * 63, "\N{SNOWMAN}" * 4096, "spiffe://" + "x" * 2039, 10**18, shown
    )
    found = quarantine_entries([logged("n" * 253, longest, EXISTS)])
    assert [x.wall_ns for x in found.values()] == [10**18]


def renamed(kind: str, record: LogRecord) -> LogRecord:
    """As another version has written it."""
    return msgspec.structs.replace(record, kind=kind)


@dataclass
class Odd:
    """Has the fields of a record that are looked at."""

    kind: str = "node.quarantine"
    subject: str = "node/gpu-1"
    origin: str = "lab/a"
    codes: tuple[str, ...] = ("X",)
    decision: str = "exists"
    refs: dict[str, Any] = field(default_factory=lambda: {"by": "me", "reason": "why", "time": "1"})


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.text())


@given(st.sampled_from(["by", "reason", "time"]), JSON)
def test_what_is_not_ours_is_skipped(key: str, value: Any) -> None:
    odd = Odd()
    odd.refs[key] = value
    record: Any = odd
    found = quarantine_entries([record])
    assert len(found) == (key != "time" or _is_number(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdecimal()


def test_other_records_are_none_of_it() -> None:
    odds: list[Any] = [Odd(kind="node.state"), Odd(subject="gpu-1"), Odd(codes=()), Odd(refs={})]
    assert quarantine_entries(odds) == {}


def test_an_entry_of_an_earlier_version_is_in_force_until_it_is_lifted() -> None:
    former = renamed("node.denial", logged("gpu-1", FIRST, EXISTS))
    stands = msgspec.structs.replace(former, decision="stands")
    assert quarantine_entries([stands]) == {"gpu-1": FIRST}
    assert quarantine_entries([stands, logged("gpu-1", FIRST, LIFTED)]) == {}
    lifted = renamed("node.denial", logged("gpu-1", FIRST, LIFTED))
    assert quarantine_entries([logged("gpu-1", FIRST, EXISTS), lifted]) == {}


# --- A log says which reservations have no end; what is no record of ours holds nothing

POD = PodRef("team-a", "train-0", "uid-0")
BOTH = ("GPU-a", "GPU-b")
A, B = (LoggedGrant(x, "gpu-1", "v1.k.x", POD, BOTH) for x in BOTH)
FOUND = {("gpu-a", "v1.k.x"): A, ("gpu-b", "v1.k.x"): B}


def change(state: HolderState, *gpus: str) -> Record:
    made = ReservationChange(POD, "v1.k.x", "gpu-1", gpus or BOTH, state, "why")
    return reservation_record(made)


RESERVED = change(HolderState.PROPOSED)


@pytest.mark.parametrize("state", [x for x in HolderState if not x.is_end])
def test_it_is_open_from_whatever_is_known_first(state: HolderState) -> None:
    bound = state is not HolderState.PROPOSED
    a, b = replace(A, bound=bound), replace(B, bound=bound)
    both = {("gpu-a", "v1.k.x"): a, ("gpu-b", "v1.k.x"): b}
    assert open_grants(logged_grants(change(state))) == both
    part = {**FOUND, ("gpu-a", "v1.k.x"): a}
    assert open_grants(logged_grants(RESERVED, change(state, "GPU-a"))) == part
    assert open_grants(logged_grants(change(state), RESERVED)) == both


@pytest.mark.parametrize("state", [x for x in HolderState if x.is_end])
def test_each_gpu_has_its_end(state: HolderState) -> None:
    assert open_grants(logged_grants(RESERVED, change(state))) == {}
    assert open_grants(logged_grants(RESERVED, change(state, "GPU-a"))) == {("gpu-b", "v1.k.x"): B}
    assert open_grants(logged_grants(change(state))) == {}
    assert open_grants(logged_grants(RESERVED, change(state), RESERVED)) == FOUND


def test_an_end_that_another_replica_brought_about_counts() -> None:
    assert open_grants(logged_grants(RESERVED, ended_record(A))) == {("gpu-b", "v1.k.x"): B}
    other = replace(A, reservation="v1.k.y")
    assert open_grants(logged_grants(RESERVED, ended_record(other))) == FOUND


def test_what_was_written_again_is_open_once_more() -> None:
    alone = LoggedGrant("GPU-a", "gpu-1", "v1.k.x", POD, ("GPU-a",), bound=True)
    assert open_grants(logged_grants(kept_record(A))) == {("gpu-a", "v1.k.x"): alone}
    live = LivePod(POD, "gpu-1", "v1.k.x", BOTH)
    assert open_grants(logged_grants(restored_record(live, "GPU-a"))) == {
        ("gpu-a", "v1.k.x"): alone
    }


def test_what_kubelet_gave_is_open() -> None:
    given = GivenGpu(POD, "gpu-1", "GPU-a")
    alone = LoggedGrant("GPU-a", "gpu-1", "v1.k.x", POD, ("GPU-a",), bound=True)
    assert open_grants(logged_grants(allocation_record(given, "v1.k.x", "e" * 64))) == {
        ("gpu-a", "v1.k.x"): alone
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": None},
        {"uid": ""},
        {"uid": 1},
        {"node": ""},
        {"reservation": "No"},
        {"gpus": []},
        {"gpus": ["0"]},
        {"gpus": [1]},
        {"gpus": ["GPU-a", "GPU-A"]},
        {"gpus": {"count": 64, "digest": "x"}},
    ],
    ids=str,
)
def test_what_is_no_reservation_of_a_born_pod_holds_nothing(wrong: dict[str, Any]) -> None:
    odd = replace(RESERVED, refs={**RESERVED.refs, **wrong})
    assert open_grants(logged_grants(odd)) == {}


@pytest.mark.parametrize("subject", ["node/gpu-1", "pod/a", "pod//b", "pod/a/b/c", "pod/a/"])
def test_it_is_about_a_pod(subject: str) -> None:
    assert open_grants(logged_grants(replace(RESERVED, subject=subject))) == {}


def test_other_records_are_no_reservations() -> None:
    assert open_grants(logged_grants(replace(RESERVED, kind=RecordKind.BIND_DECISION))) == {}
    (unknown,) = logged_grants(RESERVED)
    assert open_grants([renamed("bind.painted", unknown)]) == {}
    for kind in (RecordKind.RESERVATION_OPERATOR, RecordKind.RESERVATION_MISMATCH):
        assert open_grants(logged_grants(replace(RESERVED, kind=kind))) == {}


@pytest.mark.parametrize(
    "kind", ["reservation.adopted", "reservation.settled", "reservation.painted"]
)
def test_what_another_version_has_recorded_of_a_reservation_is_open(kind: str) -> None:
    (reserved,) = logged_grants(RESERVED)
    (ended,) = logged_grants(change(HolderState.RELEASED))
    bound = {key: replace(x, bound=True) for key, x in FOUND.items()}
    assert open_grants([renamed(kind, reserved)]) == bound
    assert open_grants([reserved, renamed(kind, reserved)]) == bound
    assert open_grants([renamed(kind, reserved), ended]) == {}


@pytest.mark.parametrize("decision", ["adopted", "held", "settled"])
def test_the_decision_of_an_earlier_version_changes_nothing(decision: str) -> None:
    (record,) = logged_grants(kept_record(A))
    former = msgspec.structs.replace(record, decision=decision)
    assert open_grants([former]) == open_grants([record]) != {}
