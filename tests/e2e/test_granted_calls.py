"""What our accounts called in the whole run, against what deploy/ grants them.

Looks back at what all processes of `make e2e` left, and is run after them. The table of rights
and of the tests that made use of them stands in build/e2e/granted-calls.txt.
"""

from collections.abc import Sequence
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
from tests.e2e.run_record import KEPT, RUNS, CallOfTest, PastRuns, past_runs

pytestmark = pytest.mark.last
BASE = DEPLOY / "kustomize" / "base" / "rbac.yaml"
CERTIFICATES = DEPLOY / "kustomize" / "components" / "self-managed-certificates" / "rbac.yaml"
"""What controllers may call beyond the base where they make their own certificates. They renew them
after months: that each of these rights is needed is shown without a cluster (tests/deploy)."""
HINTS = DEPLOY / "kustomize" / "components" / "hints" / "rbac.yaml"
"""What they may call beyond the base where a scorer is configured."""
ON_PURPOSE = "test_what_is_not_called_is_not_allowed"
"""Calls what nobody has granted."""


@pytest.fixture(scope="module")
def runs() -> PastRuns:
    files = list(RUNS.glob("*.json"))
    assert files, f"no run left anything in {RUNS}"
    return past_runs(files)


@pytest.fixture
def of_tests(runs: PastRuns) -> list[CallOfTest]:
    return [x for x in runs.calls if ON_PURPOSE not in x.test]


@pytest.fixture
def calls(of_tests: Sequence[CallOfTest]) -> list[AuditedCall]:
    return [x.call for x in of_tests]


def by(name: str, calls: Sequence[AuditedCall]) -> list[AuditedCall]:
    return [x for x in calls if x.user == account(name)]


def rights_in(*files: Path) -> set[Right]:
    return rights_of_roles(x for file in files for x in yaml.safe_load_all(file.read_text()))


def test_nothing_was_called_that_is_not_granted(calls: list[AuditedCall]) -> None:
    granted = rights_in(BASE)
    assert granted == rights_of_calls(NAMESPACE)
    more = rights_in(CERTIFICATES, HINTS)
    assert not_granted(by("gpuwarden-controller", calls), granted | more) == []


def test_nobody_of_ours_was_refused(calls: list[AuditedCall]) -> None:
    assert refused_for_good(calls) == []


def test_the_agents_called_nothing(calls: list[AuditedCall]) -> None:
    assert by("gpuwarden-agent", calls) == []


def test_nothing_is_granted_that_was_not_called(
    runs: PastRuns, of_tests: list[CallOfTest], calls: list[AuditedCall]
) -> None:
    if runs.is_part:
        pytest.skip("a part of the tests: what they do not call is called by others")
    ours = {
        "gpuwarden-controller": rights_in(BASE),
        "gpuwarden-scheduler": rights_in(DEPLOY / "scheduler" / "rbac.yaml"),
    }
    lines = [
        f"{name}: {right}: {first_test(right, name, of_tests)}"
        for name, rights in ours.items()
        for right in sorted(rights, key=str)
    ]
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "granted-calls.txt").write_text("\n".join(lines) + "\n")
    for name, rights in ours.items():
        assert [str(x) for x in not_called(rights, by(name, calls))] == [], name


def first_test(right: Right, name: str, of_tests: Sequence[CallOfTest]) -> str:
    """The test that made use of it first."""
    made = [x for x in of_tests if x.call.user == account(name) and right.covers(x.call)]
    return min(made, key=lambda x: x.call.at).test if made else "nobody"
