"""What is known of a whole run of these tests, for the tests that look back at it."""

from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.lab.audit_log import AuditLog

KEPT = Path(__file__).resolve().parents[2] / "build" / "e2e"
"""Where files of a run stay for people."""


class Run:
    """The run so far: what our accounts called, and when which test began."""

    def __init__(self, audit: AuditLog, *, is_part: bool) -> None:
        self.audit = audit
        self.is_part = is_part
        self._begun: list[tuple[datetime, str]] = []

    def begins(self, test: str, at: datetime) -> None:
        self._begun.append((at, test))

    def test_at(self, moment: datetime) -> str:
        """The test that ran at the moment; empty before the first."""
        return next((test for begun, test in reversed(self._begun) if begun <= moment), "")


RUN = pytest.StashKey[Run]()
