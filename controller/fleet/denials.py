"""Denials on their way into the store: none is dropped because the store cannot take it now.

A denial that stands is never replaced by a later one: whoever looks for the cause wants the
first. That it still stands is confirmed by the store, because what is known here may be older
than an operator's act elsewhere. Must not decide who is denied, nor lift a denial.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from controller.fleet.enrollment import (
    Denial,
    EnrollmentRecord,
    EnrollmentStore,
    EnrollmentUnavailableError,
    write,
)

_MAX_RACES: Final = 8


class DenialFate(StrEnum):
    """What the store says about a denial."""

    STANDS = "stands"
    LIFTED = "lifted"
    """By an operator's act."""
    LOST = "lost"
    """It is gone, and nobody lifted it: it is written again."""


class Denials:
    """One for the process; used from one event loop."""

    def __init__(
        self,
        store: EnrollmentStore,
        note: Callable[[str, Denial], None] = lambda _node, _denial: None,
    ) -> None:
        """`note` is told of each denial that stands once there was one here; returns at once."""
        self._store = store
        self._note = note
        self._noted: dict[str, Denial] = {}
        self._unwritten: dict[str, Denial] = {}
        self._counts: dict[str, int] = {}
        self._written: dict[str, Denial] = {}

    @property
    def unwritten(self) -> Mapping[str, Denial]:
        """Denials of this controller that the store does not hold yet, by node."""
        return MappingProxyType(self._unwritten)

    @property
    def counts(self) -> Mapping[str, int]:
        """How often this controller has denied each node so far, written or not."""
        return MappingProxyType(self._counts)

    @property
    def written(self) -> Mapping[str, Denial]:
        """What stood in the store after this controller's last denial of each node."""
        return MappingProxyType(self._written)

    async def deny(self, node: str, denial: Denial) -> bool:
        """Write `denial`; False if that failed, then `retry` goes on trying."""
        self._unwritten.setdefault(node, denial)
        self._counts[node] = self._counts.get(node, 0) + 1
        new = _denied(self._store.snapshot().records.get(node), node, self._unwritten[node])
        self._stands(node, new.denial or denial)
        return await self._write(node)

    def again(self, node: str, denial: Denial) -> None:
        """Have a denial written again that the store has lost: `retry` does."""
        self._unwritten.setdefault(node, denial)

    async def retry(self) -> None:
        """Try again what could not be written."""
        for node in tuple(self._unwritten):
            await self._write(node)

    def forget(self, node: str, denial: Denial | None) -> None:
        """An operator has decided about `denial`; one that came since is still wanted."""
        if denial is not None and self._unwritten.get(node) == denial:
            del self._unwritten[node]

    def _stands(self, node: str, denial: Denial) -> None:
        if self._noted.get(node) != denial:
            self._noted[node] = denial
            self._note(node, denial)

    async def _write(self, node: str) -> bool:
        try:
            for _ in range(_MAX_RACES):
                denial = self._unwritten.get(node)
                old = self._store.snapshot().records.get(node)
                if denial is None:
                    return True
                new = _denied(old, node, denial)
                if await write(self._store, old, new):
                    self._written[node] = new.denial or denial
                    self._stands(node, self._written[node])
                    self.forget(node, denial)
                    return True
        except EnrollmentUnavailableError:
            return False
        return False


def _denied(old: EnrollmentRecord | None, node: str, denial: Denial) -> EnrollmentRecord:
    return (old or EnrollmentRecord(node)).denied(denial)
