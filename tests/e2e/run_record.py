"""What is known of a whole run of these tests, for the tests that look back at it.

Several processes may run them, each with a cluster of its own: each leaves a file.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.lab.audit_log import AuditedCall, AuditLog

KEPT: Final = Path(__file__).resolve().parents[2] / "build" / "e2e"
"""Where files of a run stay for people."""
RUNS: Final = KEPT / "runs"
"""One file of each process; `make e2e` empties it."""


class Run:
    """One process's run so far: what our accounts called, and when which test began."""

    def __init__(self, audit: AuditLog, *, is_part: bool) -> None:
        self._audit = audit
        self._is_part = is_part
        self._begun: list[tuple[datetime, str]] = []

    def begins(self, test: str, at: datetime) -> None:
        self._begun.append((at, test))

    def calls(self) -> list["CallOfTest"]:
        return [CallOfTest(call, self._test_at(call.at)) for call in self._audit.calls()]

    def _test_at(self, moment: datetime) -> str:
        """The test that ran at the moment; empty before the first."""
        return next((test for begun, test in reversed(self._begun) if begun <= moment), "")

    def keep(self, file: Path) -> None:
        """For `PastRuns`."""
        calls = [
            {**asdict(x.call), "at": x.call.at.isoformat(), "test": x.test} for x in self.calls()
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"is_part": self._is_part, "calls": calls}))


@dataclass(frozen=True, slots=True)
class CallOfTest:
    """A call, and the test that ran meanwhile."""

    call: AuditedCall
    test: str


@dataclass(frozen=True, slots=True)
class PastRuns:
    """What all processes called."""

    calls: Sequence[CallOfTest]
    is_part: bool
    """Whether nobody ran all tests."""


def past_runs(files: Iterable[Path]) -> PastRuns:
    """Of the files that `Run.keep` wrote."""
    found = [json.loads(file.read_text()) for file in sorted(files)]
    calls = [_call(line) for each in found for line in each["calls"]]
    return PastRuns(calls, all(each["is_part"] for each in found))


def _call(line: dict[str, str]) -> CallOfTest:
    test, at = line.pop("test"), datetime.fromisoformat(line.pop("at"))
    return CallOfTest(AuditedCall(at=at, **line), test)  # type: ignore[arg-type]  # as asdict gave it


RUN = pytest.StashKey[Run]()
