"""A fleet that tests set by hand, with the subscription of the real one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.fleet.view import EMPTY_FLEET, FleetSnapshot


@dataclass
class FakeFleet:
    current: FleetSnapshot = EMPTY_FLEET
    listeners: list[Callable[[], None]] = field(default_factory=list)
    nobody_listens: asyncio.Event = field(default_factory=asyncio.Event)

    def snapshot(self) -> FleetSnapshot:
        return self.current

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        self.listeners.append(notify)
        self.nobody_listens.clear()
        return lambda: self._forget(notify)

    def _forget(self, notify: Callable[[], None]) -> None:
        self.listeners.remove(notify)
        if not self.listeners:
            self.nobody_listens.set()

    def set(self, fleet: FleetSnapshot) -> None:
        self.current = fleet
        for notify in tuple(self.listeners):
            notify()
