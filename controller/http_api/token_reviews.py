"""What the API server says about tokens, kept for a short while.

A token stands nowhere here: what is kept is known by the token's digest. Bounded in number, in
time and in questions under way, so that callers with invented tokens can neither fill the memory
nor keep the API server busy, push out what is known of good tokens, or take from one address what
all others need. Must not decide what an identity may do.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from controller.http_api.callers import TokenIdentity

_S: Final = 1_000_000_000


class TokenReviewUnavailableError(Exception):
    """The API server did not say what the token is worth; never holds a token."""


class TokenReviewer(Protocol):
    """Asks the API server."""

    async def review(self, token: str) -> TokenIdentity | None:
        """Whose token it is, None where it counts for nothing here.

        Raises TokenReviewUnavailableError.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """Bounds of the memory, and of the questions under way."""

    kept: int = 4096
    """Of accepted tokens, and of refused ones, each."""
    accepted_ns: int = 10 * _S
    """For so long a withdrawn token may still be taken for good."""
    refused_ns: int = 5 * _S
    at_once: int = 16
    at_once_from_one_address: int = 4


@dataclass(frozen=True, slots=True)
class _Known:
    found: TokenIdentity | None
    until_ns: int


class TokenReviews:
    """One per process; used from one event loop."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        *,
        boottime_ns: Callable[[], int],
        reviewed: Callable[[str], None],
        limits: ReviewLimits = ReviewLimits(),
    ) -> None:
        """`reviewed` is told accepted, refused, kept, busy or failed, once per question."""
        self._reviewer = reviewer
        self._boottime_ns = boottime_ns
        self._reviewed = reviewed
        self._limits = limits
        self._accepted: dict[bytes, _Known] = {}
        self._refused: dict[bytes, _Known] = {}
        self._running: dict[bytes, asyncio.Task[TokenIdentity | None]] = {}
        self._asking: Counter[str] = Counter()

    async def identity(self, token: str, address: str) -> TokenIdentity | None:
        """Whose token it is that came from `address`; raises TokenReviewUnavailableError."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._accepted.get(digest) or self._refused.get(digest)
        if known is not None and self._boottime_ns() < known.until_ns:
            self._reviewed("kept")
            return known.found
        task = self._running.get(digest)
        if task is None:
            if self._is_busy(address):
                self._reviewed("busy")
                raise TokenReviewUnavailableError("too many tokens are being reviewed")
            task = asyncio.create_task(self._ask(digest, token))
            self._running[digest] = task
            self._asking[address] += 1
            task.add_done_callback(lambda done: self._ended(digest, address, done))
        return await asyncio.shield(task)

    def _is_busy(self, address: str) -> bool:
        return (
            len(self._running) >= self._limits.at_once
            or self._asking[address] >= self._limits.at_once_from_one_address
        )

    async def _ask(self, digest: bytes, token: str) -> TokenIdentity | None:
        asked_ns = self._boottime_ns()
        try:
            found = await self._reviewer.review(token)
        except TokenReviewUnavailableError:
            self._reviewed("failed")
            raise
        self._reviewed("refused" if found is None else "accepted")
        self._accepted.pop(digest, None)
        self._refused.pop(digest, None)
        kept = self._refused if found is None else self._accepted
        while len(kept) >= self._limits.kept:
            del kept[next(iter(kept))]
        lasts_ns = self._limits.refused_ns if found is None else self._limits.accepted_ns
        kept[digest] = _Known(found, asked_ns + lasts_ns)
        return found

    def _ended(self, digest: bytes, address: str, task: asyncio.Task[TokenIdentity | None]) -> None:
        del self._running[digest]
        self._asking[address] -= 1
        if not self._asking[address]:
            del self._asking[address]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone
