"""Every locked package of the images has a wheel for both kinds of machine; nothing is compiled."""

from collections import defaultdict

import pytest
from packaging.utils import parse_wheel_filename

from tests.deploy.wheels import LIST, MACHINES, PARTS, locked, read, tags

LISTED = read(LIST.read_text())


def listed(machine: str) -> dict[tuple[str, str], set[str]]:
    """Hashes of the listed wheels that a machine can install."""
    fitting = set(tags(machine))
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file, digest in LISTED.items():
        name, version, _, wheel = parse_wheel_filename(file)
        if wheel & fitting:
            found[name, str(version)].add(digest)
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("part", PARTS)
def test_every_locked_package_has_a_wheel(part: str, machine: str) -> None:
    wheels, packages = listed(machine), locked(part, machine)
    assert {"grpcio", "cryptography"} <= {name for name, _ in packages}
    missing = [name for name, hashes in packages.items() if not hashes & wheels.get(name, set())]
    assert missing == [], f"{machine}: `make lock` says why"


def test_no_wheel_is_listed_that_is_not_locked() -> None:
    allowed = {
        digest
        for part in PARTS
        for machine in MACHINES
        for hashes in locked(part, machine).values()
        for digest in hashes
    }
    assert {file for file, digest in LISTED.items() if digest not in allowed} == set()
