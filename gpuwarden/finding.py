"""What is wrong with a text that a person wrote: where, what was given, what was expected. Pure.

For configuration, policies and the requirements of pods. Whoever finds several faults reports
them all at once.
"""

import re
from dataclasses import dataclass

_MAX_SHOWN = 120
_USER_INFO = re.compile(r"(?<=://)[^/@]*(?=@)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. Texts from outside are escaped and cut before they come in here."""

    key: str
    """Key, annotation, flag, variable or file."""
    value: str
    """What was given; empty if nothing was."""
    expected: str
    source: str = ""
    """Where it was given: `flag --x`, `environment X`, `file f.yaml, line 3`, or empty."""

    def __str__(self) -> str:
        given = f": got {self.value}" if self.value else ""
        where = f" ({self.source})" if self.source else ""
        return f"{self.key}{where}{given}; expected {self.expected}"


def quoted(text: str) -> str:
    """The text in quotes, escaped, cut off after 120 characters, without the password of a URL."""
    text = _USER_INFO.sub("<redacted>", text)
    short = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return ascii(short)
