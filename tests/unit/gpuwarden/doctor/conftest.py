"""Facts of which all is well."""

import pytest

from gpuwarden.doctor.facts import (
    DAEMON_SETS,
    DEFINITIONS,
    Facts,
)
from tests.builders.doctor_facts import (
    healthy,
    without,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return healthy(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def bare(sound: Facts) -> Facts:
    """Of a cluster in which gpuwarden can be installed."""
    facts = without(sound, DAEMON_SETS, "gpuwarden-agent")
    return without(facts, DEFINITIONS)
