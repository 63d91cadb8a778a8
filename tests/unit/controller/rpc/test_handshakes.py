from controller.rpc.handshakes import (
    CONNECTIONS,
    GRACE_S,
    LOOK_S,
    LOOKS_S,
    SUSPECTS,
    BegunHandshakes,
    FailedHandshakes,
)


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.connected: set[str] = set()
        self.looks = 0
        self.handshakes = BegunHandshakes(lambda: self.now, self._look)

    def _look(self) -> frozenset[str]:
        self.looks += 1
        return frozenset(self.connected)

    def begin(self, peer: str) -> None:
        """A connection that is there while its handshake begins, and stays."""
        self.connected.add(peer)
        self.handshakes.begun()

    def failed(self, after_s: float = GRACE_S) -> FailedHandshakes:
        self.now += after_s
        return self.handshakes.take_failed()


def peer(number: int) -> str:
    return f"ipv4:10.0.0.1:{4000 + number}"


def test_a_connection_without_a_call_in_time_has_failed_once() -> None:
    bench = Bench()
    bench.handshakes.begun()
    assert bench.failed(GRACE_S - 0.1).count == 0
    assert bench.failed(0.1).count == 1
    assert bench.failed(0).count == 0


def test_a_connection_that_calls_has_not_failed_however_often_it_calls() -> None:
    bench = Bench()
    bench.handshakes.begun()
    bench.now += 1
    bench.handshakes.begun()
    for _ in range(3):
        bench.handshakes.called(peer(0))
    assert bench.failed().count == 1
    bench.handshakes.begun()
    bench.handshakes.called(peer(1))
    assert bench.failed().count == 0


def test_addresses_that_are_remembered_are_bounded() -> None:
    bench = Bench()
    for number in range(CONNECTIONS + 10):
        bench.handshakes.called(f"ipv4:10.0.0.1:{number}")
    assert len(bench.handshakes._seen) == CONNECTIONS


def test_while_nobody_fails_the_kernel_is_not_asked() -> None:
    bench = Bench()
    for number in range(3):
        bench.begin(peer(number))
        bench.handshakes.called(peer(number))
    assert bench.failed() == FailedHandshakes()
    assert bench.looks == 0


def test_once_some_have_failed_those_that_fail_are_named_and_no_others() -> None:
    bench = Bench()
    bench.begin(peer(0))
    assert bench.failed() == FailedHandshakes(1, ())
    bench.begin(peer(1))
    bench.now += LOOK_S
    bench.begin("ipv6:[::1]:4002")
    bench.handshakes.called("ipv6:%5B::1%5D:4002")
    assert bench.failed(GRACE_S - LOOK_S) == FailedHandshakes(1, (peer(1),))
    assert bench.failed() == FailedHandshakes()


def test_who_was_connected_before_is_not_suspected() -> None:
    bench = Bench()
    bench.begin(peer(0))
    bench.connected.add(peer(9))
    bench.failed()
    bench.begin(peer(1))
    assert bench.failed().peers == (peer(1),)


def test_the_kernel_is_asked_at_most_once_a_second_and_no_longer_when_all_is_well() -> None:
    bench = Bench()
    bench.begin(peer(0))
    bench.failed()
    assert bench.looks == 1
    for number in range(1, 4):
        bench.begin(peer(number))
        bench.now += LOOK_S / 3
    assert bench.looks == 2
    bench.failed()
    bench.failed(LOOKS_S)
    bench.begin(peer(5))
    assert bench.looks == 3
    bench.handshakes.called(peer(5))
    bench.failed(1)
    bench.begin(peer(6))
    assert bench.looks == 3


def test_suspects_are_bounded() -> None:
    bench = Bench()
    bench.begin(peer(0))
    bench.failed()
    bench.connected |= {peer(number) for number in range(1, SUSPECTS + 10)}
    bench.handshakes.begun()
    assert len(bench.failed().peers) == SUSPECTS
