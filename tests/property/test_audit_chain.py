"""A log is found broken wherever it is broken, and a crash at any byte leaves a prefix."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.audit.chain import Broken, Head, Verified, verify_lines
from gpuwarden.audit.record import _decode_plain, _decode_strictly
from tests.builders.audit_log import GENESIS, digest, line


def _of_versions(*kinds: str) -> list[bytes]:
    """A log that several versions have written."""
    lines: list[bytes] = []
    for seq, kind in enumerate(kinds, start=1):
        lines.append(line(seq, digest(lines[-1]) if lines else GENESIS, kind=kind))
    return lines


LINES = _of_versions(*["node.state", "node.painted", "evidence.round", "log.stop"] * 2)
HEAD = Head(8, digest(LINES[-1]))
WHOLE = b"".join(LINES)


def _lines(data: bytes) -> list[bytes]:
    """As a file yields them: LF ends a line, nothing else does."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@settings(max_examples=300)
@given(at=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_with_its_number(at: int, bit: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= 1 << bit
    number = WHOLE[:at].count(b"\n") + 1

    result = verify_lines(_lines(bytes(data)), expect=HEAD)

    assert isinstance(result, Broken)
    # A changed last link cannot be told from a changed record before it.
    assert result.seq in ({number} if number < 8 else {7, 8})
    assert result.intact.seq < number


REFS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    refs=st.dictionaries(st.text(max_size=4), REFS, max_size=3),
    at=st.integers(0, 10_000),
    change=st.sampled_from(["", " ", "0", "-", "e1", '"a":1,', "\\u0041", "[", "."]),
)
def test_quick_decoding_takes_only_what_strict_decoding_takes(
    refs: dict[str, object], at: int, change: str
) -> None:
    whole = line(1, "0" * 64, refs=refs)[:-1]
    at %= len(whole)
    changed = whole[:at] + change.encode() + whole[at:]

    quick = _decode_plain(changed)

    if quick is not None:
        assert quick == _decode_strictly(changed)


@given(kept=st.sets(st.integers(0, 7)))
def test_any_missing_records_are_found(kept: set[int]) -> None:
    first = min(kept, default=0)
    result = verify_lines([LINES[index] for index in sorted(kept)], expect=HEAD)

    if kept == set(range(first, 8)):
        assert isinstance(result, Verified)
        return
    assert isinstance(result, Broken)
    expected = next(index for index in range(first, 9) if index not in kept) + 1
    assert result.seq == (expected if kept else 1)


@given(order=st.permutations(range(8)))
def test_any_other_order_is_found(order: list[int]) -> None:
    result = verify_lines([LINES[index] for index in order], expect=HEAD)

    assert isinstance(result, Verified if order == sorted(order) else Broken)


@given(at=st.integers(0, 8), copy=st.integers(0, 7))
def test_any_repeated_record_is_found(at: int, copy: int) -> None:
    result = verify_lines([*LINES[:at], LINES[copy], *LINES[at:]])

    assert isinstance(result, Broken)


def test_cut_at_every_byte_leaves_a_verifiable_prefix() -> None:
    for length in range(len(WHOLE)):
        result = verify_lines(_lines(WHOLE[:length]))

        if length < WHOLE.index(b"\n") + 1:
            assert isinstance(result, Broken)
            continue
        assert isinstance(result, Verified)
        assert result.records == WHOLE[:length].count(b"\n")
        assert result.torn_bytes == length - (WHOLE.rfind(b"\n", 0, length) + 1)
