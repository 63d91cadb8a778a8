"""Compares the tests that passed with the tests that were collected. Pure.

A test is accounted for when it passed, or when it was left out for a reason that begins
as one in `MAY_LACK`: something that a machine may lack. Whatever else happened to a
collected test is a difference, and so is the result of a test that nobody collected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MAY_LACK: Final = (
    "this machine has no NVML",
    "this machine has no NVIDIA GPU",
    "no real node: ",
    "no images: ",
    "no SPIRE: ",
    "no bash",
    "no chromium",
    "kubectl is not on PATH",
    "a part of the tests",
)
"""How the reasons begin for which a test may be left out."""

Line = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the collected tests."""

    collected: int
    passed: int
    left_out: tuple[tuple[str, str], ...]
    """Test and reason."""
    failed: tuple[str, ...]
    differences: tuple[str, ...]
    """One line each; empty where every collected test passed or was left out."""

    @property
    def is_whole(self) -> bool:
        return not self.differences


def verdict(collected: Iterable[Line], outcomes: Iterable[Line]) -> Verdict:
    """Judge a run by the lines that `tests.whole_run.outcomes` wrote of both."""
    names = [line["test"] for line in collected]
    ends: dict[str, Line] = {}
    for line in outcomes:  # a test that passes and whose clean-up then fails has failed
        if ends.get(line["test"], {}).get("outcome") != "failed":
            ends[line["test"]] = line
    differences = [f"{name}: was run but not collected" for name in sorted(ends.keys() - names)]
    if not names:
        differences.append("no test was collected")
    differences += [said for name in names if (said := _difference(name, ends.get(name)))]
    by_outcome = {
        outcome: [name for name in names if ends.get(name, {}).get("outcome") == outcome]
        for outcome in ("passed", "skipped", "failed")
    }
    return Verdict(
        collected=len(names),
        passed=len(by_outcome["passed"]),
        left_out=tuple((name, ends[name]["reason"]) for name in by_outcome["skipped"]),
        failed=tuple(by_outcome["failed"]),
        differences=tuple(differences),
    )


def _difference(name: str, end: Line | None) -> str:
    if end is None:
        return f"{name}: was collected and never run"
    if end["outcome"] == "failed":
        return f"{name}: failed"
    if end["outcome"] == "skipped" and not end["reason"].startswith(MAY_LACK):
        return f"{name}: was left out without a known reason: {end['reason']}"
    return ""
