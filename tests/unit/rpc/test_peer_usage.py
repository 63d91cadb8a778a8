from controller.access import Occupancy, PeerUsage, Rate
from gpuwarden.reasons import ReasonCode

S = 1_000_000_000


OPENINGS = Rate(1.0, 60)
MESSAGES = Rate(4.0, 20)


def _usage(openings: Rate = OPENINGS, messages: Rate = MESSAGES, peers: int = 100) -> PeerUsage:
    return PeerUsage(openings, messages, peers)


def test_streams_are_counted_per_peer_and_in_all_until_closed() -> None:
    usage = _usage()
    assert usage.open("a", 0) == Occupancy(0, 0, rate_exceeded=False)
    assert usage.open("a", 0) == Occupancy(1, 1, rate_exceeded=False)
    assert usage.open("b", 0) == Occupancy(2, 0, rate_exceeded=False)
    usage.close("a")
    assert usage.open("a", 0) == Occupancy(2, 1, rate_exceeded=False)
    assert usage.open_streams == 3


def test_opening_too_often_is_told_and_time_heals_it() -> None:
    usage = _usage(openings=Rate(1.0, 2))
    assert [usage.open("a", 0).rate_exceeded for _ in range(3)] == [False, False, True]
    assert usage.open("b", 0).rate_exceeded is False
    assert usage.open("a", S // 2).rate_exceeded is True
    assert usage.open("a", S).rate_exceeded is False


def test_messages_have_their_own_rate_per_peer() -> None:
    usage = _usage(messages=Rate(2.0, 3))
    refusals = [usage.message("a", 0) for _ in range(4)]
    assert refusals[:3] == [None, None, None]
    assert refusals[3] is not None
    assert refusals[3].code is ReasonCode.LIMIT_RATE
    assert usage.message("b", 0) is None
    assert usage.message("a", S) is None


def test_who_comes_too_fast_is_told_for_how_long() -> None:
    usage = _usage(messages=Rate(0.25, 1))
    assert usage.wait_ns("a") == 0
    assert usage.message("a", 0) is None
    assert usage.message("a", S) is not None
    assert usage.wait_ns("a") == 3 * S
    assert usage.message("a", 4 * S) is None


def test_a_bucket_never_holds_more_than_its_burst_and_ignores_time_going_back() -> None:
    usage = _usage(messages=Rate(1.0, 2))
    usage.message("a", 100 * S)
    assert usage.message("a", 1000 * S) is None
    assert usage.message("a", 0) is None
    assert usage.message("a", 0) is not None


def test_memory_is_bounded_and_peers_with_streams_are_kept() -> None:
    usage = _usage(peers=3)
    usage.open("busy", 0)
    for number in range(10):
        usage.message(f"idle-{number}", 0)
    assert usage.known_peers == 3
    usage.close("busy")
    assert usage.open_streams == 0


def test_a_table_full_of_busy_peers_grows_only_with_the_streams() -> None:
    usage = _usage(peers=1)
    usage.open("a", 0)
    usage.open("b", 0)
    assert usage.known_peers == 2
