"""The last refusals: counted while they repeat, newest first, and bounded."""

from controller.explain.node import RecentRefusals
from gpuwarden.reasons import ReasonCode
from tests.fakes.clock import FakeClock


def test_what_repeats_is_counted_and_comes_first() -> None:
    clock = FakeClock(wall=10)
    refusals = RecentRefusals(clock.wall_ns)
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 13)
    clock.wall = 20
    refusals.note("evidence", "b", ReasonCode.SIG_INVALID, 13)
    clock.wall = 30
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 13)
    first, second = refusals.newest_first()
    assert (first.subject, first.count, first.first_ns, first.last_ns) == ("a", 2, 10, 30)
    assert (second.subject, second.count, second.first_ns) == ("b", 1, 20)


def test_each_code_step_and_subject_is_a_refusal_of_its_own() -> None:
    refusals = RecentRefusals(lambda: 1)
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 13)
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 14)
    refusals.note("evidence", "a", ReasonCode.NONCE_REUSED, 13)
    refusals.note("evidence", None, ReasonCode.SIG_INVALID, 13)
    refusals.note("/x/Y", "a", ReasonCode.SIG_INVALID, 13)
    assert [one.count for one in refusals.newest_first()] == [1] * 5


def test_whoever_floods_pushes_out_only_the_oldest() -> None:
    refusals = RecentRefusals(lambda: 1, kept=3)
    for number in range(9):
        refusals.note("evidence", f"n{number}", ReasonCode.SIG_INVALID)
        refusals.note("evidence", "seen again and again", ReasonCode.SIG_INVALID)
    names = [one.subject for one in refusals.newest_first()]
    assert names == ["seen again and again", "n8", "n7"]
