"""Each protection is taken out in turn, and its tests must fail: `make weakened`.

The name keeps it out of the usual run, which takes a sample; see test_weakened_sample.py.
"""

from pathlib import Path

import pytest

from tests.weakened.copy_of_sources import assert_noticed
from tests.weakened.table import WEAKENINGS
from tests.weakened.weakening import Weakening

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("weakening", WEAKENINGS, ids=lambda x: x.name)
def test_without_the_protection_its_tests_fail(weakening: Weakening, tmp_path: Path) -> None:
    assert_noticed(weakening, tmp_path)
