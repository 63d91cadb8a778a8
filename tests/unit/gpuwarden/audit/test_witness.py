"""What a witness believes, what it holds, and what it raises an alarm about."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.audit.checkpoint import TreeHead, sign_change
from gpuwarden.audit.note import NoteError
from gpuwarden.audit.witness import Alarm, Shown, Witnessed, conclude, remembered
from gpuwarden.reasons import ReasonCode
from tests.builders.grown_log import GrownLog
from tests.builders.log_keys import signer

ONE, TWO, THREE = signer(1), signer(2), signer(3)
INCONSISTENT, RESET = ReasonCode.CHECKPOINT_INCONSISTENT, ReasonCode.LOG_RESET


def seen(log: GrownLog, *sizes: int) -> Witnessed:
    """A witness that has seen these sizes one after another."""
    known, base = None, 0
    for size in sizes:
        known, alarm = conclude(known, log.shown(base, size))
        assert alarm is None
        base = size
    assert known is not None
    return known


def alarm_about(known: Witnessed | None, shown: Shown) -> tuple[Witnessed | None, Alarm]:
    after, alarm = conclude(known, shown)
    assert alarm is not None
    assert alarm.seen == shown.note
    return after, alarm


def test_the_first_checkpoint_is_believed_and_its_key_pinned() -> None:
    known, alarm = conclude(None, GrownLog(5).shown())
    assert alarm is None
    assert known is not None
    assert (known.key, known.head) == (ONE.key, GrownLog(5).head())


def test_what_is_proven_is_believed() -> None:
    known = seen(GrownLog(20), 3, 3, 7, 20)
    assert known.head == GrownLog(20).head()
    assert [head.size for head in known.recent] == [0, 3, 7, 20]


def test_a_witness_keeps_the_latest_heads() -> None:
    known = seen(GrownLog(30), *range(1, 13))
    assert [head.size for head in known.recent] == [5, 6, 7, 8, 9, 10, 11, 12]


def test_a_proof_is_base64_and_nothing_else() -> None:
    shown = GrownLog(9).shown(4)
    for junk in ("!", "\n"):
        changed = replace(shown, proof=(shown.proof[0] + junk, *shown.proof[1:]))
        assert alarm_about(seen(GrownLog(9), 4), changed)[1].code is INCONSISTENT


def test_a_witness_goes_on_from_what_it_remembers() -> None:
    log = GrownLog(9)
    before = seen(log, 4)
    known = remembered(before.note, str(before.key))
    assert (known.key, known.head, known.recent) == (before.key, before.head, (before.head,))
    after, alarm = conclude(known, log.shown(4))
    assert alarm is None
    assert after is not None
    assert after.head == log.head()
    assert alarm_about(known, log.shown())[1].code is INCONSISTENT
    with pytest.raises(NoteError):
        remembered(before.note, str(TWO.key))


@pytest.mark.parametrize("fork", [0, 3, 6])
def test_a_fork_of_the_same_size_is_inconsistent(fork: int) -> None:
    known = seen(GrownLog(7), 4, 7)
    after, alarm = alarm_about(known, GrownLog(7, fork=fork).shown(7))
    if fork == 0:  # its first record differs: that is another log
        assert alarm.code is RESET
        assert after is not None
        assert after.head == GrownLog(7, fork=0).head()
    else:
        assert (alarm.code, alarm.known) == (INCONSISTENT, known.note)
        assert "7 records have another root" in alarm.detail
        assert after == known


@pytest.mark.parametrize("base", [3, 5, 7])
def test_a_larger_fork_is_inconsistent(base: int) -> None:
    known = seen(GrownLog(7), 7)
    after, alarm = alarm_about(known, GrownLog(12, fork=5).shown(base))
    assert alarm.code is INCONSISTENT
    assert "12 records are not shown to continue the 7 seen" in alarm.detail
    assert after == known


@pytest.mark.parametrize("proof", [("!",), ("AAAA",)])
def test_growth_without_a_proof_is_inconsistent(proof: tuple[str, ...]) -> None:
    shown = replace(GrownLog(9).shown(4), proof=proof)
    assert alarm_about(seen(GrownLog(9), 4), shown)[1].code is INCONSISTENT


def test_growth_without_a_proof_is_held_while_the_controller_may_not_know_better() -> None:
    """News right after the first challenge: the next one comes before our evidence."""
    known: Witnessed | None = seen(GrownLog(9), 4)
    for _ in range(3):
        known, alarm = conclude(known, GrownLog(9).shown())
        assert alarm is None
    assert known is not None
    assert known.head.size == 4
    assert alarm_about(known, GrownLog(9).shown())[1].code is INCONSISTENT


def test_a_log_that_was_cut_back_is_inconsistent() -> None:
    log = GrownLog(9)
    first = seen(log, 9)
    known = remembered(first.note, str(first.key))
    for one in (first, known):
        assert alarm_about(one, log.shown(size=6))[1].code is INCONSISTENT
    assert alarm_about(known, log.shown(2, 6))[1].code is INCONSISTENT


def test_a_checkpoint_of_another_stream_is_held_for_a_while() -> None:
    """Proven from an earlier one only, as two streams that overlap may see it."""
    log = GrownLog(30)
    known = seen(log, 4, 9)
    late, alarm = conclude(known, log.shown(4, 6))
    assert alarm is None
    assert late is not None
    assert late.head.size == 9
    again, alarm = conclude(late, log.shown(4, 4))
    assert alarm is None
    assert again is not None
    onward, alarm = conclude(again, log.shown(9, 12))
    assert alarm is None
    assert onward is not None
    assert (onward.head.size, onward.held) == (12, 0)


def test_a_fork_behind_an_earlier_checkpoint_is_not_held_for_ever() -> None:
    known: Witnessed | None = seen(GrownLog(9), 4, 9)
    fork = GrownLog(12, fork=6)
    for _ in range(3):
        known, alarm = conclude(known, fork.shown(4))
        assert alarm is None
    assert known is not None
    assert known.head == GrownLog(9).head()
    assert alarm_about(known, fork.shown(4))[1].code is INCONSISTENT
    assert alarm_about(known, GrownLog(9, fork=6).shown(4))[1].code is INCONSISTENT


def test_a_new_key_is_taken_with_a_statement_of_the_old_one() -> None:
    known = seen(GrownLog(9), 4)
    changes = (sign_change(ONE, TWO), sign_change(TWO, THREE))
    after, alarm = conclude(known, GrownLog(9, signer=THREE, key_changes=changes).shown(4))
    assert alarm is None
    assert after is not None
    assert after.key == THREE.key
    # The old key is not taken any more.
    assert alarm_about(after, GrownLog(9).shown(9))[1].code is INCONSISTENT


def test_another_key_for_the_same_log_is_inconsistent() -> None:
    known = seen(GrownLog(9), 4)
    after, alarm = alarm_about(known, GrownLog(9, signer=TWO).shown(4))
    assert alarm.code is INCONSISTENT
    assert "nothing leads to it" in alarm.detail
    assert after == known


def test_another_key_for_another_log_is_a_reset_whatever_it_names() -> None:
    known = seen(GrownLog(9), 9)
    after, alarm = alarm_about(known, GrownLog(3, fork=0, signer=TWO, prev=known.head).shown())
    assert alarm.code is RESET
    assert after is not None
    assert after.key == TWO.key


@pytest.mark.parametrize(
    ("size", "root", "is_alarm"),
    [(9, "same", False), (9, "other", True), (8, "other", True), (10, "other", False)],
)
def test_a_new_log_has_to_name_what_was_seen(size: int, root: str, *, is_alarm: bool) -> None:
    known = seen(GrownLog(9), 9)
    prev = TreeHead(size, known.head.root if root == "same" else b"o" * 32)
    after, alarm = conclude(known, GrownLog(3, fork=0, prev=prev).shown())
    assert after is not None
    assert after.head.size == 3
    assert (alarm is not None) is is_alarm
    if alarm is not None:
        assert alarm.code is RESET
        assert f"{size} records, not as it was seen" in alarm.detail


def test_a_new_log_without_a_name_is_a_reset() -> None:
    known = seen(GrownLog(9), 9)
    after, alarm = alarm_about(known, GrownLog(30, fork=0).shown())
    assert (alarm.code, alarm.origin, alarm.known) == (RESET, ONE.key.name, known.note)
    assert after is not None
    assert conclude(after, GrownLog(30, fork=0).shown(30))[1] is None


def test_a_wrong_signature_is_inconsistent() -> None:
    log = GrownLog(9)
    forged = replace(log.shown(4), note=log.note().replace("\n9\n", "\n8\n"))
    known = seen(log, 4)
    after, alarm = alarm_about(known, forged)
    assert alarm.code is INCONSISTENT
    assert "does not hold" in alarm.detail
    assert after == known
    nobody, alarm = alarm_about(None, forged)
    assert nobody is None
    assert alarm.known == ""
    assert alarm_about(known, replace(log.shown(4), key="no key"))[1].code is INCONSISTENT


def test_what_is_no_checkpoint_says_nothing() -> None:
    known = seen(GrownLog(9), 4)
    assert conclude(known, replace(GrownLog(9).shown(4), note="junk")) == (known, None)


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_two_overlapping_streams_see_of_one_log_is_no_alarm(data: st.DataObject) -> None:
    """Each stream is proven from what the witness had kept when it last spoke on it."""
    log = GrownLog(24)
    known, told, size = None, [0, 0], 1
    for _ in range(data.draw(st.integers(1, 8))):
        stream = data.draw(st.integers(0, 1))
        late = known is not None and told[stream] != known.head.size
        size = data.draw(st.integers(max(size, told[stream]), 24))
        known, alarm = conclude(known, log.shown(told[stream], size))
        assert alarm is None
        assert known is not None
        told[stream] = known.head.size
        if late:  # the answer is on its way; the other stream has it by now
            told[1 - stream] = known.head.size


@settings(max_examples=150)
@given(data=st.data())
def test_no_fork_before_the_last_checkpoint_is_ever_believed(data: st.DataObject) -> None:
    seen_size = data.draw(st.integers(2, 12))
    fork = GrownLog(data.draw(st.integers(1, 20)), fork=data.draw(st.integers(1, seen_size - 1)))
    known: Witnessed | None = seen(GrownLog(12), 1, seen_size)
    alarms = []
    for _ in range(4):
        base = data.draw(st.integers(0, fork.size))
        known, alarm = conclude(known, fork.shown(base))
        alarms.append(alarm)
    assert known is not None
    assert known.head == GrownLog(12).head(seen_size)
    assert any(alarms)
