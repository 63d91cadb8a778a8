"""Rare classes in a large fleet: kube-scheduler's sampling must not hide them."""

from collections import Counter
from collections.abc import Iterator

import pytest

from sandbox.laptop import Pace
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.pods import managed, refusals
from tests.e2e.product.stage import Stage

NODES, PODS, RARE, NODES_OF_A_CLASS = 500, 200, 10, 3
PRODUCTION = Pace(interval_s=25, challenge_ttl_s=15, lease_s=90)


def driver_of(number: int) -> str:
    """Few nodes, far from each other, have one of the rare drivers."""
    class_number, place = divmod(number, NODES // RARE)
    return f"580.{class_number}" if place % (NODES // RARE // NODES_OF_A_CLASS) == 1 else ""


NAMES = [f"large-{number:03d}" for number in range(NODES)]
RARE_NODES = {
    driver: {name for number, name in enumerate(NAMES) if driver_of(number) == driver}
    for driver in sorted({driver_of(number) for number in range(NODES)} - {""})
}


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    lab.fake_nodes.add_all(NAMES)
    installation = Installation(lab, "large", pace=PRODUCTION)
    try:
        installation.start()
        installation.agents.start_all(
            (h100_node(name, driver=driver_of(number)) for number, name in enumerate(NAMES)),
            per_second=50,
        )
        yield Stage(lab, installation)
    finally:
        installation.close()
        for name in NAMES:
            lab.fake_nodes.delete(name)


@pytest.mark.long
def test_pods_find_rare_nodes_among_many(stage: Stage) -> None:
    """At once: with a sample of the nodes some would be refused first, and wait."""
    assert [len(nodes) >= NODES_OF_A_CLASS for nodes in RARE_NODES.values()] == [True] * RARE
    hashes = {
        driver: stage.gpuwarden.agents.hash_of(min(nodes)) for driver, nodes in RARE_NODES.items()
    }
    assert len(set(hashes.values())) == RARE
    wanted = {
        f"rare-{number}-{driver.replace('.', '-')}": driver
        for driver in hashes
        for number in range(PODS // RARE)
    }
    documents = [managed(name, {"required-hash": hashes[x]}) for name, x in wanted.items()]
    with stage.created(*documents) as names:
        until(
            "all are bound",
            lambda: all(stage.is_bound(name) for name in names),
            timeout_s=300,
        )
        assert [name for name in names if refusals(stage.pods, name)] == []
        landed = {name: stage.pods.node_of(name) for name in names}
    assert all(node in RARE_NODES[wanted[name]] for name, node in landed.items())
    assert max(Counter(landed.values()).values()) <= 8
