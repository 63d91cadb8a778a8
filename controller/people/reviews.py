"""What the API server says about somebody, kept for a short while.

Bounded in number, in time and in questions under way: callers with invented tokens can neither fill
the memory nor keep the API server busy, push out what is known of others, or take from one address
what all need. Whoever was accepted before is asked about beside them, also once that answer is too
old to count, and waits for no stranger. No token is kept: an answer is known by a digest.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from controller.access import Person, TokenReviewUnavailableError
from controller.people.rights import CLUSTER_ROLES, Right, review_of
from gpuwarden.moment import NS_PER_S

T = TypeVar("T")
Reviewed = Callable[[str], None]
"""Takes accepted, refused, kept, busy or failed, once per question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """Bounds of the memory, and of the questions under way."""

    kept: int = 4096
    """Of accepted ones, and of refused ones, each."""
    accepted_ns: int = 10 * NS_PER_S
    """For so long what was withdrawn may still be taken for good."""
    refused_ns: int = 5 * NS_PER_S
    at_once: int = 16
    """Of those that were accepted before, and of all others, each."""
    at_once_from_one_address: int = 4
    """Of the others."""


DEFAULT_LIMITS: Final = ReviewLimits()


class ReviewsBusyError(Exception):
    """More questions are under way than are allowed."""


@dataclass(frozen=True, slots=True)
class _Known(Generic[T]):
    found: T | None
    until_ns: int


class KeptReviews(Generic[T]):
    """Answers by digest; None is a refusal, and is kept apart. Used from one event loop."""

    def __init__(
        self,
        *,
        boottime_ns: Callable[[], int],
        reviewed: Reviewed,
        limits: ReviewLimits,
    ) -> None:
        self._boottime_ns = boottime_ns
        self._reviewed = reviewed
        self._limits = limits
        self._accepted: dict[bytes, _Known[T]] = {}
        self._refused: dict[bytes, _Known[T]] = {}
        self._running: dict[bytes, asyncio.Task[T | None]] = {}
        self._asking: Counter[str | None] = Counter()
        """By address; None for whoever was accepted before."""

    async def answer(
        self, digest: bytes, address: str, ask: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """What is known, or what `ask` says; raises ReviewsBusyError and what `ask` raises."""
        known = self._accepted.get(digest) or self._refused.get(digest)
        if known is not None and self._boottime_ns() < known.until_ns:
            self._reviewed("kept")
            return known.found
        task = self._running.get(digest)
        if task is None:
            stranger = None if digest in self._accepted else address
            if self._is_busy(stranger):
                self._reviewed("busy")
                raise ReviewsBusyError
            task = asyncio.create_task(self._ask(digest, ask))
            self._running[digest] = task
            self._asking[stranger] += 1
            task.add_done_callback(lambda done: self._forget(digest, stranger, done))
        return await asyncio.shield(task)

    def _is_busy(self, stranger: str | None) -> bool:
        known = self._asking[None]
        if stranger is None:
            return known >= self._limits.at_once
        return (
            len(self._running) - known >= self._limits.at_once
            or self._asking[stranger] >= self._limits.at_once_from_one_address
        )

    async def _ask(self, digest: bytes, ask: Callable[[], Awaitable[T | None]]) -> T | None:
        asked_ns = self._boottime_ns()
        try:
            found = await ask()
        except Exception:
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

    def _forget(self, digest: bytes, stranger: str | None, task: asyncio.Task[T | None]) -> None:
        del self._running[digest]
        self._asking[stranger] -= 1
        if not self._asking[stranger]:
            del self._asking[stranger]
        if not task.cancelled():
            task.exception()  # read, because the caller may be gone


# --- tokens

T_co = TypeVar("T_co", covariant=True)


class TokenReviewer(Protocol[T_co]):
    """Asks the API server; what does so is above this layer."""

    async def review(self, token: str) -> T_co | None:
        """Ask whose token it is; None where it counts for nothing here.

        Raises TokenReviewUnavailableError.
        """


class TokenReviews(Generic[T]):
    """Whose tokens these are. One per listener that takes tokens."""

    def __init__(
        self,
        reviewer: TokenReviewer[T],
        *,
        boottime_ns: Callable[[], int],
        reviewed: Reviewed,
        limits: ReviewLimits = DEFAULT_LIMITS,
    ) -> None:
        self._reviewer = reviewer
        self._kept: KeptReviews[T] = KeptReviews(
            boottime_ns=boottime_ns, reviewed=reviewed, limits=limits
        )

    async def review(self, token: str, address: str) -> T | None:
        """Find out whose token came from `address`; raises TokenReviewUnavailableError."""
        digest = hashlib.sha256(token.encode()).digest()
        try:
            return await self._kept.answer(digest, address, lambda: self._reviewer.review(token))
        except ReviewsBusyError:
            raise TokenReviewUnavailableError("too many tokens are being reviewed") from None


# --- rights


class AccessReviewUnavailableError(Exception):
    """The API server did not say whether somebody may do something."""


class AccessReviewer(Protocol):
    """Asks the API server; what does so is above this layer."""

    async def review(self, person: Person, right: Right) -> bool:
        """Whether the person has the right; raises AccessReviewUnavailableError."""


class AccessReviews:
    """Who may do what. One per process.

    Tenants ask about pods under as many names as they like: so the rights that make roles are kept
    apart.
    """

    def __init__(
        self,
        reviewer: AccessReviewer,
        *,
        boottime_ns: Callable[[], int],
        reviewed: Reviewed,
        limits: ReviewLimits = DEFAULT_LIMITS,
    ) -> None:
        self._reviewer = reviewer
        self._roles, self._others = (
            KeptReviews[bool](boottime_ns=boottime_ns, reviewed=reviewed, limits=limits)
            for _ in range(2)
        )

    async def has(self, person: Person, right: Right) -> bool:
        """Find out whether a person has a right; raises AccessReviewUnavailableError."""
        spec = json.dumps(review_of(person, right), sort_keys=True).encode()

        async def ask() -> bool | None:
            return await self._reviewer.review(person, right) or None

        try:
            kept = self._roles if right in CLUSTER_ROLES else self._others
            found = await kept.answer(hashlib.sha256(spec).digest(), person.username, ask)
        except ReviewsBusyError:
            raise AccessReviewUnavailableError("too many rights are being reviewed") from None
        return found is True
