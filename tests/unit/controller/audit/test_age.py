"""The age of a log counts the time in which it is open, and nothing else."""

import pytest

from controller.audit.age import REF, LogAge, stated_age
from gpuwarden.moment import NS_PER_S
from tests.fakes.clock import FakeClock


def test_a_log_that_is_not_open_has_no_age() -> None:
    assert LogAge(FakeClock()).seconds() is None


def test_an_open_log_ages_from_what_it_was() -> None:
    clock = FakeClock()
    age = LogAge(clock)
    age.begin(100)
    assert age.seconds() == 100
    clock.boottime += 7 * NS_PER_S
    assert age.seconds() == 107


@pytest.mark.parametrize("stated", [-1, True, 1.5, "7", None])
def test_what_is_no_age_states_none(stated: object) -> None:
    assert stated_age({REF: stated}) is None
    assert stated_age({REF: 7}) == 7
    assert stated_age({}) is None
