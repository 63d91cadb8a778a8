"""What follows when an export fails: again, in halves, or into the dead-letter file. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Final

LONGEST_WAIT_S: Final = 900.0
"""However long a server asks to be left alone."""
_TOO_LARGE: Final = 413
_CONTENT_REFUSED: Final = frozenset({400, _TOO_LARGE, 422})
_TRANSIENT: Final = frozenset({408, 425, 429})
_REDIRECTS: Final = range(300, 400)
_SERVER_ERRORS: Final = range(500, 600)


class Cure(Enum):
    """What may help against a failure."""

    TIME = auto()
    """The same again, later."""
    LESS = auto()
    """The destination refuses what is in it, perhaps one record only: halves."""
    NOTHING = auto()
    """The same would be refused again."""


class DeliveryError(Exception):
    """A batch did not reach its destination. The text has no secrets."""

    def __init__(self, text: str, cure: Cure, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.cure = cure
        self.retry_after_s = retry_after_s


class Step(Enum):
    """What to do next with a batch."""

    WAIT = auto()
    SPLIT = auto()
    BURY = auto()


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often a batch is tried."""

    most: int

    def after(self, error: DeliveryError, tried: int, records: int) -> Step:
        """What to do with a batch of so many records after its `tried`-th attempt failed."""
        if error.cure is Cure.LESS and records > 1:
            return Step.SPLIT
        if error.cure is Cure.TIME and tried < self.most:
            return Step.WAIT
        return Step.BURY


def cure_of_status(status: int) -> Cure:
    """What helps against an HTTP answer that is no success.

    A redirect is none: the token would go where nobody sent it.
    """
    if status in _CONTENT_REFUSED:
        return Cure.LESS
    if status in _TRANSIENT or status in _SERVER_ERRORS:
        return Cure.TIME
    return Cure.NOTHING


def is_redirect(status: int) -> bool:
    """Whether an answer says that the endpoint is elsewhere."""
    return status in _REDIRECTS


def retry_after_s(header: str | None, wall: datetime) -> float:
    """Seconds that `Retry-After` asks for; 0 where it is missing or says nothing."""
    text = (header or "").strip()
    if text.isdecimal():
        return min(LONGEST_WAIT_S, float(text))
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter of numbers that no date can have
        return 0.0
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(LONGEST_WAIT_S, max(0.0, (until - wall).total_seconds()))
