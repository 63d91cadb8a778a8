"""What the chain cannot show: a log that was rewritten as a whole, or that another key signed."""

from base64 import b64encode
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.audit.chain import BEFORE_FIRST, Broken, Verified, verify_collected, verify_lines
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, sign_change
from gpuwarden.audit.merkle import Frontier
from gpuwarden.audit.record import decode_record
from gpuwarden.audit.tree_check import NOTHING_WANTED, TreeCheck, TreeFacts, TreeFault, Wanted
from tests.builders.audit_log import GENESIS, line, log
from tests.builders.certified_log import CertifiedLog, rechained
from tests.builders.log_keys import ORIGIN, signer
from tests.builders.log_trees import naive_root

ONE, TWO, THREE = signer(1), signer(2), signer(3)


def whole() -> CertifiedLog:
    """Seventeen records: three checkpoints, a rotation, and two records after the last."""
    log = CertifiedLog().records(2).checkpoint().records(3).checkpoint()
    return log.rotate().records(4).checkpoint().records(2)


def verified(lines: list[bytes], wanted: Wanted = NOTHING_WANTED) -> Verified:
    result = verify_lines(lines, wanted=wanted)
    assert isinstance(result, Verified), result
    return result


def broken(lines: list[bytes], wanted: Wanted = NOTHING_WANTED) -> Broken:
    result = verify_lines(lines, wanted=wanted)
    assert isinstance(result, Broken), result
    return result


def test_a_whole_log_tells_what_certifies_it() -> None:
    log = whole()
    facts = verified(log.lines).tree
    assert (facts.checkpoints, facts.certified, facts.keys) == (4, 13, (ONE.key,))
    assert facts.root == naive_root([line[:-1] for line in log.lines])
    assert facts.root == log.tree.root()


def test_a_log_without_checkpoints_has_a_root_only() -> None:
    facts = verified(log(3)).tree
    assert facts == TreeFacts(0, 0, "", (), naive_root([line[:-1] for line in log(3)]))


@settings(max_examples=200)
@given(data=st.data())
def test_a_log_that_was_rewritten_as_a_whole_is_found(data: st.DataObject) -> None:
    """Flip, delete, repeat, insert or move a record and chain all again: a checkpoint says so."""
    lines = whole().lines
    at = data.draw(st.integers(0, 12))
    other = data.draw(st.integers(0, 12).filter(lambda x: x != at))
    how = data.draw(st.sampled_from(["change", "delete", "repeat", "insert", "move"]))

    def change(records: list) -> None:  # type: ignore[type-arg]  # any JSON
        match how:
            case "change":
                records[at]["actor"] = "somebody"
            case "delete":
                del records[at]
            case "repeat":
                records.insert(at, dict(records[at]))
            case "insert":
                records.insert(at, dict(records[-1]) | {"actor": "somebody"})
            case _:
                records.insert(other, records.pop(at))

    forged = rechained(lines, change)
    if forged == lines:  # two records that are alike but for their number
        return
    fault = broken(forged)
    first = min(at, other) if how == "move" else at
    assert first + 1 <= fault.seq <= 15
    assert fault.intact.seq < fault.seq


def test_the_fault_is_at_the_first_checkpoint_behind_the_change() -> None:
    def change(records: list) -> None:  # type: ignore[type-arg]  # any JSON
        records[4]["actor"] = "somebody"

    fault = broken(rechained(whole().lines, change))
    assert (fault.seq, fault.line, fault.intact.seq) == (8, 8, 7)
    assert "of the 7 records before it, at least one behind record 3" in fault.what


def test_what_comes_behind_the_last_checkpoint_needs_one_from_elsewhere() -> None:
    log = whole()
    kept = Checkpoint(ORIGIN, log.log, log.head())

    def change(records: list) -> None:  # type: ignore[type-arg]  # any JSON
        records[15]["actor"] = "somebody"

    forged = rechained(log.lines, change)
    verified(forged)
    verified(log.lines, Wanted(checkpoint=kept))
    fault = broken(forged, Wanted(checkpoint=kept))
    assert (fault.seq, fault.what[:7]) == (16, "the rec")
    fault = broken(log.lines[:14], Wanted(checkpoint=kept))
    assert fault.seq == 15
    assert "log ends at 14, but the expected checkpoint has 16" in fault.what


@pytest.mark.parametrize("size", [0, 1, 7, 13, 16])
def test_an_expected_checkpoint_may_be_anywhere(size: int) -> None:
    log = whole()
    root = naive_root([line[:-1] for line in log.lines[:size]])
    good = Checkpoint(ORIGIN, log.log, TreeHead(size, root))
    bad = Checkpoint(ORIGIN, log.log, TreeHead(size, b"x" * 32))
    verified(log.lines, Wanted(checkpoint=good))
    assert broken(log.lines, Wanted(checkpoint=bad)).seq == size


def test_a_later_file_stands_for_itself() -> None:
    log = whole()
    facts = verified(log.lines[8:]).tree
    assert (facts.checkpoints, facts.certified) == (2, 13)
    assert facts.root == log.tree.root()
    kept = Checkpoint(ORIGIN, log.log, TreeHead(8, naive_root([x[:-1] for x in log.lines[:8]])))
    verified(log.lines[8:], Wanted(checkpoint=kept))
    for size in (3, 7):
        early = Checkpoint(ORIGIN, log.log, TreeHead(size, b"x" * 32))
        fault = broken(log.lines[8:], Wanted(checkpoint=early))
        assert "log starts at 9, after the expected checkpoint" in fault.what


def test_a_log_cut_in_the_middle_of_a_file_has_no_root_until_the_next() -> None:
    lines = CertifiedLog().records(3).checkpoint().records(2).lines[2:]
    facts = verified(lines).tree
    assert facts.root is None
    log = CertifiedLog().records(3).rotate().checkpoint().records(2)
    assert verified(log.lines[2:]).tree.root == log.tree.root()
    kept = Checkpoint(ORIGIN, log.log, TreeHead(2, b"x" * 32))
    assert "after the expected" in broken(lines, Wanted(checkpoint=kept)).what


def test_a_key_follows_from_the_one_before() -> None:
    log = CertifiedLog().records(1).checkpoint().change_key(TWO).start().checkpoint()
    log.change_key(THREE).start().checkpoint().rotate()
    facts = verified(log.lines).tree
    assert facts.keys == (ONE.key, TWO.key, THREE.key)
    for one in (ONE, TWO, THREE):
        verified(log.lines, Wanted(pin=one.key.digest))
    fault = broken(log.lines, Wanted(pin=signer(4).key.digest))
    assert (fault.seq, fault.what) == (1, "the pinned key is none of this log's keys")
    # A log that starts with the statement knows both.
    start = next(at for at, line in enumerate(log.lines) if b'"log.key"' in line)
    assert verified(log.lines[start:]).tree.keys == (ONE.key, TWO.key, THREE.key)


def test_a_part_of_a_log_is_held_to_the_key_from_before() -> None:
    log = CertifiedLog().records(3).checkpoint().records(2).checkpoint()
    part = log.lines[2:]
    assert verified(part).tree.checkpoints == 0
    facts = verified(part, Wanted(key_before=ONE.key)).tree
    assert (facts.checkpoints, facts.certified, facts.keys) == (2, 7, (ONE.key,))
    assert facts.root is None
    fault = broken(part, Wanted(key_before=TWO.key))
    assert (fault.seq, fault.what[:21]) == (5, "not signed by the key")
    later = log.change_key(TWO).start().checkpoint().lines[2:]
    facts = verified(later, Wanted(key_before=ONE.key)).tree
    assert (facts.checkpoints, facts.keys) == (3, (ONE.key, TWO.key))
    fault = broken(later, Wanted(key_before=THREE.key))
    assert fault.seq == 5


@pytest.mark.parametrize(
    ("log", "seq", "what"),
    [
        (CertifiedLog().checkpoint(by=TWO), 2, "not signed by the key"),
        (CertifiedLog().checkpoint(head=TreeHead(1, b"x" * 32)), 2, "another root"),
        (CertifiedLog().checkpoint(head=TreeHead(7, b"x" * 32)), 2, "is of 7 records"),
        (CertifiedLog().add("checkpoint", checkpoint=7), 2, "not a signed note"),
        (CertifiedLog().add("checkpoint"), 2, "not a signed note"),
        (CertifiedLog().add("log.start", key=str(TWO.key)), 2, "without a statement"),
        (CertifiedLog().add("log.start", key="no key"), 2, "a verifier key is"),
        (CertifiedLog().change_key(TWO, sign_change(THREE, TWO)), 2, "is not the one in force"),
        (CertifiedLog().change_key(TWO, "no statement"), 2, "not a signed note"),
        (CertifiedLog().rotate(key=str(TWO.key)), 2, "without a statement"),
        (CertifiedLog().rotate(checkpoint="no note"), 2, "not a signed note"),
    ],
)
def test_what_contradicts_is_named(log: CertifiedLog, seq: int, what: str) -> None:
    fault = broken(log.records(1).lines)
    assert fault.seq == seq
    assert what in fault.what


@pytest.mark.parametrize("frontier", [[], ["!"], ["AAAA"], "x", [7], 7, None])
def test_a_frontier_that_does_not_fit_is_named(frontier: object) -> None:
    lines = CertifiedLog().records(3).rotate(frontier=frontier).records(1).lines
    assert broken(lines[4:]).seq == 5


@pytest.mark.parametrize("change", [lambda x: x + "\n", lambda x: "!" + x])
def test_a_frontier_is_base64_and_nothing_else(change: Callable[[str], str]) -> None:
    log = CertifiedLog().records(3)
    peaks = [change(b64encode(peak).decode()) for peak in log.tree.peaks]
    assert broken(log.rotate(frontier=peaks).lines[4:]).seq == 5


def test_a_frontier_is_not_believed_where_the_records_are_there() -> None:
    log = CertifiedLog().records(3).rotate(frontier=[b64encode(b"x" * 32).decode()]).records(1)
    assert verified(log.lines).tree.root == log.tree.root()


def test_a_start_of_an_earlier_version_names_no_key() -> None:
    log = CertifiedLog().add("log.start").records(1)
    assert verified(log.lines).tree.keys == (ONE.key,)


def test_an_empty_log_ends_before_what_is_expected() -> None:
    check = TreeCheck(Wanted(checkpoint=Checkpoint(ORIGIN, "1f" * 16, TreeHead(5, b"x" * 32))))
    what = "log ends at 0, but the expected checkpoint has 5 records"
    assert check.finish() == TreeFault(1, what)
    fault = broken([], Wanted(checkpoint=check._wanted.checkpoint))
    assert fault == Broken(1, 0, "holds no record", BEFORE_FIRST)


def test_the_first_fault_is_the_one_that_is_reported() -> None:
    check = TreeCheck(Wanted(checkpoint=Checkpoint(ORIGIN, "1f" * 16, TreeHead(0, b"x" * 32))))
    text = line(1, GENESIS, kind="checkpoint")[:-1]
    check.take(decode_record(text), text)
    assert check.fault == TreeFault(1, "a checkpoint before any key is named")


def test_a_frontier_with_another_root_is_named() -> None:
    peak = b64encode(b"x" * 32).decode()
    lines = CertifiedLog().records(3).rotate(frontier=[peak]).records(1).lines
    assert "another root" in broken(lines[4:]).what


def test_a_rotation_of_an_earlier_version_says_nothing() -> None:
    log = CertifiedLog().records(3).add("log.rotate").records(1)
    assert verified(log.lines[4:]).tree.root is None


def test_a_checkpoint_needs_a_key_and_its_own_log() -> None:
    early = CertifiedLog.__new__(CertifiedLog)
    early.signer, early.lines, early.tree = ONE, [], Frontier()
    assert "before any key" in broken(early.records(1).checkpoint().lines).what
    log = CertifiedLog().records(1).checkpoint()
    other = Checkpoint(ORIGIN, "2e" * 16, log.head()).signed(ONE)
    assert "another log" in broken(log.add("checkpoint", checkpoint=other).lines).what


def test_collected_logs_are_checked_likewise() -> None:
    log = whole()
    (result,) = verify_collected(log.lines, wanted=Wanted(pin=ONE.key.digest)).values()
    assert isinstance(result, Verified)
    assert result.tree.certified == 13
    (result,) = verify_collected(log.lines, wanted=Wanted(pin=TWO.key.digest)).values()
    assert isinstance(result, Broken)
