"""What is wrong with a text that a person wrote: key, the text, what was expected.

Text from outside is cut and escaped here, once, so that it can stand in events,
logs and terminals. Pure.
"""

from dataclasses import dataclass

_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault."""

    key: str
    text: str
    expected: str

    def __str__(self) -> str:
        return f"{shown(self.key)}: {shown(self.text)} is wrong, expected {self.expected}"


def shown(text: str) -> str:
    """`text` on one printable line of bounded length."""
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return ascii(cut) if not cut.isprintable() or not cut or " " in cut else cut


class WishTextError(ValueError):
    """One wish's text is malformed; the message completes "expected …"."""
