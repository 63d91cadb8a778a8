"""Every reason code is exercised by a test that carries its name.

The name stands in the body of a test, in a row of a table that a test takes its cases from, or in
`@pytest.mark.reason("CODE")` where a test produces a code without writing it.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuwarden.reasons import ReasonCode
from tests.architecture.test_names import ROOT
from tests.builders.defects import DEFECTS
from tests.builders.hostile_pods import HOSTILE

PRINTS_ONLY = (
    "tests/architecture",
    "tests/unit/gpuwarden/cli",
    "tests/unit/gpuwarden/test_reasons.py",
)
"""What only names or prints codes shows nothing about when they are given."""
TABLES = {str(code) for code, _ in DEFECTS} | {str(code) for code, _ in HOSTILE}
"""Cases of tests/unit/controller/verifier and of tests/unit/controller/admission."""


def sources() -> list[Path]:
    return [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if not str(path.relative_to(ROOT)).startswith(PRINTS_ONLY)
    ]


WORDS = {word for path in sources() for word in re.findall(r"[A-Z][A-Z0-9_]+", path.read_text())}


def without_test(codes: Iterable[str]) -> list[str]:
    return sorted(code for code in codes if code not in WORDS | TABLES)


@pytest.mark.parametrize("code", ReasonCode)
def test_a_code_is_exercised_by_a_test_with_its_name(code: ReasonCode) -> None:
    assert without_test([code.value]) == []


def test_a_code_without_a_test_is_found() -> None:
    assert without_test(["NO_TEST_HAS_THIS"]) == ["NO_TEST_HAS_THIS"]
