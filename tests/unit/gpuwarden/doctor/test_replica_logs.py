"""What the end of a replica's log shows, and what is said of several logs."""

from dataclasses import replace

import pytest

from gpuwarden.audit.reading import RecordFilter
from gpuwarden.audit.record import RecordKind, decode_record
from gpuwarden.doctor.check import Outcome, Verdict, failed, passed, warned
from gpuwarden.doctor.facts import Fact, Facts, Logs, LogVerdict
from gpuwarden.doctor.log import (
    ALL_KINDS,
    END_RECORDS,
    NAMES_KEY,
    joined,
    log_verifies,
    verdict_of_end,
)
from tests.builders.audit_log import log as chain
from tests.builders.certified_log import CertifiedLog, rechained
from tests.builders.log_keys import ORIGIN, signer

TWO = signer(2)
WHOLE = LogVerdict("lab/a", 7, 7, 1)
END = LogVerdict("lab/b", 2000, 4711, 12)
HERE = LogVerdict("lab/a", 9, 9, 1, folder="/log")


def told(*verdicts: LogVerdict, **more: tuple[str, ...]) -> Verdict:
    return log_verifies(Facts(version_here="1", logs=Fact(Logs(verdicts, **more))))


# --- what is read of it


@pytest.mark.parametrize("kind", RecordKind)
def test_no_kind_of_record_is_left_out(kind: RecordKind) -> None:
    (line,) = chain(1, kind=kind.value)
    record = decode_record(line[:-1])
    assert RecordFilter(ALL_KINDS).fits(record)
    names_key = kind in {RecordKind.LOG_KEY, RecordKind.LOG_ROTATE, RecordKind.LOG_START}
    assert RecordFilter(NAMES_KEY).fits(record) is names_key


def test_a_checkpoint_is_among_so_many() -> None:
    assert END_RECORDS == 2000


# --- one log


def test_a_whole_log_has_its_checkpoints() -> None:
    lines = CertifiedLog().records(3).checkpoint().records(2).lines
    assert verdict_of_end(ORIGIN, lines, lines[:1]) == LogVerdict(ORIGIN, 7, 7, 1)


def test_the_end_of_a_log_is_held_to_the_key_that_is_named_far_before() -> None:
    lines = CertifiedLog().records(3).checkpoint().records(2).lines
    assert verdict_of_end(ORIGIN, lines[3:], lines[:1]) == LogVerdict(ORIGIN, 4, 7, 1)
    keyless_end = LogVerdict(ORIGIN, 4, 7, 0, has_key=False)
    assert verdict_of_end(ORIGIN, lines[3:], []) == keyless_end
    named = CertifiedLog(TWO).lines
    found = verdict_of_end(ORIGIN, lines[3:], named)
    assert found.broken.startswith("record 5: not signed by the key")
    keyless = chain(1, kind="log.start")
    assert verdict_of_end(ORIGIN, lines[3:], keyless) == keyless_end


def test_a_key_that_changes_in_the_end_is_followed() -> None:
    log = CertifiedLog().records(3).change_key(TWO).start().checkpoint()
    assert verdict_of_end(ORIGIN, log.lines[2:], log.lines[5:6]) == LogVerdict(ORIGIN, 5, 7, 1)


def test_what_names_the_key_is_verified_itself() -> None:
    log = CertifiedLog().records(3).rotate(checkpoint="no note").records(2)
    found = verdict_of_end(ORIGIN, log.lines[5:], log.lines[4:5])
    assert found.broken.startswith("record 5: not a signed note")


def test_a_record_that_was_changed_is_named() -> None:
    lines = CertifiedLog().records(6).checkpoint().records(2).lines[2:]
    lines[2] = lines[2].replace(b'"actor":"controller"', b'"actor":"nobody"')
    found = verdict_of_end(ORIGIN, lines, [])
    assert found == LogVerdict(ORIGIN, broken="record 5: changed after it was written")
    del lines[2]
    assert verdict_of_end(ORIGIN, lines, []).broken == "record 5: expected record 5, found 6"


def test_a_log_that_was_rewritten_is_found_where_a_file_begins() -> None:
    log = CertifiedLog().records(3).rotate().records(2).checkpoint().records(1)

    def change(records: list) -> None:  # type: ignore[type-arg]  # any JSON
        records[5]["actor"] = "nobody"

    lines = rechained(log.lines, change)[2:]
    assert verdict_of_end(ORIGIN, log.lines[2:], []).checkpoints == 2
    found = verdict_of_end(ORIGIN, lines, [])
    assert found.broken.startswith("record 8: the checkpoint has another root")


def test_records_behind_the_end_of_a_closed_log_are_found() -> None:
    lines = CertifiedLog().add("log.stop").add("node.operator").lines
    assert verdict_of_end(ORIGIN, lines, []).broken == (
        "records behind its end: record 3: node.operator behind the end of a closed log"
    )


def test_records_of_another_replica_are_not_its_log() -> None:
    found = verdict_of_end("lab/b", CertifiedLog().lines, [])
    assert (found.name, found.broken) == ("lab/b", f"record 1: it is of {ORIGIN}")


def test_a_log_without_records_is_broken() -> None:
    assert verdict_of_end("lab/b", [], []).broken == "record 1: holds no record"


# --- several


def test_what_was_verified_and_what_was_not_is_said() -> None:
    assert told(WHOLE) == passed("lab/a: all of 7 records, 1 signed checkpoint")
    assert told(replace(WHOLE, checkpoints=0), END) == passed(
        "lab/a: all of 7 records, 0 signed checkpoints; lab/b: the last 2000 of 4711 records,"
        " 12 signed checkpoints; `gpuwarden audit verify` checks a whole log"
    )
    assert told(HERE) == passed("9 records in /log")
    assert told(replace(HERE, last=90)) == passed("9 records in /log")
    assert told(WHOLE, elsewhere=("lab/c", "lab/d")) == passed(
        "lab/a: all of 7 records, 1 signed checkpoint; not read from here: lab/c, lab/d"
    )


SIGNED = "checkpoints, and a record that names the key which has signed them"
VERIFY = "kubectl -n gpuwarden-system exec b -- gpuwarden audit verify /var/lib/gpuwarden/audit"


@pytest.mark.parametrize(
    ("records", "checkpoints", "is_signed"),
    [(999, 0, True), (1000, 0, False), (2000, 0, False), (2000, 1, True)],
)
def test_so_many_records_without_a_checkpoint_are_a_warning(
    records: int, checkpoints: int, is_signed: bool
) -> None:
    found = told(WHOLE, LogVerdict("lab/b", records, records, checkpoints))
    assert (found.outcome is Outcome.PASSED) is is_signed
    if not is_signed:
        said = f"lab/b: no signature verified, as {records} records have no checkpoint; lab/a: all"
        assert found.seen.startswith(said)
        assert found.seen.endswith(f"all of {records} records, 0 signed checkpoints")
        assert (found.expected, found.command) == (SIGNED, VERIFY)


def test_a_log_whose_key_was_not_found_is_a_warning() -> None:
    keyless = LogVerdict("lab/b", 7, 9, has_key=False)
    why = "no signature verified, as no record that was read names the key"
    end = "lab/b: the last 7 of 9 records, 0 signed checkpoints; `gpuwarden audit verify` checks a"
    assert told(keyless) == warned(f"lab/b: {why}; {end} whole log", SIGNED, VERIFY)
    here = replace(HERE, has_key=False)
    assert told(WHOLE, here).command == "gpuwarden audit verify /log"
    assert told(WHOLE, here).seen.startswith(f"/log: {why}; lab/a: all of 7")
    assert told(keyless, unread=("lab/c: gone",)).seen.startswith("not read: lab/c: gone; lab/b: ")


def test_a_log_that_could_not_be_read_is_a_warning() -> None:
    assert told(WHOLE, unread=("lab/b: gone", "c: late")) == warned(
        "not read: lab/b: gone; c: late; lab/a: all of 7 records, 1 signed checkpoint",
        "the log of every replica",
        "kubectl -n gpuwarden-system get pods -l app.kubernetes.io/component=controller",
    )


def test_a_broken_log_is_named_with_what_verifies_all_of_it() -> None:
    other = LogVerdict("lab/b;x", broken="record 7: changed")
    here = replace(HERE, folder="/my log", broken="record 9: changed")
    expected = "a log that nobody has changed"
    assert told(WHOLE, other, unread=("lab/c: gone",)) == failed(
        "lab/b;x: record 7: changed",
        expected,
        "kubectl -n gpuwarden-system exec 'b;x' -- gpuwarden audit verify /var/lib/gpuwarden/audit",
    )
    assert told(here, other) == failed(
        "/my log: record 9: changed; lab/b;x: record 7: changed",
        expected,
        "gpuwarden audit verify '/my log'",
    )


def test_the_log_here_stands_for_that_of_its_replica() -> None:
    there = Fact(Logs((WHOLE, END), ("lab/c: gone",)))
    found = joined(Fact(HERE), there, is_wanted=False).get()
    assert found == Logs((HERE, END), ("lab/c: gone",))
    assert joined(Fact(HERE), Fact(why="silent"), is_wanted=False).get() == Logs((HERE,))


def test_a_log_here_is_missed_where_somebody_named_its_folder() -> None:
    none: Fact[LogVerdict] = Fact(why="/log: no such folder")
    silent: Fact[Logs] = Fact(why="silent")
    there = Fact(Logs((WHOLE,), ("lab/c: gone",)))
    assert joined(none, there, is_wanted=False) == there
    assert joined(none, there, is_wanted=True).get() == Logs(
        (WHOLE,), ("/log: no such folder", "lab/c: gone")
    )
    assert joined(none, silent, is_wanted=False).why == "silent"
    assert joined(none, silent, is_wanted=True).why == "/log: no such folder"
