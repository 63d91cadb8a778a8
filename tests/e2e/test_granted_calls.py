"""What our accounts called in the whole run, against what deploy/ grants them. Runs last.

The table of rights and of the tests that made use of them stands in build/e2e/granted-calls.txt.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from tests.e2e.lab.audit_log import AuditedCall
from tests.e2e.product.granted import (
    Right,
    not_called,
    not_granted,
    refused_for_good,
    rights_of_calls,
    rights_of_roles,
)
from tests.e2e.product.installation import DEPLOY, NAMESPACE, account
from tests.e2e.run_record import KEPT, RUN, Run

pytestmark = [pytest.mark.last, pytest.mark.usefixtures("lab")]
ON_PURPOSE = "test_what_is_not_called_is_not_allowed"
"""Calls what nobody has granted."""


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return request.config.stash[RUN]


@pytest.fixture
def calls(run: Run) -> list[AuditedCall]:
    return [x for x in run.audit.calls() if ON_PURPOSE not in run.test_at(x.at)]


def by(name: str, calls: Sequence[AuditedCall]) -> list[AuditedCall]:
    return [x for x in calls if x.user == account(name)]


def rights_in(*files: Path) -> set[Right]:
    return rights_of_roles(x for file in files for x in yaml.safe_load_all(file.read_text()))


def test_nothing_was_called_that_is_not_granted(calls: list[AuditedCall]) -> None:
    granted = rights_in(DEPLOY / "kustomize" / "base" / "rbac.yaml")
    assert granted == rights_of_calls(NAMESPACE)
    assert not_granted(by("gpuwarden-controller", calls), granted) == []


def test_nobody_of_ours_was_refused(calls: list[AuditedCall]) -> None:
    assert refused_for_good(calls) == []


def test_the_agents_called_nothing(calls: list[AuditedCall]) -> None:
    assert by("gpuwarden-agent", calls) == []


def test_nothing_is_granted_that_was_not_called(run: Run, calls: list[AuditedCall]) -> None:
    if run.is_part:
        pytest.skip("a part of the tests: what they do not call is called by others")
    ours = {
        "gpuwarden-controller": rights_in(DEPLOY / "kustomize" / "base" / "rbac.yaml"),
        "gpuwarden-scheduler": rights_in(DEPLOY / "scheduler" / "rbac.yaml"),
    }
    lines = [
        f"{name}: {right}: {first_test(run, right, by(name, calls))}"
        for name, rights in ours.items()
        for right in sorted(rights, key=str)
    ]
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "granted-calls.txt").write_text("\n".join(lines) + "\n")
    for name, rights in ours.items():
        assert [str(x) for x in not_called(rights, by(name, calls))] == [], name


def first_test(run: Run, right: Right, calls: Sequence[AuditedCall]) -> str:
    """The test that made use of it first."""
    made: list[datetime] = [x.at for x in calls if right.covers(x)]
    return run.test_at(min(made)) if made else "nobody"
