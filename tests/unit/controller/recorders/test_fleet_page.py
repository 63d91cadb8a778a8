"""`/metrics/fleet`: one info and one state set for each node and GPU of the snapshot."""

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.binding.idle import Account, Holding, IdleGpu
from controller.binding.use_reconciler import UseNow
from controller.fleet.view import FleetSnapshot, NodeView
from controller.ledger.record import PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from controller.recorders.fleet_page import fleet_page
from gpuwarden.evidence.model import Allocation, LostGpu, MigDevice
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry.every_metric import METRICS
from gpuwarden.telemetry.names import FLEET_PAGE
from tests.builders.ledger import holder, record
from tests.builders.node_views import HASH_A, S, acceptance, fleet_of, gpu_view, node_view
from tests.builders.node_views import past_refusal as refusal

NOW = 50 * S
NOBODY = LedgerSnapshot()
USE = UseNow(
    idle=(IdleGpu(Holding("GPU-a", "n", PodRef("team-a", "p"), "r"), 1),),
    accounts={"team-b": Account(9 * S, 0), "team-a": Account(7 * S, 4 * S + 1)},
)
Samples = Mapping[tuple[str, ...], float]


def samples(
    name: str, fleet: FleetSnapshot, ledger: LedgerSnapshot | None = NOBODY, now_ns: int = NOW
) -> Samples:
    text = fleet_page(fleet, ledger, USE, now_ns).decode()
    base = name.removesuffix("_total")
    (family,) = [x for x in text_string_to_metric_families(text) if x.name == base]
    found = {tuple(x.labels.values()): x.value for x in family.samples}
    assert len(found) == len(family.samples)
    return found


def held(*gpus: str) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(record(holder(x), gpu=x), "1") for x in gpus)


def on(found: Samples) -> dict[str, str]:
    """The one state of each that is on; every other state has a series, too."""
    return {name: state for (name, state), value in found.items() if value == 1}


def with_gpu(index: int = 0, **changes: Any) -> FleetSnapshot:
    return fleet_of(node_view("n", acceptance=acceptance(gpus=(gpu_view(index, **changes),))))


def test_a_node_is_told_by_what_its_evidence_proved() -> None:
    assert samples("gpuwarden_node_info", fleet_of(node_view("n"))) == {
        ("n", "L0", "env", HASH_A, "570.86.10", "0.1.0"): 1
    }
    times = samples("gpuwarden_node_evidence_timestamp_seconds", fleet_of(node_view("n")))
    assert times == {("n",): 1_700_000_000}


def test_a_node_without_accepted_evidence_has_a_state_and_nothing_else() -> None:
    fleet = fleet_of(node_view("n", acceptance=None))
    assert samples("gpuwarden_node_info", fleet) == {}
    assert samples("gpuwarden_gpu_info", fleet) == {}
    assert on(samples("gpuwarden_node_state", fleet)) == {"n": "unknown"}


def test_the_state_of_a_node_is_one_of_all_states() -> None:
    found = samples("gpuwarden_node_state", fleet_of(node_view("n")), now_ns=100 * S)
    assert on(found) == {"n": "stale"}
    assert sorted(state for _, state in found) == [
        "eligible", "quarantined", "refused", "revoked", "stale", "unknown",
    ]  # fmt: skip


def test_a_gpu_is_told_by_its_facts() -> None:
    fleet = with_gpu(2, product='a "b"\\\n')
    facts = ("1650123452", "n", "2", "00000000:02:00.0", 'a "b"\\\n', "96.00.74.00.11")
    assert samples("gpuwarden_gpu_info", fleet) == {(gpu_view(2).uuid, *facts): 1}
    unread = with_gpu(2, product=None, serial=None, vbios=None)
    ((_, serial, *_, product, vbios),) = samples("gpuwarden_gpu_info", unread)
    assert (serial, product, vbios) == ("", "", "")


@pytest.mark.parametrize(
    ("changes", "now_ns", "state"),
    [
        ({}, NOW, "usable"),
        ({}, 100 * S, "stale"),
        ({"unhealthy": "xid 79"}, 100 * S, "unhealthy"),
        ({"lost": LostGpu("x", 0, "0", "GPU_IS_LOST"), "unhealthy": "x"}, NOW, "lost"),
    ],
)
def test_the_state_of_a_gpu(changes: dict[str, Any], now_ns: int, state: str) -> None:
    found = samples("gpuwarden_gpu_state", with_gpu(**changes), now_ns=now_ns)
    assert on(found) == {gpu_view().uuid: state}
    assert len(found) == 6


@pytest.mark.parametrize(
    ("code", "state"),
    [(ReasonCode.SIG_INVALID, "revoked"), (ReasonCode.INVENTORY_CHANGED, "quarantined")],
)
def test_gpus_of_a_blocked_node_have_its_state(code: ReasonCode, state: str) -> None:
    fleet = fleet_of(node_view("n", blocked=refusal(code)))
    assert set(on(samples("gpuwarden_gpu_state", fleet)).values()) == {state}


@pytest.mark.parametrize(
    ("is_held", "has_process", "is_given", "use"),
    [
        (False, False, False, "free"),
        (True, False, False, "idle"),
        (True, True, False, "used"),
        (True, False, True, "idle"),
        (False, True, False, "unreserved"),
        (False, False, True, "unreserved"),
    ],
)
def test_the_use_of_a_gpu(is_held: bool, has_process: bool, is_given: bool, use: str) -> None:
    uuid = gpu_view().uuid
    given = (Allocation("team-a", "p", "c", "nvidia.com/gpu", uuid),) if is_given else ()
    seen = acceptance(processes_by_gpu={uuid: 1} if has_process else {}, allocations=given)
    found = samples(
        "gpuwarden_gpu_use",
        fleet_of(node_view("n", acceptance=seen)),
        held(uuid) if is_held else NOBODY,
    )
    assert on(found) == {uuid: use, gpu_view(1).uuid: "free"}


@pytest.mark.parametrize(("has_process", "use"), [(False, "idle"), (True, "used")])
def test_a_gpu_whose_record_follows_is_not_used_without_a_reservation(
    has_process: bool, use: str
) -> None:
    uuid, asked = gpu_view().uuid, []
    given = (Allocation("team-a", "p", "c", "nvidia.com/gpu", uuid),)
    seen = acceptance(processes_by_gpu={uuid: 1} if has_process else {}, allocations=given)

    def to_record(node: NodeView) -> Mapping[str, frozenset[str]]:
        asked.append(node.name)
        return {uuid.lower(): frozenset({"uid-p"})}

    fleet = fleet_of(node_view("n", acceptance=seen))
    text = fleet_page(fleet, NOBODY, USE, NOW, to_record=to_record).decode()
    assert f'gpuwarden_gpu_use{{UUID="{uuid}",use="{use}"}} 1' in text
    assert f'gpuwarden_gpu_use{{UUID="{gpu_view(1).uuid}",use="free"}} 1' in text
    assert asked == ["n"]


def test_a_gpu_is_held_with_any_of_its_mig_devices() -> None:
    fleet = with_gpu(mig=True, mig_devices=(MigDevice("MIG-1", "1g.10gb", 9728),))
    assert on(samples("gpuwarden_gpu_use", fleet, held("MIG-1"))) == {gpu_view().uuid: "idle"}
    assert on(samples("gpuwarden_gpu_use", fleet, held("MIG-2"))) == {gpu_view().uuid: "free"}


def test_without_a_ledger_no_use_is_told() -> None:
    assert samples("gpuwarden_gpu_use", fleet_of(node_view("n")), None) == {}


def test_a_ledger_that_is_too_old_shows_no_gpu_as_free() -> None:
    old = LedgerSnapshot.of((), fresh_until_ns=NOW)
    fleet = with_gpu()
    assert samples("gpuwarden_gpu_use", fleet, old) == {}
    assert on(samples("gpuwarden_gpu_use", fleet, old, NOW - 1)) == {gpu_view().uuid: "free"}


@pytest.mark.parametrize("names", [("old", "new"), ("new", "old")])
def test_a_gpu_that_has_moved_is_shown_where_it_is(names: tuple[str, str]) -> None:
    views = {
        "old": node_view("old", acceptance=acceptance(fresh_until_ns=1)),
        "new": node_view("new", acceptance=acceptance(accepted_wall_ns=1)),
    }
    fleet = fleet_of(*(views[x] for x in names))
    assert {x[2] for x in samples("gpuwarden_gpu_info", fleet)} == {"new"}
    assert set(on(samples("gpuwarden_gpu_state", fleet)).values()) == {"usable"}


def test_of_two_nodes_alike_the_later_evidence_counts() -> None:
    nodes = [
        node_view(x, acceptance=acceptance(accepted_wall_ns=at)) for x, at in (("a", 2), ("b", 1))
    ]
    assert {x[2] for x in samples("gpuwarden_gpu_info", fleet_of(*nodes))} == {"a"}


def test_gpu_time_of_namespaces() -> None:
    assert samples("gpuwarden_namespace_reserved_gpu_seconds_total", fleet_of()) == {
        ("team-a",): 7,
        ("team-b",): 9,
    }
    assert samples("gpuwarden_namespace_idle_gpu_seconds_total", fleet_of()) == {
        ("team-a",): 4,
        ("team-b",): 0,
    }
    assert samples("gpuwarden_namespace_idle_gpus", fleet_of()) == {
        ("team-a",): 1,
        ("team-b",): 0,
    }


def test_what_is_gone_has_no_series() -> None:
    assert samples("gpuwarden_gpu_info", fleet_of()) == {}
    assert samples("gpuwarden_node_state", fleet_of()) == {}


def test_the_page_has_what_is_declared_and_prometheus_finds_no_fault() -> None:
    page = fleet_page(fleet_of(node_view("n")), held(gpu_view().uuid), USE, NOW)
    families = list(text_string_to_metric_families(page.decode()))
    declared = {x.name.removesuffix("_total"): x for x in METRICS if x.page == FLEET_PAGE}
    assert [x.name for x in families] == list(declared)
    for family in families:
        assert family.samples
        assert family.type == declared[family.name].type.value
        assert {tuple(x.labels) for x in family.samples} == {declared[family.name].labels}
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here (Debian: prometheus)")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
