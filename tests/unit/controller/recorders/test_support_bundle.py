"""What a controller tells for a bug report, and that no part of it needs the others."""

import json
from typing import Any

import pytest

from controller.recorders import support_bundle
from controller.recorders.support_bundle import ControllerState
from gpuwarden.reasons import ReasonCode
from gpuwarden.support.part import CONTROLLER_PARTS, Part
from sandbox.spiffe.ca import InsecureCa
from tests.builders.node_views import fleet_of, node_view
from tests.builders.support_scene import ID, SupportScene
from tests.builders.svids import new_svid


def value(part: Part) -> Any:
    assert part.content is not None, part.missing
    return json.loads(part.content)


def lines(part: Part) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (part.content or b"").splitlines()]


async def test_parts_come_in_the_order_that_is_known() -> None:
    parts = [part async for part in SupportScene().state().parts()]
    assert tuple(part.name for part in parts) == CONTROLLER_PARTS


async def test_what_a_sick_controller_tells() -> None:
    scene = SupportScene()
    scene.refusals.note("evidence", "bad", ReasonCode.SIG_INVALID, 13)
    parts = await scene.parts()
    readiness = value(parts["readiness.json"])
    assert readiness["ready"] is False
    about = {reason["about"]: reason["words"] for reason in readiness["reasons"]}
    assert about == {"first round": [], "svid": ["UNAVAILABLE"], "audit": ["ENOSPC"]}
    assert readiness["insecureStandIns"] == 1
    assert value(parts["identity.json"]) == {"svid": None, "words": ["UNAVAILABLE"]}
    audit = value(parts["audit.json"])
    assert (audit["available"], audit["onlyReserveLeft"], audit["words"]) == (
        False,
        True,
        ["ENOSPC"],
    )
    assert audit["checkpoint"]["records"] == 9
    assert audit["alarms"] == {"bad": ["CHECKPOINT_INCONSISTENT"]}
    [refusal] = value(parts["refusals.json"])
    assert (refusal["subject"], refusal["code"], refusal["step"]) == ("bad", "SIG_INVALID", 13)
    store = value(parts["store.json"])
    assert store["denials"]["bad"]["code"] == "INVENTORY_CHANGED"
    assert store["denials"]["foreign"]["code"] is None
    assert (store["kind"], store["fresh"], store["records"]) == ("sqlite", True, 2)


async def test_whose_svid_it_is_and_until_when() -> None:
    scene = SupportScene()
    svid = new_svid(InsecureCa("example.org"), ID)
    scene.svids.put(svid)
    shown = value((await scene.parts())["identity.json"])["svid"]
    assert shown == {
        "spiffeId": ID,
        "notAfter": svid.not_after.isoformat(),
        "generation": 1,
        "roots": 1,
    }


async def test_nodes_in_trouble_come_first() -> None:
    parts = await SupportScene().parts()
    fleet = value(parts["fleet.json"])
    assert (fleet["nodes"]["eligible"], fleet["nodes"]["quarantined"]) == (1, 1)
    assert fleet["blocked"] == {"INVENTORY_CHANGED": 1}
    assert (fleet["streams"], fleet["nodesWithSeveralStreams"]) == (3, 1)
    bad, good = lines(parts["nodes.jsonl"])
    assert (bad["name"], bad["state"], bad["blockedBy"]) == (
        "bad",
        "quarantined",
        "INVENTORY_CHANGED",
    )
    assert bad["refusals"][0]["count"] == 2
    assert bad["acceptance"]["driver"] is bad["acceptance"]["agent"] is None
    assert (good["name"], good["streams"], good["acceptance"]["driver"]) == ("good", 2, "570.86.10")
    assert good["acceptance"]["freshForSeconds"] == 9


async def test_a_part_that_fails_is_named_and_the_others_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ControllerState, "audit_state", fails)
    monkeypatch.setattr(support_bundle, "node_line", fails)
    parts = await SupportScene().parts()
    gaps = {name: part.missing for name, part in parts.items() if part.content is None}
    why = "RuntimeError; the controller's log has more"
    assert gaps == {"audit.json": why, "nodes.jsonl": why}


async def test_long_lists_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle, "MAX_NODES", 150)
    monkeypatch.setattr(support_bundle, "MAX_NAMES", 1)
    scene = SupportScene()
    scene.fleet = fleet_of(*(node_view(f"n{number:03}") for number in range(250)))
    parts = await scene.parts()
    assert (len(lines(parts["nodes.jsonl"])), parts["nodes.jsonl"].left_out) == (150, 100)
    assert (len(value(parts["store.json"])["denials"]), parts["store.json"].left_out) == (1, 1)


async def test_lines_end_where_the_part_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle, "MAX_PART_BYTES", 500)
    parts = await SupportScene().parts()
    assert len(lines(parts["nodes.jsonl"])) == 1
    assert parts["nodes.jsonl"].left_out == 1
