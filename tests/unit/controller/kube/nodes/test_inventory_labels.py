"""Which labels a node has by its evidence, and what is removed."""

import re

import pytest

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import FleetSnapshot
from controller.kube.nodes.inventory_labels import LabelPatch, LabelPlan, labels_of, value
from gpuwarden.evidence.model import LostGpu
from gpuwarden.reasons import ReasonCode
from tests.builders.node_views import S, acceptance, fleet_of, gpu_view, node_view, past_refusal

OWN = {
    "inventory.gpuwarden.dev/class": "a" * 12,
    "inventory.gpuwarden.dev/gpu-count": "2",
    "inventory.gpuwarden.dev/level": "L0",
}
PLAIN = {"gpuid.github.com/gpu-0": "1650123450", "gpuid.github.com/gpu-1": "1650123451", **OWN}
FRESH, STALE = 50 * S, 100 * S


def with_chassis(*chassis: str | None) -> dict[str, str]:
    gpus = tuple(gpu_view(n, chassis_serial=x) for n, x in enumerate(chassis))
    found = labels_of(acceptance(gpus=gpus))
    return {
        key.removeprefix("gpuid.github.com/"): x
        for key, x in found.items()
        if key.startswith("gpuid.github.com/")
    }


def test_without_a_chassis_only_the_gpus_are_named() -> None:
    assert labels_of(acceptance()) == PLAIN
    assert with_chassis("N/A", None) == {"gpu-0": "1650123450", "gpu-1": "1650123451"}


def test_one_chassis_is_named_beside_its_gpus() -> None:
    assert with_chassis("1821225190819", "1821225190819") == {
        "chassis": "1821225190819",
        "chassis-count": "1",
        "gpu-0": "1650123450",
        "gpu-1": "1650123451",
    }


def test_each_of_several_chassis_has_its_own_gpus() -> None:
    assert with_chassis("200", "100", "200") == {
        "chassis-count": "2",
        "chassis-0": "100",
        "chassis-0-gpu-0": "1650123451",
        "chassis-1": "200",
        "chassis-1-gpu-0": "1650123450",
        "chassis-1-gpu-1": "1650123452",
    }


def test_a_lost_gpu_is_not_named_and_one_without_a_serial_by_its_uuid() -> None:
    lost = LostGpu(uuid="GPU-1", index=0, pci_bus_id="", error="GPU_IS_LOST")
    gpus = (gpu_view(0, lost=lost), gpu_view(1, serial="N/A"))
    found = labels_of(acceptance(gpus=gpus))
    assert found["gpuid.github.com/gpu-0"] == gpu_view(1).uuid
    assert "gpuid.github.com/gpu-1" not in found
    assert found["inventory.gpuwarden.dev/gpu-count"] == "1"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1650123450", "1650123450"),
        ("a b/c", "a-b-c"),
        ("-a_", "a"),
        ("N/A", "na"),
        ("", "na"),
        ("///", "na"),
        ("x" * 64, "x" * 63),
        ("x" * 62 + "-y", "x" * 62),
        ("\u00e9", "na"),
    ],
)
def test_a_value_is_one_that_the_api_server_takes(text: str, wanted: str) -> None:
    assert value(text) == wanted
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value(text))


NOTHING: dict[str, str] = {}


def due(
    plan: LabelPlan, fleet: FleetSnapshot, labels: dict[str, str], now_ns: int = FRESH
) -> LabelPatch:
    (found,) = plan.changes(fleet, nodes(labels), now_ns)
    return found


def nodes(labels: dict[str, str]) -> DirectorySnapshot:
    return DirectorySnapshot({"gpu-1": KnownNode("u", labels=labels)})


def test_only_what_differs_is_changed_and_what_is_stale_is_removed() -> None:
    there = {
        **PLAIN,
        "gpuid.github.com/gpu-1": "other",
        "gpuid.github.com/gpu-2": "stale",
        "gpuid.github.community/gpu-2": "not ours",
        "gpuwarden.dev/enforce": "not of the inventory",
    }
    assert due(LabelPlan(), fleet_of(node_view()), there) == LabelPatch(
        "gpu-1", {"gpuid.github.com/gpu-1": "1650123451", "gpuid.github.com/gpu-2": None}
    )


def test_a_node_with_its_labels_is_left_alone() -> None:
    assert LabelPlan().changes(fleet_of(node_view()), nodes(PLAIN), FRESH) == []


@pytest.mark.parametrize(
    ("fleet", "now_ns"),
    [
        (fleet_of(), FRESH),
        (fleet_of(node_view()), STALE),
        (fleet_of(node_view(blocked=past_refusal(ReasonCode.INVENTORY_CHANGED))), FRESH),
        (fleet_of(node_view(acceptance=None)), FRESH),
    ],
    ids=["unknown", "stale", "refused", "never accepted"],
)
def test_a_node_that_is_not_eligible_has_none(fleet: FleetSnapshot, now_ns: int) -> None:
    assert due(LabelPlan(), fleet, PLAIN, now_ns).labels == dict.fromkeys(PLAIN)
    assert LabelPlan().changes(fleet, nodes(NOTHING), now_ns) == []


def test_what_changes_later_is_seen() -> None:
    plan, there = LabelPlan(), nodes(PLAIN)
    fleet = fleet_of(node_view())
    assert plan.changes(fleet, there, FRESH) == []
    swapped = fleet_of(node_view(acceptance=acceptance(gpus=(gpu_view(0), gpu_view(2)))))
    (found,) = plan.changes(swapped, there, FRESH)
    assert found.labels == {"gpuid.github.com/gpu-1": "1650123452"}
    (found,) = plan.changes(fleet, nodes(NOTHING), FRESH)
    assert found.labels == PLAIN
    (found,) = plan.changes(fleet, there, STALE)
    assert found.labels == dict.fromkeys(PLAIN)


def test_a_change_is_due_until_it_is_made() -> None:
    plan, fleet = LabelPlan(), fleet_of(node_view())
    assert due(plan, fleet, NOTHING) == due(plan, fleet, NOTHING)


def test_nodes_that_are_gone_are_forgotten() -> None:
    plan, fleet = LabelPlan(), fleet_of(node_view())
    plan.changes(fleet, nodes(PLAIN), FRESH)
    assert plan.changes(fleet, DirectorySnapshot({}), FRESH) == []
    assert plan._settled == {}
