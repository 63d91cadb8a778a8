"""The mutants that are known to survive, each with its reason, and what is wrong with a run.

The list must be exact: a survivor that is missing in it, an entry that has no reason, and an
entry whose mutant is killed or is gone are all faults.
"""

import tomllib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.mutant import Key

LIST: Final = Path(__file__).with_name("survivors.toml")
FLOOR_PERCENT: Final = 95.0
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Listed:
    """`times` mutants of this name survive (the same line can stand twice in a function)."""

    key: Key
    reason: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    key: Key
    survived: bool
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """Of one package, or of all."""

    name: str
    mutants: int
    killed: int
    timed_out: int

    @property
    def percent(self) -> float:
        """Share of killed mutants."""
        return 100.0 * self.killed / self.mutants if self.mutants else 100.0


def listed(text: str) -> list[Listed]:
    """Read the list; raises ValueError for an entry that is not one."""
    entries = []
    for number, raw in enumerate(tomllib.loads(text).get("survivor", []), 1):
        try:
            reason, times = str(raw.pop("reason", "")), int(raw.pop("times", 1))
            entries.append(Listed(Key(**raw), reason, times))
        except TypeError as error:
            raise ValueError(f"survivor {number} of {LIST.name}: {error}") from None
    return entries


def scores(verdicts: Iterable[Verdict], packages: Iterable[str]) -> list[Score]:
    """One score for each package that has mutants, and one for all."""
    found = list(verdicts)
    parts = [
        _score(package, [x for x in found if x.key.path.startswith(f"{package}/")])
        for package in packages
    ]
    return [*(part for part in parts if part.mutants), _score(ALL, found)]


def new_survivors(verdicts: Iterable[Verdict], entries: Iterable[Listed]) -> dict[Key, int]:
    """Survivors that are not listed, and how many of each name."""
    known = {entry.key for entry in entries}
    lived = Counter(x.key for x in verdicts if x.survived)
    return {key: count for key, count in sorted(lived.items()) if key not in known}


def faults(verdicts: Iterable[Verdict], entries: Iterable[Listed]) -> list[str]:
    """What is wrong with the list's entries, one text for each.

    Only sources that the verdicts are about are looked at, so that a part can be run.
    """
    found = list(verdicts)
    names = Counter(x.key for x in found)
    lived = Counter(x.key for x in found if x.survived)
    paths = {key.path for key in names}
    texts = []
    for entry in (x for x in entries if x.key.path in paths):
        if not entry.reason.strip():
            texts.append(f"entry without a reason\n{as_diff(entry.key)}")
        if entry.key not in names:
            texts.append(f"stale entry, there is no such mutant\n{as_diff(entry.key)}")
        elif lived[entry.key] != entry.times:
            count = f"{lived[entry.key]} survive, {entry.times} listed"
            texts.append(f"stale entry, {count}\n{as_diff(entry.key)}")
    return texts


def below_floor(found: Iterable[Score], in_part: Collection[str] = ()) -> list[str]:
    """A line for each score that is too low, but for those of packages tried `in_part`."""
    return [
        f"{score.name}: {score.percent:.1f} % killed, at least {FLOOR_PERCENT:g} % are expected"
        for score in found
        if score.percent < FLOOR_PERCENT and score.name not in in_part
    ]


def unknown_paths(entries: Iterable[Listed], paths: set[str]) -> list[str]:
    """Entries about a source that is not mutated (any more)."""
    return [
        f"stale entry, {entry.key.path} is not mutated\n{as_diff(entry.key)}"
        for entry in entries
        if entry.key.path not in paths
    ]


def as_diff(key: Key) -> str:
    """The change as people read it."""
    return (
        f"--- {key.path}\n+++ {key.path} ({key.operator})\n@@ {key.function} @@\n"
        f"-{key.before}\n+{key.after}\n"
    )


def as_entry(key: Key, times: int = 1) -> str:
    """An entry for the list, to which the reason must be added."""
    fields = {
        "path": key.path,
        "function": key.function,
        "operator": key.operator,
        "before": key.before,
        "after": key.after,
    }
    lines = [f"{name} = {_quoted(value)}" for name, value in fields.items()]
    if times > 1:
        lines.append(f"times = {times}")
    return "\n".join(["[[survivor]]", *lines, 'reason = ""', ""])


def _score(name: str, verdicts: list[Verdict]) -> Score:
    killed = sum(not x.survived for x in verdicts)
    return Score(name, len(verdicts), killed, sum(x.timed_out for x in verdicts))


def _quoted(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
