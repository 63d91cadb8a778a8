import pytest

from gpuwarden.evidence.stand_in import is_stand_in, without_mark
from tests.builders.inventory import host, inventory


@pytest.mark.parametrize(
    ("driver", "made_up"),
    [
        ("570.86.10+evaluation", True),
        ("+evaluation", True),
        ("570.86.10", False),
        ("570.86.10+evaluation.1", False),
        ("570.86.10-evaluation", False),
        (None, False),
    ],
)
def test_made_up_gpus_are_known_by_the_end_of_the_drivers_version(
    driver: str | None, made_up: bool
) -> None:
    assert is_stand_in(inventory(host=host(driver=driver))) is made_up


@pytest.mark.parametrize(
    ("driver", "claimed"),
    [("570.86.10+evaluation", "570.86.10"), ("570.86.10", "570.86.10"), ("+evaluation", "")],
)
def test_what_a_made_up_driver_claims(driver: str, claimed: str) -> None:
    assert without_mark(driver) == claimed
