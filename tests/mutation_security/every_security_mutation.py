"""Each protection is taken out in turn, and its tests must fail: `make mutation-security`.

The name keeps it out of the usual run, which takes a sample; see test_security_mutation_sample.py.
"""

from pathlib import Path

import pytest

from tests.mutation_security.copy_of_sources import assert_noticed
from tests.mutation_security.security_mutation import SecurityMutation
from tests.mutation_security.table import SECURITY_MUTATIONS


@pytest.mark.parametrize("security_mutation", SECURITY_MUTATIONS, ids=lambda x: x.name)
def test_without_the_protection_its_tests_fail(
    security_mutation: SecurityMutation, tmp_path: Path
) -> None:
    assert_noticed(security_mutation, tmp_path)
