"""An SvidSource that a test sets."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuwarden.identity.svid import Svid


@dataclass
class FakeSvidSource:
    svid: Svid | None

    def current(self) -> Svid | None:
        return self.svid

    def state(self) -> str:
        return "set by the test" if self.svid else "no SVID: taken away by the test"

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        del notify
        return lambda: None
