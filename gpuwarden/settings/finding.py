"""What can be wrong with a configuration, as values: all of it at once. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_SHOWN = 120
_USER_INFO = re.compile(r"(?<=://)[^/@]*(?=@)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    key: str
    """Key, flag, variable or file."""
    source: str
    """Where it was given: `flag --x`, `environment X`, `file f.yaml, line 3`, or empty."""
    value: str
    """What was given, shown to people; empty if nothing was."""
    expected: str

    def __str__(self) -> str:
        given = f": got {self.value}" if self.value else ""
        where = f" ({self.source})" if self.source else ""
        return f"{self.key}{where}{given}; expected {self.expected}"


class SettingsError(Exception):
    """The configuration cannot be used; `findings` has every reason."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in findings))


def quoted(text: str) -> str:
    """Return a value as an error shows it: quoted, escaped, cut off, no password of a URL."""
    text = _USER_INFO.sub("<redacted>", text)
    short = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return ascii(short)
