"""A log goes over to another key: a statement signed by the old and by the new one.

Whoever has pinned the old key follows the statements to the new one; whoever was given
the new key knows that its holder vouches for what the old one signed. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from gpuwarden.audit.note import NoteError, Signer, VerifierKey, open_note, sign_note

KIND: Final = "gpuwarden.dev/log-key/v1"
MAX_CHANGES: Final = 16
"""Statements that travel with a challenge at most, the latest ones."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """From one key to the next of the same log; both carry its origin as name."""

    old: VerifierKey
    new: VerifierKey

    @classmethod
    def open(cls, note: str) -> Self:
        """Read a statement and verify both signatures; raises NoteError."""
        lines = open_note(note).split("\n")
        if len(lines) != 4 or lines[0] != KIND or lines[3]:  # noqa: PLR2004 -- kind, two keys, and what follows the last line feed
            raise NoteError("not a change of a log's key")
        change = cls(VerifierKey.parse(lines[1]), VerifierKey.parse(lines[2]))
        if change.old.name != change.new.name:
            raise NoteError("a log's key can only give way to another one of the same log")
        open_note(note, change.old, change.new)
        return change


def sign_change(old: Signer, new: Signer) -> str:
    """The statement that `new` follows `old`."""
    return sign_note(f"{KIND}\n{old.key}\n{new.key}\n", [old, new])


def successor(pinned: VerifierKey, offered: VerifierKey, statements: Sequence[str]) -> VerifierKey:
    """`offered`, if statements lead from `pinned` to it; raises NoteError.

    Statements that cannot be read, or begin elsewhere, are passed over.
    """
    current = pinned
    for note in statements[-MAX_CHANGES:]:
        if current == offered:
            break
        try:
            change = KeyChange.open(note)
        except NoteError:
            continue
        if change.old == current:
            current = change.new
    if current != offered:
        raise NoteError(
            f"the log's key is {offered.name}+{offered.key_id.hex()}, and nothing leads to it"
            f" from the pinned {pinned.name}+{pinned.key_id.hex()}"
        )
    return offered
