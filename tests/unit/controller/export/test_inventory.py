"""Which changes of trust are exported, and to whom."""

from typing import Any

import pytest

from controller.export.delivery import Delivery
from controller.export.inventory import InventoryExport
from controller.export.records import Facts
from controller.fleet.trust import ChangeKind, TrustChange
from tests.builders.node_views import fleet_of, node_view


class Taken:
    """A delivery that only takes note."""

    def __init__(self, warning: str | None = None) -> None:
        self.facts: list[Facts] = []
        self._warning = warning

    def note(self, facts: Facts) -> None:
        self.facts.append(facts)

    def warning(self) -> str | None:
        return self._warning


def export(*taken: Any) -> InventoryExport:
    deliveries: dict[str, Delivery] = {str(number): each for number, each in enumerate(taken)}
    return InventoryExport(
        deliveries,
        fleet=lambda: fleet_of(node_view("gpu-1"), node_view("gpu-2", acceptance=None)),
        provider_id={"gpu-1": "aws:///z/i-0123"}.get,
        source=lambda node: f"spiffe://td/{node}",
    )


EXPORTED = {ChangeKind.FIRST_ACCEPTED, ChangeKind.RESTORED, ChangeKind.FACTS_CHANGED}


@pytest.mark.parametrize("kind", list(ChangeKind))
def test_only_what_was_accepted_is_exported(kind: ChangeKind) -> None:
    taken = Taken()
    export(taken).changed((TrustChange("gpu-1", kind),))
    assert len(taken.facts) == (2 if kind in EXPORTED else 0)


def test_every_exporter_gets_every_gpu_once() -> None:
    one, other = Taken(), Taken()
    change = TrustChange("gpu-1", ChangeKind.RESTORED)
    export(one, other).changed((change, change))
    assert one.facts == other.facts
    assert [(x.node, x.machine, x.source) for x in one.facts] == [
        ("gpu-1", "i-0123", "spiffe://td/gpu-1")
    ] * 2


def test_a_node_that_is_not_accepted_any_more_is_not_exported() -> None:
    taken = Taken()
    export(taken).changed((TrustChange("gpu-2", ChangeKind.RESTORED),))
    assert taken.facts == []


def test_warnings_are_those_of_exporters_that_have_one() -> None:
    assert export(Taken("down"), Taken()).warnings() == ("down",)
