"""A few protections are taken out in every test run, and the table fits the sources always."""

from inspect import ismodule
from pathlib import Path

import pytest

from tests.architecture.test_names import ROOT
from tests.mutation_security import table
from tests.mutation_security.copy_of_sources import assert_noticed, copied, pytest_in, selector
from tests.mutation_security.security_mutation import SecurityMutation
from tests.mutation_security.table import SAMPLE, SECURITY_MUTATIONS


def sample() -> list[SecurityMutation]:
    by_name = {x.name: x for x in SECURITY_MUTATIONS}
    return [by_name[name] for name in SAMPLE]


def test_the_table_holds_every_file_of_entries() -> None:
    files = {path.stem for path in (ROOT / "tests/mutation_security/entries").glob("*.py")}
    assert files == {x.__name__.rpartition(".")[2] for x in vars(table).values() if ismodule(x)}


def test_each_edit_fits_once_and_names_are_unique() -> None:
    assert len({x.name for x in SECURITY_MUTATIONS}) == len(SECURITY_MUTATIONS)
    edits = [edit for security_mutation in SECURITY_MUTATIONS for edit in security_mutation.edits]
    found = {edit: (ROOT / edit.path).read_text().count(edit.before) for edit in edits}
    assert {edit: count for edit, count in found.items() if count != 1} == {}


def test_each_security_mutation_names_tests_that_exist() -> None:
    assert all(security_mutation.tests for security_mutation in SECURITY_MUTATIONS)
    assert all(
        selector(test)
        for security_mutation in SECURITY_MUTATIONS
        for test in security_mutation.tests
    )


def test_with_every_protection_in_place_the_tests_of_the_sample_pass(tmp_path: Path) -> None:
    """Otherwise the copy itself could be what fails."""
    tests = {selector(test) for security_mutation in sample() for test in security_mutation.tests}
    run = pytest_in(copied(tmp_path), *sorted(tests))
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("security_mutation", sample(), ids=lambda x: x.name)
def test_without_the_protection_its_tests_fail(
    security_mutation: SecurityMutation, tmp_path: Path
) -> None:
    assert_noticed(security_mutation, tmp_path)
