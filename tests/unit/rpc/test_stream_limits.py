from controller.rpc.limits import Limits, Rate, StreamLimits
from gpuwarden.reasons import ReasonCode

S = 1_000_000_000


def _code(refusal: object) -> ReasonCode | None:
    return getattr(refusal, "code", None)


def test_streams_of_one_peer_are_counted_until_closed() -> None:
    limits = StreamLimits(Limits(streams_per_peer=2))
    assert limits.open("a", 0) is None
    assert limits.open("a", 0) is None
    assert _code(limits.open("a", 0)) is ReasonCode.LIMIT_STREAMS
    assert limits.open("b", 0) is None
    limits.close("a")
    assert limits.open("a", 0) is None
    assert limits.open_streams == 3


def test_streams_in_all_are_bounded_whoever_opens_them() -> None:
    limits = StreamLimits(Limits(streams=2))
    assert limits.open("a", 0) is None
    assert limits.open("b", 0) is None
    assert _code(limits.open("c", 0)) is ReasonCode.LIMIT_STREAMS
    limits.close("b")
    assert limits.open("c", 0) is None


def test_opening_too_often_is_refused_and_time_heals_it() -> None:
    limits = StreamLimits(Limits(openings=Rate(1.0, 2)))
    for _ in range(2):
        assert limits.open("a", 0) is None
        limits.close("a")
    assert _code(limits.open("a", 0)) is ReasonCode.LIMIT_RATE
    assert _code(limits.open("a", S // 2)) is ReasonCode.LIMIT_RATE
    assert limits.open("a", S) is None
    assert limits.open_streams == 1


def test_messages_have_their_own_rate_per_peer() -> None:
    limits = StreamLimits(Limits(messages=Rate(2.0, 3)))
    assert [_code(limits.message("a", 0)) for _ in range(4)] == [
        None,
        None,
        None,
        ReasonCode.LIMIT_RATE,
    ]
    assert limits.message("b", 0) is None
    assert limits.message("a", S) is None


def test_a_bucket_never_holds_more_than_its_burst_and_ignores_time_going_back() -> None:
    limits = StreamLimits(Limits(messages=Rate(1.0, 2)))
    limits.message("a", 100 * S)
    assert limits.message("a", 1000 * S) is None
    assert limits.message("a", 0) is None
    assert _code(limits.message("a", 0)) is ReasonCode.LIMIT_RATE


def test_memory_is_bounded_and_peers_with_streams_are_kept() -> None:
    limits = StreamLimits(Limits(peers=3))
    limits.open("busy", 0)
    for number in range(10):
        limits.message(f"idle-{number}", 0)
    assert limits.known_peers == 3
    limits.close("busy")
    assert limits.open_streams == 0


def test_a_table_full_of_busy_peers_grows_only_with_the_streams() -> None:
    limits = StreamLimits(Limits(peers=1))
    limits.open("a", 0)
    limits.open("b", 0)
    assert limits.known_peers == 2
