"""What is wrong with a text that a person wrote: where, what was given, what was expected. Pure.

For configuration, policies and the requirements of pods. Whoever finds several faults reports
them all at once.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

_MAX_SHOWN = 120
_USER_INFO = re.compile(r"(?<=://).*(?=@)", re.DOTALL)
"""Up to the last `@`: nobody has to write those of a password as `%40`."""
REQUIRED: Final = "is required"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. Texts from outside are escaped and cut before they come in here."""

    key: str
    """Key, annotation, flag, variable or file, as the writer named it."""
    value: str
    """What was given; empty if nothing was."""
    expected: str
    """Completes "expected …"; empty if there is nothing to say."""
    source: str = ""
    """Where it was given: `flag`, `environment`, `file f.yaml, line 3`, or empty."""
    problem: str = ""
    """What is wrong, where it is no value: `is required`, `unknown key`."""
    setting: str = ""
    """The key of the configuration that the flag or variable sets; empty if there is none."""

    def __str__(self) -> str:
        sets = f"sets {self.setting}" if self.setting and self.setting not in self.key else ""
        places = ", ".join(place for place in (self.source, sets) if place)
        where = f" ({places})" if places else ""
        given = f"got {self.value}" if self.value else ""
        expected = f"expected {self.expected}" if self.expected else ""
        faults = "; ".join(part for part in (self.problem or given, expected) if part)
        return f"{self.key}{where}: {faults}"


def required(key: str, expected: str, source: str = "", *, setting: str = "") -> Finding:
    """Something that must be there is not."""
    return Finding(key, "", expected, source, REQUIRED, setting)


def unknown(
    key: str, suggestion: str | None, source: str = "", *, what: str = "key", known: str = ""
) -> Finding:
    """A name that nobody knows; without a suggestion, `known` says which there are."""
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    return Finding(key, "", "" if suggestion else known, source, f"unknown {what}{hint}")


def near_miss(name: str, known: Iterable[str], *, closeness: float = 0.75) -> str | None:
    """The known name that is most like `name`; case, `_` and `-` do not count."""
    names: dict[str, str] = {}
    for each in known:
        names.setdefault(_plain(each), each)
    found = get_close_matches(_plain(name), names, n=1, cutoff=closeness)
    return names[found[0]] if found else None


def quoted(text: str) -> str:
    """The text in quotes, escaped, cut off after 120 characters, without the password of a URL."""
    text = _USER_INFO.sub("<redacted>", text)
    short = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return ascii(short)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
