"""Waiting for another process's state: polled, bounded, with words for what never came."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tests.hang import HANG_S

T = TypeVar("T")
PATIENCE_S: Final = HANG_S
"""On a machine that does much else; nobody waits for it where all is well."""
_POLL_S = 0.05


class NeverError(AssertionError):
    """What was waited for did not come in time."""


def until(
    what: str,
    ask: Callable[[], T | None],
    *,
    timeout_s: float = PATIENCE_S,
    poll_s: float = _POLL_S,
) -> T:
    """The first answer of `ask` that is neither None nor false."""
    deadline = time.monotonic() + timeout_s
    while True:
        if found := ask():
            return found
        if time.monotonic() > deadline:
            raise NeverError(f"{what}: not within {timeout_s:g} s")
        time.sleep(poll_s)
