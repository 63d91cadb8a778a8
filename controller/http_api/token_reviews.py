"""What the API server says about tokens, kept for a short while.

A token stands nowhere here: what is kept is known by the token's digest. Bounded in number, in
time and in questions under way, so that callers with invented tokens can neither fill the memory
nor keep the API server busy. Must not decide what an identity may do.
"""

import asyncio
import hashlib
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
    accepted_ns: int = 10 * _S
    """For so long a withdrawn token may still be taken for good."""
    refused_ns: int = 5 * _S
    at_once: int = 16


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
        self._known: dict[bytes, _Known] = {}
        self._running: dict[bytes, asyncio.Task[TokenIdentity | None]] = {}

    async def identity(self, token: str) -> TokenIdentity | None:
        """Whose token it is; raises TokenReviewUnavailableError."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and self._boottime_ns() < known.until_ns:
            self._reviewed("kept")
            return known.found
        task = self._running.get(digest)
        if task is None:
            if len(self._running) >= self._limits.at_once:
                self._reviewed("busy")
                raise TokenReviewUnavailableError("too many tokens are being reviewed")
            task = asyncio.create_task(self._ask(digest, token))
            self._running[digest] = task
            task.add_done_callback(lambda done: self._ended(digest, done))
        return await asyncio.shield(task)

    async def _ask(self, digest: bytes, token: str) -> TokenIdentity | None:
        asked_ns = self._boottime_ns()
        try:
            found = await self._reviewer.review(token)
        except TokenReviewUnavailableError:
            self._reviewed("failed")
            raise
        self._reviewed("refused" if found is None else "accepted")
        limits = self._limits
        self._known.pop(digest, None)
        while len(self._known) >= limits.kept:
            del self._known[next(iter(self._known))]
        kept_ns = limits.refused_ns if found is None else limits.accepted_ns
        self._known[digest] = _Known(found, asked_ns + kept_ns)
        return found

    def _ended(self, digest: bytes, task: asyncio.Task[TokenIdentity | None]) -> None:
        del self._running[digest]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone
