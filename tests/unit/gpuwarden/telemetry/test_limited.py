import threading
from typing import Any

import structlog

from gpuwarden.telemetry.limited import ALL_BURST, BURST, KEYS, REFILL_S, LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Process


class Workbench:
    """A limited log whose time stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.log = LimitedLog(logger("test"), self.instruments, lambda: self.now)

    def withheld(self) -> float | None:
        return self.instruments.registry.get_sample_value(
            "gpuwarden_log_lines_withheld_total", {"event": Event.RPC_DENIED.value}
        )


def lines(write: Any) -> list[Any]:
    with structlog.testing.capture_logs() as found:
        write()
    return list(found)


def test_one_key_writes_few_lines_and_then_says_how_many_were_left_out() -> None:
    bench = Workbench()

    def flood() -> None:
        for _ in range(1800):
            bench.log.warning(Event.RPC_DENIED, key="n1", code="X")

    assert len(lines(flood)) == BURST
    assert bench.withheld() == 1800 - BURST
    bench.now += REFILL_S
    (line,) = lines(lambda: bench.log.warning(Event.RPC_DENIED, key="n1", code="X"))
    assert (line["withheld"], line["code"], line["log_level"]) == (1800 - BURST, "X", "warning")
    bench.now += REFILL_S
    (line,) = lines(lambda: bench.log.error(Event.RPC_DENIED, key="n1"))
    assert "withheld" not in line
    assert line["log_level"] == "error"


def test_a_loud_key_does_not_silence_another() -> None:
    bench = Workbench()

    def both() -> None:
        for _ in range(50):
            bench.log.warning(Event.RPC_DENIED, key="loud")
        bench.log.info(Event.RPC_DENIED, key="quiet", peer="q")
        bench.log.info(Event.RPC_FAILED, key="loud", peer="l")

    assert [x.get("peer") for x in lines(both)] == [None] * BURST + ["q", "l"]


def test_invented_keys_are_bounded_too() -> None:
    bench = Workbench()

    def flood() -> None:
        for number in range(3 * KEYS):
            bench.log.warning(Event.RPC_DENIED, key=number)

    assert len(lines(flood)) == ALL_BURST
    assert len(bench.log._budgets) == KEYS


class HeldKey:
    """Holds up whoever is about to keep a budget for it, once."""

    def __init__(self) -> None:
        self.held, self.going_on, self.times = threading.Event(), threading.Event(), 0

    def __hash__(self) -> int:
        self.times += 1
        if self.times == 2:  # after it looked for one
            self.held.set()
            self.going_on.wait()
        return id(self)


class NoticedLock:
    """Says so when somebody has to wait for it."""

    def __init__(self, waited_for: threading.Event) -> None:
        self._lock, self._waited_for = threading.Lock(), waited_for

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_two_threads_share_the_budget_of_a_key() -> None:
    bench, key, turned = Workbench(), HeldKey(), threading.Event()
    bench.log._lock = NoticedLock(turned)  # type: ignore[assignment] # as much as is used of one

    def second() -> None:
        for _ in range(BURST):
            bench.log.warning(Event.RPC_DENIED, key=key)
        turned.set()

    def both() -> None:
        threads = [
            threading.Thread(
                target=bench.log.warning, args=(Event.RPC_DENIED,), kwargs={"key": key}
            ),
            threading.Thread(target=second),
        ]
        threads[0].start()
        key.held.wait()
        threads[1].start()
        turned.wait()
        key.going_on.set()
        for each in threads:
            each.join()
        bench.log.warning(Event.RPC_DENIED, key=key)

    assert len(lines(both)) == BURST
    assert bench.withheld() == 2
