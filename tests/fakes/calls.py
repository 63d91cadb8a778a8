"""Remembers what an interceptor reports of gRPC calls."""

import asyncio

from controller.access import Caller
from gpuwarden.reasons import Refusal


class SeenCalls:
    """A `CallObserver`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Caller | None, Refusal | None]] = []
        self.hang_ups: list[str] = []
        self.hang_up = asyncio.Event()
        """Set at each."""
        self.faults: list[tuple[str, Exception]] = []

    def called(self, method: str, caller: Caller | None, refusal: Refusal | None) -> None:
        self.seen.append((method, caller, refusal))

    def hung_up(self, method: str) -> None:
        self.hang_ups.append(method)
        self.hang_up.set()

    def failed(self, method: str, error: Exception) -> None:
        self.faults.append((method, error))
