"""What one log says about denials is what its replica saw last."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.audit.sealing import LogIdentity, Sealer
from controller.fleet.enrollment import AUTOMATIC, Candidate, Denial
from controller.fleet.quarantine import DenialFate
from controller.operations.logged import denial_record, standing_denials
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.record import LogRecord, decode_record

SEALER = Sealer(LogIdentity("lab/a", "boot", "instance"))
FIRST = Denial("NODE_DENIED", "smells", "spiffe://x/operator/o", 1_700_000_000_123_456_789)
SECOND = Denial("INVENTORY_CHANGED", "swapped", AUTOMATIC, FIRST.wall_ns + 1)
STANDS, LIFTED, LOST = DenialFate


def logged(node: str, denial: Denial, fate: DenialFate) -> LogRecord:
    """As it comes back from the log."""
    return decode_record(SEALER.seal(denial_record(node, denial, fate), 0, BEFORE_FIRST).line)


def test_what_stands_comes_back_as_it_was() -> None:
    found = standing_denials([logged("gpu-1", FIRST, STANDS), logged("gpu-2", SECOND, LOST)])
    assert found == {"gpu-1": FIRST, "gpu-2": SECOND}


def test_only_what_was_lifted_is_gone() -> None:
    both = [logged("gpu-1", FIRST, STANDS), logged("gpu-2", FIRST, STANDS)]
    assert standing_denials([*both, logged("gpu-1", FIRST, LIFTED)]) == {"gpu-2": FIRST}
    assert standing_denials([*both, logged("gpu-1", SECOND, LIFTED)]) == {"gpu-2": FIRST}
    newer = [*both, logged("gpu-1", SECOND, STANDS), logged("gpu-1", FIRST, LIFTED)]
    assert standing_denials(newer) == {"gpu-1": SECOND, "gpu-2": FIRST}
    assert standing_denials([logged("gpu-1", FIRST, LIFTED)]) == {}


def test_the_longest_denial_fits_into_a_record() -> None:
    shown = Candidate("INVENTORY_CHANGED", None, None, (), "e" * 64)
    longest = Denial("A" * 63, "\N{SNOWMAN}" * 4096, "spiffe://" + "x" * 2039, 10**18, shown)
    found = standing_denials([logged("n" * 253, longest, STANDS)])
    assert [x.wall_ns for x in found.values()] == [10**18]


@dataclass
class Odd:
    """Has the fields of a record that are looked at."""

    kind: str = "node.denial"
    subject: str = "node/gpu-1"
    origin: str = "lab/a"
    codes: tuple[str, ...] = ("X",)
    decision: str = "stands"
    refs: dict[str, Any] = field(default_factory=lambda: {"by": "me", "reason": "why", "time": "1"})


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.text())


@given(st.sampled_from(["by", "reason", "time"]), JSON)
def test_what_is_not_ours_is_skipped(key: str, value: Any) -> None:
    odd = Odd()
    odd.refs[key] = value
    record: Any = odd
    found = standing_denials([record])
    assert len(found) == (key != "time" or _is_number(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdecimal()


def test_other_records_are_none_of_it() -> None:
    odds: list[Any] = [Odd(kind="node.state"), Odd(subject="gpu-1"), Odd(codes=()), Odd(refs={})]
    assert standing_denials(odds) == {}
