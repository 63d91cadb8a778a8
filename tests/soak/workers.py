"""The threads of a soak: the first that raises ends it, and none is waited for without a limit."""

import threading
import traceback
from collections.abc import Callable, Collection

from tests.e2e.lab.waiting import NeverError, until

_POLL_S = 0.2


class Workers:
    """Daemons, so that one that hangs cannot keep the process from its end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        """Set when time is over, and by the first that raises."""
        self.failed: list[str] = []
        """Which have raised what."""
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Do this in a thread of its own."""
        thread = threading.Thread(target=self._do, args=(name, work), name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def running(self, names: Collection[str]) -> list[str]:
        """Those of them that have not ended."""
        return [name for name in names if self._threads[name].is_alive()]

    def wait(
        self, names: Collection[str], timeout_s: float, meanwhile: Callable[[list[str]], None]
    ) -> None:
        """Until all of them have ended; NeverError. `meanwhile` is told which have not."""

        def are_over() -> bool:
            meanwhile(left := self.running(names))
            return not left

        until(f"{', '.join(names)} end", are_over, timeout_s=timeout_s, poll_s=_POLL_S)

    def _do(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the report has to tell it
            told = repr(error) if not isinstance(error, NeverError) else str(error)
            self.failed.append(f"{name}: {told}\n{traceback.format_exc()}")
            self.over.set()
