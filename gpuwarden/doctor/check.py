"""A check: what it is called, what it is about, and the function that judges the facts. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpuwarden.doctor.facts import Facts, Replicas, UnknownError

_ELSEWHERE: Final = "no way from here leads to it"


class Outcome(StrEnum):
    """How a check ends."""

    PASSED = "passed"
    WARNING = "warning"
    """It works, and somebody should know."""
    FAILED = "failed"
    NOT_CHECKED = "not checked"
    """A fact is not known, or there is nothing to check here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found."""

    outcome: Outcome
    seen: str
    expected: str = ""
    command: str = ""
    """One command that repairs it, or shows what to repair."""


def passed(seen: str) -> Verdict:
    """As it should be."""
    return Verdict(Outcome.PASSED, seen)


def warned(seen: str, expected: str, command: str) -> Verdict:
    """Not as it should be, but it works."""
    return Verdict(Outcome.WARNING, seen, expected, command)


def failed(seen: str, expected: str, command: str) -> Verdict:
    """Not as it must be."""
    return Verdict(Outcome.FAILED, seen, expected, command)


def not_checked(why: str) -> Verdict:
    """There is nothing to check, or nothing to check it by."""
    return Verdict(Outcome.NOT_CHECKED, why)


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `id` is stable, scripts rely on it."""

    id: str
    title: str
    """A statement that holds where the check passes."""
    about: str
    """What is compared and why, for the page; empty where the title says it."""
    judge: Callable[[Facts], Verdict]
    more: str = ""
    """Page and anchor below docs/ that say more."""

    @property
    def page(self) -> str:
        """Where the check is described."""
        return f"docs/doctor.md#{self.id}"


@dataclass(frozen=True, slots=True)
class Group:
    """Checks about one thing."""

    name: str
    title: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it found."""

    check: Check
    verdict: Verdict

    def plain(self) -> dict[str, Any]:
        """For programs; the shape is documented in docs/doctor.md."""
        verdict = self.verdict
        return {
            "id": self.check.id,
            "title": self.check.title,
            "outcome": verdict.outcome.value,
            "seen": verdict.seen,
            "expected": verdict.expected,
            "command": verdict.command,
            "page": self.check.page,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all checks, by group."""

    groups: tuple[tuple[Group, tuple[Result, ...]], ...]
    replicas: Replicas | None = None
    """Those of the controller that the results are about; None where none has answered."""

    def count(self, outcome: Outcome) -> int:
        """How many checks ended so."""
        return sum(one.verdict.outcome is outcome for _, found in self.groups for one in found)

    @property
    def is_success(self) -> bool:
        """Whether no check failed."""
        return not self.count(Outcome.FAILED)

    def plain(self) -> dict[str, Any]:
        """For programs; the shape is documented in docs/doctor.md."""
        return {
            "success": self.is_success,
            "counts": {one.value: self.count(one) for one in Outcome},
            "replicas": [] if self.replicas is None else list(_plain(self.replicas)),
            "groups": [
                {
                    "name": group.name,
                    "title": group.title,
                    "checks": [one.plain() for one in found],
                }
                for group, found in self.groups
            ],
        }


def _plain(replicas: Replicas) -> Iterator[dict[str, Any]]:
    for one in replicas.asked:
        yield {"name": one.name, "answers": True, "why": ""}
    for name, why in replicas.silent:
        yield {"name": name, "answers": False, "why": why}
    for name in replicas.elsewhere:
        yield {"name": name, "answers": False, "why": _ELSEWHERE}


def judge(groups: Iterable[Group], facts: Facts) -> Report:
    """Make every check."""
    return Report(
        tuple((group, tuple(_result(check, facts) for check in group.checks)) for group in groups),
        facts.replicas.value,
    )


def _result(check: Check, facts: Facts) -> Result:
    try:
        return Result(check, check.judge(facts))
    except UnknownError as error:
        return Result(check, not_checked(str(error)))
