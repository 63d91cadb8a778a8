"""Pages of devices, nodes and reservations."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.selector import compile_labels
from controller.web.api.documents import (
    Devices,
    Inventory,
    PageRequest,
    device_page,
    node_page,
    reservation_page,
)
from controller.web.api.operations import QueryError, read_query
from gpuwarden.evidence.model import Allocation
from tests.builders.fleet_views import acceptance, fleet, gpu, healthy, mig_slice, node
from tests.builders.ledger import OTHER_POD, SHARE, holder

LABELS = compile_labels({"large": "memory>=40Gi", "old": "memory<1Gi"})
ALL = PageRequest(500)


def held(gpu: str, node: str, state: HolderState, **changes: Any) -> GpuRecord:
    return GpuRecord(gpu, node, (holder(gpu, state=state, **changes),))


def inventory(*nodes: NodeView, records: tuple[GpuRecord, ...] = (), now_ns: int = 0) -> Inventory:
    ledger = LedgerSnapshot.of(Entry(x, "1") for x in records)
    return Inventory(fleet(*nodes), ledger, LABELS, now_ns)


def devices(here: Inventory) -> Devices:
    return device_page(here, ALL).items


def devices_of(where: NodeView, *records: GpuRecord) -> Devices:
    return devices(inventory(where, records=records))


def test_devices_have_node_labels_and_who_holds_them() -> None:
    node = healthy("gpu-1", gpus=4)
    records = (
        held("GPU-gpu-1-0", "gpu-1", HolderState.CONFIRMED),
        held("GPU-gpu-1-1", "gpu-1", HolderState.PROPOSED),
        held("GPU-gpu-1-2", "gpu-1", HolderState.RELEASING),
    )
    found = devices(inventory(node, records=records))
    assert list(found) == [f"GPU-gpu-1-{index}" for index in range(4)]
    assert [x.status.value for x in found.values()] == [
        "assigned",
        "pending",
        "releasing",
        "free",
    ]
    first = msgspec.json.decode(msgspec.json.encode(found["GPU-gpu-1-0"]))
    assert first["node"] == "gpu-1"
    assert "large" in first["labels"]
    assert "old" not in first["labels"]
    assert any(x.startswith("model-") for x in first["labels"])
    assert first["assignment"] == {
        "namespace": "team-a",
        "name": "train-0",
        "uid": "uid-0",
        "reservation-id": "v1.k.uid-0",
        "state": "Confirmed",
    }
    assert found["GPU-gpu-1-3"].assignment is None


@pytest.mark.parametrize("has_serials", [False, True])
def test_serials_are_for_callers_with_a_role(*, has_serials: bool) -> None:
    nameless = replace(gpu(1), serial=None)
    here = inventory(node("gpu-1", acceptance(gpus=[gpu(0), nameless])), node("gpu-2"))
    asked = PageRequest(500, has_serials=has_serials)
    found = msgspec.to_builtins(device_page(here, asked).items)
    nodes = msgspec.to_builtins(node_page(here, asked).items)
    if not has_serials:
        assert not any("serial" in x for x in found.values())
        assert not any("serials" in x for x in nodes.values())
        return
    assert {uuid: x["serial"] for uuid, x in found.items()} == {"GPU-0": "165000000", "GPU-1": None}
    assert nodes["gpu-1"]["serials"] == {"GPU-0": "165000000", "GPU-1": None}
    assert nodes["gpu-2"]["serials"] == {}


def test_a_part_of_a_gpu_has_the_serial_of_its_gpu() -> None:
    where = inventory(node("gpu-1", acceptance(gpus=[SPLIT])))
    found = device_page(where, PageRequest(500, has_serials=True)).items
    assert {x.serial for x in found.values()} == {SPLIT.serial}


def test_every_holder_of_a_share_group_is_shown() -> None:
    gpu = "GPU-gpu-1-0"
    shared = GpuRecord(gpu, "gpu-1", (holder(gpu), holder(gpu, pod=OTHER_POD)), SHARE)
    found = devices(inventory(healthy("gpu-1", gpus=1), records=(shared,)))[gpu]
    assert found.assignment is not None
    assert (found.assignment.name, [x.name for x in found.others]) == ("train-0", ["train-1"])


SPLIT = gpu(0, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")])


@pytest.mark.parametrize(
    ("kept", "statuses"),
    [
        ("GPU-0", ["assigned", "assigned", "free"]),
        ("MIG-b", ["free", "assigned", "free"]),
        ("MIG-c", ["free", "free", "in-use"]),
    ],
    ids=["whole, before it was split", "part", "part that is not shown"],
)
def test_what_cannot_be_given_is_not_free(kept: str, statuses: list[str]) -> None:
    where = node("gpu-1", acceptance(gpus=[SPLIT, gpu(1)]))
    records = (held(kept, "gpu-1", HolderState.CONFIRMED),)
    found = devices(inventory(where, records=records))
    assert [found[x].status.value for x in ("MIG-a", "MIG-b", "GPU-1")] == statuses
    holders = [x.assignment for x in found.values() if x.status.value == "assigned"]
    assert {x.name for x in holders if x is not None} <= {"train-0"}
    assert None not in holders


def given(*devices: str) -> tuple[Allocation, ...]:
    return tuple(Allocation("team-b", "notebook", "main", "nvidia.com/gpu", x) for x in devices)


@pytest.mark.parametrize(
    ("devices", "statuses"),
    [
        (("MIG-a",), ["in-use", "free", "free"]),
        (("GPU-0",), ["in-use", "in-use", "free"]),
        (("GPU-1::3",), ["free", "free", "in-use"]),
        (("MIG-c",), ["free", "free", "in-use"]),
        (("nvidia0", "GPU-elsewhere"), ["free", "free", "free"]),
        ((), ["free", "free", "free"]),
    ],
    ids=[
        "part",
        "whole, before it was split",
        "slice",
        "part that is not shown",
        "none",
        "nothing",
    ],
)
def test_what_kubelet_has_given_is_not_free(devices: tuple[str, ...], statuses: list[str]) -> None:
    """Also while no process uses it."""
    accepted = replace(acceptance(gpus=[SPLIT, gpu(1)]), allocations=given(*devices))
    found = devices_of(node("gpu-1", accepted))
    assert [found[x].status.value for x in ("MIG-a", "MIG-b", "GPU-1")] == statuses
    assert {x.assignment for x in found.values()} == {None}


def test_what_kubelet_has_given_is_its_record_s_where_it_has_one() -> None:
    accepted = replace(acceptance(gpus=[gpu(0)]), allocations=given("GPU-0"))
    record = held("GPU-0", "gpu-1", HolderState.CONFIRMED)
    found = devices_of(node("gpu-1", accepted), record)["GPU-0"]
    assert (found.status.value, found.assignment is None) == ("assigned", False)


@pytest.mark.parametrize("how", [{"lost": True}, {"unhealthy": "xid 79"}], ids=["lost", "xid"])
def test_the_parts_of_a_gpu_that_is_not_well_are_still_somebody_s(how: dict[str, Any]) -> None:
    parts = [mig_slice("MIG-a"), mig_slice("MIG-b")]
    where = node("gpu-1", acceptance(gpus=[gpu(0, mig=True, mig_devices=parts, **how), gpu(1)]))
    found = devices_of(where, held("MIG-a", "gpu-1", HolderState.CONFIRMED))
    assert {uuid: x.status.value for uuid, x in found.items()} == {
        "MIG-a": "assigned",
        "MIG-b": "unhealthy",
        "GPU-1": "free",
    }
    assert list(found) == ["MIG-a", "MIG-b", "GPU-1"]
    assert found["MIG-a"].assignment is not None
    assert (
        found["MIG-a"].labels == devices_of(node("gpu-1", acceptance(gpus=[SPLIT])))["MIG-a"].labels
    )


def test_a_gpu_that_is_not_well_is_shown_whole_where_no_parts_are_known() -> None:
    cards = [gpu(0, mig=None, lost=True), gpu(1, mig=True, unhealthy="xid 79"), gpu(2)]
    found = devices_of(node("gpu-1", acceptance(gpus=cards)))
    assert [(uuid, x.status.value) for uuid, x in found.items()] == [
        ("GPU-0", "unhealthy"),
        ("GPU-1", "unhealthy"),
        ("GPU-2", "free"),
    ]


def test_a_gpu_that_is_split_into_nothing_is_shown_while_it_is_held() -> None:
    where = node("gpu-1", acceptance(gpus=[gpu(0, mig=True), gpu(1)]))
    assert list(devices_of(where)) == ["GPU-1"]
    found = devices_of(where, held("GPU-0", "gpu-1", HolderState.RELEASING))
    assert {uuid: x.status.value for uuid, x in found.items()} == {
        "GPU-0": "releasing",
        "GPU-1": "free",
    }


def test_nothing_is_free_that_is_not_attested_and_healthy() -> None:
    node = healthy("gpu-1", gpus=2)
    assert node.acceptance is not None
    stale = inventory(node, now_ns=node.acceptance.fresh_until_ns)
    assert {x.status.value for x in devices(stale).values()} == {"unattested"}
    first, second = node.acceptance.gpus
    sick = replace(node.acceptance, gpus=(replace(first, unhealthy="xid 79"), second))
    found = devices(inventory(replace(node, acceptance=sick)))
    assert [x.status.value for x in found.values()] == ["unhealthy", "free"]
    used = replace(node.acceptance, processes_by_gpu=MappingProxyType({second.uuid: 1}))
    found = devices(inventory(replace(node, acceptance=used)))
    assert [x.status.value for x in found.values()] == ["free", "in-use"]


def test_nodes_say_why_they_are_not_trusted() -> None:
    node = healthy("gpu-1", gpus=2)
    silent = replace(healthy("gpu-0"), acceptance=None)
    assert devices_of(silent) == {}
    found = node_page(inventory(node, silent), ALL).items
    assert list(found) == ["gpu-0", "gpu-1"]
    assert (found["gpu-0"].state, found["gpu-0"].reason) == ("unknown", "NODE_NO_EVIDENCE")
    assert (found["gpu-1"].state, found["gpu-1"].reason) == ("eligible", "")
    assert node.acceptance is not None
    assert found["gpu-1"].attestation_hash == node.acceptance.attestation_hash
    assert found["gpu-1"].gpus == 2
    assert found["gpu-1"].fresh_for_ms > 0


def test_a_reservation_shows_each_of_its_gpus() -> None:
    records = (
        held("GPU-a", "gpu-1", HolderState.CONFIRMED),
        held("GPU-b", "gpu-1", HolderState.PROPOSED),
        held("GPU-c", "gpu-2", HolderState.PROPOSED, pod=OTHER_POD),
    )
    found = reservation_page(inventory(records=records), ALL).items
    assert list(found) == ["v1.k.uid-0", "v1.k.uid-1"]
    assert found["v1.k.uid-0"].gpus == {"GPU-a": "Confirmed", "GPU-b": "Proposed"}
    assert (found["v1.k.uid-1"].name, found["v1.k.uid-1"].node) == ("train-1", "gpu-2")


def test_pages_join_to_the_whole_in_order() -> None:
    here = inventory(*(healthy(f"gpu-{number}", gpus=1) for number in (3, 1, 2, 5, 4)))
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = node_page(here, PageRequest(2, after))
        assert 1 <= len(page.items) <= 2
        seen += page.items
        after = page.next_after
    assert seen == [f"gpu-{number}" for number in range(1, 6)]
    assert node_page(here, PageRequest(5)).next_after is None


def test_a_query() -> None:
    assert read_query([]) == PageRequest(500)
    assert read_query([("limit", "7"), ("after", "gpu-1")]) == PageRequest(7, "gpu-1")


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([("limit", "0")], "limit"),
        ([("limit", "501")], "limit"),
        ([("limit", "-1")], "limit"),
        ([("limit", "\u0661")], "limit"),
        ([("limit", "1" * 5000)], "limit"),
        ([("limit", "1"), ("limit", "2")], "limit"),
        ([("after", "x" * 513)], "after"),
        ([("order", "x")], "order"),
    ],
)
def test_a_query_that_is_refused_is_named(pairs: list[tuple[str, str]], named: str) -> None:
    with pytest.raises(QueryError, match=named) as caught:
        read_query(pairs)
    assert "expected" in str(caught.value)
    assert len(str(caught.value)) < 200
