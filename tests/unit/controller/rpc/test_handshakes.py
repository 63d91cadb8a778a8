from controller.rpc.handshakes import CONNECTIONS, GRACE_S, BegunHandshakes


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.handshakes = BegunHandshakes(lambda: self.now)


def test_a_connection_without_a_call_in_time_has_failed_once() -> None:
    bench = Bench()
    bench.handshakes.begun()
    bench.now += GRACE_S - 0.1
    assert bench.handshakes.take_failed() == 0
    bench.now += 0.1
    assert bench.handshakes.take_failed() == 1
    assert bench.handshakes.take_failed() == 0


def test_a_connection_that_calls_has_not_failed_however_often_it_calls() -> None:
    bench = Bench()
    bench.handshakes.begun()
    bench.now += 1
    bench.handshakes.begun()
    for _ in range(3):
        bench.handshakes.called("ipv4:10.0.0.1:4000")
    bench.now += GRACE_S
    assert bench.handshakes.take_failed() == 1
    bench.handshakes.begun()
    bench.handshakes.called("ipv4:10.0.0.1:4001")
    bench.now += GRACE_S
    assert bench.handshakes.take_failed() == 0


def test_addresses_that_are_remembered_are_bounded() -> None:
    bench = Bench()
    for number in range(CONNECTIONS + 10):
        bench.handshakes.called(f"ipv4:10.0.0.1:{number}")
    assert len(bench.handshakes._seen) == CONNECTIONS
