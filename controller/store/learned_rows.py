"""What the scoring service has learned as rows: their text, and what keeps them in a database.

Must not know which database.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from controller.scoring.learned import Key, Row
from controller.store.sqlite import StoreError

VERSION: Final = 1
"""Of the form of a row. A new field has a default, for rows that lack it, and older programs skip
it. What changes the meaning of the others is a new version, with a migration of what is stored."""


MOST_RUN_IDS: Final = 20_000
"""Ids of runs that are kept, the last ones; who reports a run again does so soon."""


class InUseError(Exception):
    """Another process writes the database, and it takes one; says which."""


class ScoresUnavailableError(Exception):
    """The database cannot be read or written now; says why. Never with a password."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One write: rows to put in place, and keys whose rows go."""

    written: tuple[Row, ...]
    removed: tuple[Key, ...] = ()
    run_ids: tuple[str, ...] = ()
    """Of the runs that these rows have learned; never without a row."""

    @property
    def is_change(self) -> bool:
        """Whether it holds anything."""
        return bool(self.written or self.removed)


@dataclass(frozen=True, slots=True)
class News:
    """What a database has that its reader has not seen."""

    rows: tuple[Row, ...] = ()
    removed: tuple[Key, ...] = ()
    run_ids: tuple[str, ...] = ()
    """Of the runs that were learned, the oldest first."""
    is_whole: bool = False
    """Whether these are all rows and ids there are; so it is at the first reading."""
    kept: bool = False
    """The write before, whose end nobody heard, is durable. Its rows are among these."""

    @property
    def is_any(self) -> bool:
        """Whether it says anything."""
        return bool(self.rows or self.removed or self.run_ids or self.is_whole)


Learn = Callable[[News], Rows]
"""Takes the news, and says what is to be written on top of them."""


class ScoreStore(Protocol):
    """Rows in a database, and the ids of the last runs that they have learned.

    Used from one event loop, one call at a time.
    """

    def claim(self) -> None:
        """Take the right to write, where one process may; raises InUseError, OSError."""

    async def exchange(self, learn: Learn) -> None:
        """Hand over what others wrote and make durable what `learn` answers, with no write between.

        Raises ScoresUnavailableError: then nothing that it answered counts, unless a later call
        says `kept`. The news count in any case.
        """

    async def checkpoint(self) -> None:
        """Put the database's files in order, where that is ours; raises ScoresUnavailableError."""

    async def close(self) -> None:
        """End the connection and the right to write."""


def encode_row(row: Row) -> str:
    """A row as text."""
    return msgspec.json.encode(row, order="deterministic").decode()


def decode_row(text: str | bytes) -> Row:
    """The row behind a text; raises StoreError."""
    try:
        row = msgspec.json.decode(text, type=Row)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise StoreError(f"no row of version {VERSION}: {error}") from None
    sums = [moments for x in row.variants for moments in (x.alone, x.beside)]
    counts = (*(x for moments in sums for x in (moments.weight, moments.squares)), row.failures)
    if min(*counts, row.number) < 0:
        raise StoreError(f"no row of version {VERSION}: a count is below 0")
    return row


def row_of(kind: str, job_type: str, other: str, text: str) -> Row:
    """The row that is stored under a key; raises StoreError."""
    row = decode_row(text)
    if (row.kind.value, row.job_type, row.other) != (kind, job_type, other):
        raise StoreError(f"the row of {kind} {job_type!a} {other!a} is about something else")
    return row
