"""Waits for something that another process or thread brings about; fails when it never does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.hang import HANG_S

T = TypeVar("T")
DEADLINE_S = HANG_S
_PAUSE_S = 0.02


async def eventually(
    probe: Callable[[], Awaitable[T | None]], what: str, *, within_s: float = DEADLINE_S
) -> T:
    """Ask `probe` until it gives something that is not None."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = await probe()
                if found is not None:
                    return found
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise AssertionError(f"never happened within {within_s:g} s: {what}") from None
