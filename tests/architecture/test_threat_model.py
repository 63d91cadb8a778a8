"""docs/threat-model.md names tests that exist, and of each row one that notices a lost control."""

import re
from dataclasses import dataclass

import pytest

from tests.architecture.test_names import ROOT
from tests.mutation_security.copy_of_sources import selector
from tests.mutation_security.table import SECURITY_MUTATIONS

NOTICED = {test for security_mutation in SECURITY_MUTATIONS for test in security_mutation.tests}


@dataclass(frozen=True, slots=True)
class Row:
    threat: str
    tests: tuple[str, ...]


def rows() -> list[Row]:
    text = (ROOT / "docs/threat-model.md").read_text()
    tables = [x.partition("\n\n")[0] for x in text.split("| shown by |\n|---|---|---|\n")[1:]]
    cells = (line.strip("| ").split(" | ") for table in tables for line in table.splitlines())
    return [Row(threat, tuple(re.findall(r"`([^`]+)`", shown))) for threat, _, shown in cells]


def test_there_are_rows() -> None:
    assert len(rows()) > 90
    assert len({row.threat for row in rows()}) == len(rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.threat)
def test_a_threat_is_shown_by_tests_that_exist(row: Row) -> None:
    assert row.tests
    for test in row.tests:
        assert re.fullmatch(r"tests/[\w/]+\.py::test_\w+", test), test
        assert selector(test)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.threat)
def test_a_lost_control_is_noticed(row: Row) -> None:
    assert NOTICED & set(row.tests), f"take it out: none of {row.tests} is in the table"


def test_every_security_mutation_belongs_to_a_threat() -> None:
    named = {test for row in rows() for test in row.tests}
    assert [x.name for x in SECURITY_MUTATIONS if not named & set(x.tests)] == []
