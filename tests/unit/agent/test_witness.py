"""The agent as a witness: what it keeps of each log, what it tells, and within which bounds."""

from dataclasses import replace

import pytest

from agent.witness import MAX_ALARMS, MAX_NOTE, MAX_ORIGINS, CheckpointWitness
from gpuwarden.audit.note import sign_note
from gpuwarden.evidence.model import LogAlarm, WitnessedCheckpoint, WitnessedLog
from tests.builders.grown_log import GrownLog
from tests.builders.log_keys import signer


class Kept:
    """A witness with what it reports."""

    def __init__(
        self, logs: tuple[WitnessedLog, ...] = (), alarms: tuple[LogAlarm, ...] = ()
    ) -> None:
        self.changes = 0
        self.alarmed: list[LogAlarm] = []
        self.witness = CheckpointWitness(
            logs,
            alarms,
            changed=self._changed,
            alarmed=self.alarmed.append,
            wall_ms=lambda: 1234,
        )

    def _changed(self) -> None:
        self.changes += 1

    def again(self) -> "Kept":
        """The next process."""
        return Kept(self.witness.logs(), self.witness.alarms())


def of(origin: str, size: int, **changes: int) -> GrownLog:
    return GrownLog(size, signer=signer(name=origin), **changes)  # type: ignore[arg-type]


def test_the_last_checkpoint_of_every_origin_is_kept() -> None:
    kept = Kept()
    for log, base in ((of("main/1", 5), 0), (of("main/0", 7), 0), (of("main/1", 9), 5)):
        kept.witness.witness(log.shown(base))
    kept.witness.witness(of("main/1", 9).shown(9))
    assert kept.witness.checkpoints() == (
        WitnessedCheckpoint(origin="main/0", checkpoint=of("main/0", 7).note()),
        WitnessedCheckpoint(origin="main/1", checkpoint=of("main/1", 9).note()),
    )
    assert kept.changes == 3
    assert kept.witness.logs()[0].key == str(signer(name="main/0").key)
    assert kept.witness.alarms() == ()


def test_what_an_earlier_process_saw_counts() -> None:
    kept = Kept()
    kept.witness.witness(of("o", 5).shown())
    later = kept.again()
    later.witness.witness(of("o", 6).shown(5))
    assert later.witness.checkpoints()[0].checkpoint == of("o", 6).note()
    assert later.alarmed == []


def test_an_alarm_is_reported_once_and_stays() -> None:
    kept = Kept()
    kept.witness.witness(of("o", 5).shown())
    fork = of("o", 5, fork=2)
    for _ in range(3):
        kept.witness.witness(fork.shown(5))
    (alarm,) = kept.alarmed
    assert kept.witness.alarms() == (alarm,)
    assert (alarm.code, alarm.origin, alarm.wall_ms) == ("CHECKPOINT_INCONSISTENT", "o", "1234")
    assert (alarm.known, alarm.seen) == (of("o", 5).note(), fork.note())
    assert kept.changes == 2

    later = kept.again()
    later.witness.witness(fork.shown(5))
    assert later.witness.alarms() == (alarm,)
    assert (later.alarmed, later.changes) == ([], 0)
    assert later.witness.checkpoints()[0].checkpoint == of("o", 5).note()


def test_a_reset_is_reported_beside_an_inconsistency() -> None:
    kept = Kept()
    kept.witness.witness(of("o", 5).shown())
    kept.witness.witness(of("o", 5, fork=2).shown(5))
    kept.witness.witness(of("o", 5, fork=0).shown())
    assert [alarm.code for alarm in kept.alarmed] == ["CHECKPOINT_INCONSISTENT", "LOG_RESET"]
    assert kept.witness.checkpoints()[0].checkpoint == of("o", 5, fork=0).note()


@pytest.mark.parametrize("note", ["", "junk", sign_note(f"o\n{'x' * MAX_NOTE}\n", [signer()])])
def test_what_is_no_checkpoint_is_left_out(note: str) -> None:
    kept = Kept()
    kept.witness.witness(replace(of("o", 5).shown(), note=note))
    assert kept.witness.checkpoints() == ()
    assert (kept.changes, kept.alarmed) == (0, [])


def test_a_first_checkpoint_that_cannot_be_verified_is_an_alarm_only() -> None:
    kept = Kept()
    kept.witness.witness(replace(of("o", 5).shown(), key=str(signer(2, "o").key)))
    assert kept.witness.checkpoints() == ()
    assert [alarm.known for alarm in kept.alarmed] == [""]


def test_what_was_kept_but_cannot_be_read_gives_way() -> None:
    kept = Kept((WitnessedLog(origin="o", checkpoint="junk", key="junk"),))
    kept.witness.witness(of("o", 5).shown())
    assert kept.witness.checkpoints()[0].checkpoint == of("o", 5).note()
    assert kept.alarmed == []


def test_origins_and_alarms_are_bounded() -> None:
    kept = Kept()
    for number in range(MAX_ORIGINS + 1):
        kept.witness.witness(of(f"o{number:02}", 2).shown())
    assert len(kept.witness.checkpoints()) == MAX_ORIGINS
    for number in range(MAX_ALARMS + 1):
        kept.witness.witness(of(f"o{number:02}", 2, fork=1).shown(2))
    assert len(kept.alarmed) == len(kept.witness.alarms()) == MAX_ALARMS
