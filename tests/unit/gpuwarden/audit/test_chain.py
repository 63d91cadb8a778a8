from collections.abc import Callable

import pytest

from gpuwarden.audit.chain import BEFORE_FIRST, Broken, ChainVerifier, Head, Verified, verify_lines
from gpuwarden.audit.order_check import Remark, Remarks
from gpuwarden.audit.record import FORMER_KINDS, RecordError, decode_record
from tests.builders.audit_log import GENESIS, digest, line, log


def broken(lines: list[bytes], expect: Head | None = None) -> Broken:
    result = verify_lines(lines, expect=expect)
    assert isinstance(result, Broken), result
    return result


def verified(lines: list[bytes], expect: Head | None = None) -> Verified:
    result = verify_lines(lines, expect=expect)
    assert isinstance(result, Verified), result
    return result


def nested(times: int, wrap: Callable[[object], object]) -> dict[str, object]:
    value: object = 1
    for _ in range(times):
        value = wrap(value)
    return {"x": value}


def test_whole_log_verifies_and_names_its_head() -> None:
    lines = log(5)

    assert verified(lines) == Verified(5, 1, Head(5, digest(lines[4])), "lab/controller-0")


def test_a_log_without_records_is_not_verified() -> None:
    assert verify_lines([]) == Broken(1, 0, "holds no record", BEFORE_FIRST)
    for data in (b"\0" * 100, log(1)[0][:-1], b"x"):
        what = f"holds no record, but {len(data)} bytes without a line end"
        assert verify_lines([data]) == Broken(1, 1, what, BEFORE_FIRST)
    assert verify_lines([], expect=BEFORE_FIRST) == Broken(1, 0, "holds no record", BEFORE_FIRST)


def test_log_whose_older_files_were_deleted_says_where_it_starts() -> None:
    lines = log(9)

    result = verified(lines[4:])

    assert (result.first_seq, result.records, result.head.seq) == (5, 5, 9)


@pytest.mark.parametrize("kept", [1, 4])
def test_log_that_starts_later_is_intact_up_to_the_link_of_its_first_record(kept: int) -> None:
    lines = log(9)
    left = [lines[kept].replace(b"eligible", b"eligiblE"), *lines[kept + 1 :]]

    intact = Head(kept, digest(lines[kept - 1]))
    assert broken(left) == Broken(kept + 1, 1, "changed after it was written", intact)


@pytest.mark.parametrize("index", range(4))
def test_changed_record_is_named(index: int) -> None:
    lines = log(5)
    lines[index] = lines[index].replace(b"eligible", b"eligiblE")

    result = broken(lines)

    assert (result.seq, result.line) == (index + 1, index + 1)
    assert result.intact.seq == index


@pytest.mark.parametrize("index", range(1, 4))
def test_changed_link_accuses_the_record_that_holds_it(index: int) -> None:
    lines = log(5)
    real = digest(lines[index - 1])
    lines[index] = lines[index].replace(real.encode(), b"f" * 64)

    assert (broken(lines).seq, broken(lines).line) == (index + 1, index + 1)
    assert broken(lines).intact.seq == index


def test_changed_last_link_accuses_the_pair() -> None:
    lines = log(3)
    lines[2] = lines[2].replace(digest(lines[1]).encode(), b"f" * 64)

    result = broken(lines)

    assert (result.seq, result.intact.seq) == (2, 1)
    assert "link" in result.what


def test_unreadable_line_after_a_wrong_link_accuses_the_pair() -> None:
    lines = [*log(3), b"{}\n"]
    lines[1] = lines[1].replace(b"eligible", b"refused")

    assert broken(lines).seq == 2
    assert broken([*lines, line(4, "a" * 64)]).seq == 2


def test_first_record_must_start_the_chain() -> None:
    assert broken(log(2, prev="a" * 64)).seq == 1
    assert broken(log(2, first=3)).seq == 1


@pytest.mark.parametrize("index", range(1, 4))
def test_deleted_record_is_missed(index: int) -> None:
    lines = log(5)
    del lines[index]

    assert (broken(lines).seq, broken(lines).line) == (index + 1, index + 1)


def test_swapped_records_are_found_at_the_first() -> None:
    lines = log(5)
    lines[1], lines[2] = lines[2], lines[1]

    assert broken(lines).seq == 2


def test_record_there_twice_is_found() -> None:
    lines = log(3)

    assert (broken([*lines[:2], lines[1], lines[2]]).line) == 3


def test_forged_insertion_is_found_when_the_real_record_follows() -> None:
    lines = log(3)
    forged = line(2, digest(lines[0]), decision="forged")

    assert broken([lines[0], forged, *lines[1:]]).seq == 3


def test_record_of_another_log_is_found() -> None:
    lines = log(2)
    lines.append(line(3, digest(lines[1]), origin="other/controller-0"))

    assert broken(lines).what == "origin differs from the records before"


def test_garbage_is_found_with_the_number_that_was_due() -> None:
    lines = log(3)
    lines[1] = b"\x00" * 20 + b"\n"

    assert (broken(lines).seq, broken(lines).line) == (2, 2)


def test_torn_last_line_leaves_a_verifiable_prefix() -> None:
    lines = log(3)
    lines[2] = lines[2][:50]

    result = verified(lines)

    assert (result.records, result.torn_bytes) == (2, 50)


def test_torn_line_with_others_behind_it_is_a_fault() -> None:
    lines = log(3)
    lines[1] = lines[1][:-1]

    assert (broken(lines).seq, broken(lines).line) == (2, 2)


def test_cut_off_tail_is_found_only_with_a_head_noted_elsewhere() -> None:
    lines = log(5)
    head = Head(5, digest(lines[4]))

    assert verified(lines[:3]).head.seq == 3
    cut = Broken(4, 3, "log ends at 3, but record 5 was expected", Head(3, digest(lines[2])))
    assert broken(lines[:3], head) == cut
    nothing = Broken(1, 0, "log ends at 0, but record 5 was expected", BEFORE_FIRST)
    assert broken([], head) == nothing
    assert verified(lines, head).head == head


def test_changed_last_record_is_found_only_with_a_head_noted_elsewhere() -> None:
    lines = log(3)
    head = Head(3, digest(lines[2]))
    lines[2] = lines[2].replace(b"eligible", b"refused!")

    assert verified(lines).head.seq == 3
    intact = Head(2, digest(lines[1]))
    found = Broken(3, 3, "digest differs from the expected head", intact)
    assert broken(lines, head) == found


def test_log_may_have_grown_since_the_head_was_noted() -> None:
    lines = log(5)

    assert verified(lines, Head(2, digest(lines[1]))).records == 5


def test_head_older_than_what_is_left_cannot_be_compared() -> None:
    lines = log(5)

    result = broken(lines[3:], Head(2, digest(lines[1])))
    assert (result.seq, result.line) == (2, 0)
    assert result.what == "log starts at 4, after the expected head"
    assert verified(lines[3:], BEFORE_FIRST).records == 2
    assert verified(lines, BEFORE_FIRST).records == 5


def test_nothing_after_a_fault_changes_the_finding() -> None:
    lines = log(6)
    lines[1] = b"x\n"
    lines[4] = b"y\n"

    assert broken(lines).seq == 2
    assert broken(lines, Head(9, "a" * 64)) == broken(lines)


def test_head_is_written_and_read_the_same() -> None:
    head = Head(7, "a" * 64)

    assert Head.parse(str(head)) == head


@pytest.mark.parametrize(
    "text", ["", "7", "7:", f"07:{'a' * 64}", f"7:{'A' * 64}", f"-1:{'a' * 64}"]
)
def test_bad_head_says_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="SEQ:DIGEST"):
        Head.parse(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"v": "gpuwarden.dev/audit/v2"}, "v must be"),
        ({"seq": 0}, "seq must be"),
        ({"ts": "2026-03-01T12:00:00Z"}, "ts must be"),
        ({"ts": "2026-03-01T12:00:00.000+00:00"}, "ts must be"),
        ({"kind": "Node.State"}, "kind must be"),
        ({"kind": "node state"}, "kind must be"),
        ({"kind": "node..state"}, "kind must be"),
        ({"kind": "node.state\n"}, "kind must be"),
        ({"kind": ""}, "kind must be"),
        ({"kind": "n" * 65}, "kind must be"),
        ({"prev": "A" * 64}, "prev must be"),
        ({"seq": "1"}, "seq"),
        ({"extra": 1}, "extra"),
        ({"refs": {"x": 1.5}}, "integer"),
        ({"refs": {'x"': 1.5, 'y"': 1}}, "integer"),
        ({"refs": nested(40, lambda x: [x])}, "nested deeper"),
        ({"refs": nested(40, lambda x: {"x": x})}, "nested deeper"),
        ({"refs": nested(20, lambda x: {"x": [x]})}, "nested deeper"),
        ({"refs": {"x": "y" * 5000}}, "at most 4096"),
    ],
)
def test_line_that_is_no_record_says_why(changes: dict[str, object], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        decode_record(line(1, GENESIS, **changes)[:-1])


@pytest.mark.parametrize("kind", ["evidence.round", "node.painted", "n2.a-b.c", "n" * 64])
def test_a_record_of_another_version_is_a_record(kind: str) -> None:
    assert decode_record(line(1, GENESIS, kind=kind)[:-1]).kind == kind


@pytest.mark.parametrize("index", range(4))
def test_a_log_with_a_kind_of_another_version_verifies(index: int) -> None:
    lines = log(index)
    for kind in ("node.painted", *["node.state"] * (3 - index)):
        lines += log(
            1, first=len(lines) + 1, prev=digest(lines[-1]) if lines else GENESIS, kind=kind
        )

    found = verified(lines)

    assert (found.records, found.head) == (4, Head(4, digest(lines[3])))
    what = "node.painted is a kind of another version"
    assert found.unknown == Remarks(1, (Remark(index + 1, what),))
    lines[index] = lines[index].replace(b"painted", b"coated")
    assert broken(lines, found.head).seq == index + 1


def test_what_a_kind_was_called_before_is_known() -> None:
    for kind in FORMER_KINDS:
        assert verified(log(1, kind=kind)).unknown == Remarks()


def test_line_in_another_form_is_no_record() -> None:
    spaced = line(1, GENESIS).replace(b'"refs":{}', b'"refs": {}')[:-1]

    with pytest.raises(RecordError, match="canonical"):
        decode_record(spaced)


@pytest.mark.parametrize(
    "refs",
    [{"deep": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}, {"text": "é"}, {"text": 'a"b\\'}, {"n": 10**15}],
)
def test_record_that_needs_care_is_a_record_all_the_same(refs: dict[str, object]) -> None:
    assert decode_record(line(1, GENESIS, refs=refs)[:-1]).refs == refs


def test_progress_can_be_asked_for_without_listening() -> None:
    verifier = ChainVerifier()
    assert (verifier.records, verifier.origin, verifier.head) == (0, "", BEFORE_FIRST)
    for number, text in enumerate(log(2), start=1):
        verifier.feed(text, number)
    assert (verifier.records, verifier.origin) == (2, "lab/controller-0")
    assert verifier.head == Head(2, digest(log(2)[1]))


@pytest.mark.parametrize(
    "verifier", [ChainVerifier(), ChainVerifier(Head(1, "e" * 64))], ids=["first", "expected"]
)
def test_nothing_is_said_of_a_record_that_does_not_fit(verifier: ChainVerifier) -> None:
    heard: list[int] = []
    verifier.accepted = lambda record, _line: heard.append(record.seq)
    first = 2 if verifier._expect is None else 1
    verifier.feed(log(1, first=first)[0], 1)
    assert verifier.fault is not None
    assert (heard, verifier.records) == ([], 0)


def test_nothing_is_said_after_a_fault() -> None:
    heard: list[int] = []
    lines = log(3)
    verifier = ChainVerifier()
    verifier.accepted = lambda record, _line: heard.append(record.seq)
    for number, text in enumerate([lines[0], lines[2], lines[1]], start=1):
        verifier.feed(text, number)
    assert verifier.fault is not None
    assert verifier.fault.seq == 2
    assert heard == [1]
