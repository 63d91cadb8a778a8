"""The HTTP API v1 over real TLS: who sees what, pages, filters, ETags, events, proofs."""

import asyncio
import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from controller.access import Person, Rate
from controller.audit.log import DurableLog
from controller.audit.opening import audit_log
from controller.audit.sealing import LogIdentity
from controller.explain.pod_views import SeenPod
from controller.people.rights import INSPECT, OPERATE, read_pods
from controller.placement.explanation import FitReport, NodeFit
from controller.record import Record
from controller.web.api import v1
from controller.web.api.viewers import COOKIE, GROUP_HEADER, USER_HEADER
from gpuwarden.audit.archived_evidence import FOLDER
from gpuwarden.audit.files import file_name
from gpuwarden.audit.merkle import Frontier, leaf_hash, verify_consistency, verify_inclusion
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import SystemClock
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders import fleet_views
from tests.builders.accounts import account, held, node_of, pod_document
from tests.builders.archived_evidence import archived_evidence
from tests.builders.audit_log import log
from tests.builders.evidence import Scene
from tests.builders.fleet_views import acceptance, fleet, healthy, node
from tests.builders.inventory import gpu, inventory
from tests.fakes.eventually import eventually
from tests.fakes.http_api import ApiWorld, api_world
from tests.hang import HANG_S

ANNA = Person("anna", ("dev",))
JANE = "/gpuwarden/inspector/jane"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with api_world(tmp_path) as made:
        made.people["anna-token"] = ANNA
        yield made


async def get(world: ApiWorld, path: str, token: str | None = "reader", **more: Any) -> Any:  # noqa: S107 -- of a fake
    status, found = await world.ask("GET", path, token, **more)
    assert status == 200, found
    return found


# --- who sees what


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/fleet", "/v1/gpus", "/v1/classes", "/devices"])
async def test_the_fleet_is_for_readers(world: ApiWorld, path: str) -> None:
    assert (await world.ask("GET", path, "reader"))[0] == 200
    assert (await world.ask("GET", path, svid="/gpuwarden/inspector/shop"))[0] == 200
    for token, status, code in (
        ("anna-token", 403, "ROLE_DENIED"),
        ("pod", 403, "ROLE_DENIED"),
        ("invented", 401, "TOKEN_INVALID"),
        (None, 401, "TOKEN_INVALID"),
    ):
        found, problem = await world.ask("GET", path, token)
        assert (found, problem["code"]) == (status, code)
    world.rights.add(("anna", INSPECT))
    world.clock.advance(seconds=11)
    assert (await world.ask("GET", path, "anna-token"))[0] == 200


async def test_a_person_sees_pods_of_namespaces_that_they_may_read(world: ApiWorld) -> None:
    await world.reserve()
    world.seen = [SeenPod("team-a", "train-0", "uid-0", "gpu-1"), SeenPod("team-b", "x", "u", "")]
    for path in ("/v1/pods", "/v1/reservations"):
        status, problem = await world.ask("GET", path, "anna-token")
        assert (status, problem["code"]) == (403, "ROLE_DENIED")
        assert "one namespace" in problem["error"]
        asked = f"{path}?namespace=team-a"
        status, problem = await world.ask("GET", asked, "anna-token")
        assert status == 403
        assert 'needs verb "get" on "pods" in namespace team-a' in problem["error"]
    world.rights.add(("anna", read_pods("team-a")))
    world.clock.advance(seconds=11)
    pods = await get(world, "/v1/pods?namespace=team-a", "anna-token")
    assert [(x["name"], x["state"], len(x["gpus"])) for x in pods["items"]] == [
        ("train-0", "bound", 2)
    ]
    found = await get(world, "/v1/reservations?namespace=team-a", "anna-token")
    assert [x["name"] for x in found["items"]] == ["train-0"]
    assert (await world.ask("GET", "/v1/pods?namespace=team-b", "anna-token"))[0] == 403
    every = await get(world, "/v1/pods")
    assert [x["namespace"] for x in every["items"]] == ["team-a", "team-b"]


async def test_a_person_reads_a_pod_without_others_in_it(world: ApiWorld) -> None:
    found = account(pod_document(), held(), node=node_of())
    assert found is not None
    world.traces["team-a/train-0"] = found
    path = "/v1/pods/team-a/train-0"
    assert (await world.ask("GET", path, "anna-token"))[0] == 403
    world.rights.add(("anna", read_pods("team-a", "train-0")))
    world.clock.advance(seconds=11)
    shown = await get(world, path, "anna-token")
    names = ["required", "admitted", "filtered", "reserved", "bound", "kubelet", "nvml"]
    assert [x["name"] for x in shown["stages"]] == names
    assert shown["stages"][-1]["findings"] == ["what else is on these GPUs is shown to inspectors"]
    assert (await world.ask("GET", f"{path}/nodes", "anna-token"))[0] == 403
    assert (await world.ask("GET", "/v1/pods/team-a/other", "reader"))[0] == 404


async def test_who_cannot_be_asked_about_sees_nothing(world: ApiWorld) -> None:
    world.people["long"] = Person("x" * 10)
    status, problem = await world.ask("GET", "/v1/status", "nobody")
    assert (status, problem["code"]) == (401, "TOKEN_INVALID")
    assert (await get(world, "/v1/status", "anna-token"))["cluster"] == "lab"


async def test_a_person_without_a_role_reads_nothing_of_the_fleet_in_the_status(
    world: ApiWorld,
) -> None:
    world.warnings, world.alarms = ["export: https://inner"], {"gpu-1": ("LOG_RESET",)}
    world.not_ready = "svid: /run/spire"
    found = await get(world, "/v1/status", "anna-token")
    assert (found["warnings"], found["alarms"], found["replicas"]) == ([], {}, [])
    assert (found["not-ready"], found["spire"]) == ("why is shown to inspectors", "")
    world.not_ready = ""
    assert (await get(world, "/v1/status", "anna-token"))["not-ready"] == ""
    full = await get(world, "/v1/status")
    assert (full["warnings"], full["alarms"]) == (
        ["export: https://inner"],
        {"gpu-1": ["LOG_RESET"]},
    )


async def test_a_reader_without_a_role_reads_no_text_that_can_name_a_serial(
    world: ApiWorld,
) -> None:
    swapped = replace(
        node(
            "gpu-x",
            acceptance(gpus=[fleet_views.gpu(0, "GPU-x-0")]),
            blocked=ReasonCode.INVENTORY_CHANGED,
        ),
        warnings=("serial 165422",),
    )
    assert swapped.blocked is not None
    swapped = replace(swapped, blocked=replace(swapped.blocked, detail="serial is 165422"))
    world.fleet = fleet(swapped)
    world.fits["team-a/train-0"] = FitReport(
        (NodeFit("gpu-x", Refusal(ReasonCode.INVENTORY_CHANGED, "serial is 165422"), 0, None),),
        {ReasonCode.INVENTORY_CHANGED: 1},
        None,
    )
    for path in ("/nodes", "/v1/nodes", "/v1/nodes/gpu-x", "/v1/pods/team-a/train-0/nodes"):
        assert "165422" in json.dumps(await get(world, path, None, svid=JANE))
        assert "165422" not in json.dumps(await get(world, path))
    status, problem = await world.ask("GET", "/v1/audit", "reader")
    assert (status, problem["code"]) == (403, "ROLE_DENIED")


async def test_a_cookie_is_as_good_as_a_header_where_there_is_a_console(tmp_path: Path) -> None:
    headers = {"Cookie": f"{COOKIE}=anna-token"}
    for cookie, status in ((True, 200), (False, 401)):
        folder = tmp_path / str(cookie)
        folder.mkdir()
        async with api_world(folder, rules={"cookie": cookie}) as world:
            world.people["anna-token"] = ANNA
            assert (await world.ask("GET", "/v1/status", headers=headers))[0] == status


async def test_a_proxy_names_its_user_and_nobody_else_does(tmp_path: Path) -> None:
    proxy = "spiffe://example.org/proxy"
    async with api_world(tmp_path, rules={"proxies": {proxy}}) as world:
        world.rights.add(("bob", INSPECT))
        bob = {USER_HEADER: "bob", GROUP_HEADER: "dev"}
        path = "/v1/nodes"
        assert (await world.ask("GET", path, svid="/proxy", headers=bob))[0] == 200
        assert (await world.ask("GET", "/devices", svid="/proxy", headers=bob))[0] == 200
        for headers in ({}, {USER_HEADER: "system:anonymous"}):
            status, problem = await world.ask("GET", path, svid="/proxy", headers=headers)
            assert (status, problem["code"]) == (401, "TOKEN_INVALID")
        carl = {USER_HEADER: "carl"}
        assert (await world.ask("GET", path, svid="/proxy", headers=carl))[0] == 403
        assert (await world.ask("GET", path, svid="/other", headers=bob))[0] == 401
        assert (await world.ask("GET", path, headers=bob))[0] == 401
        assert (await world.ask("GET", path, "invented", headers=bob))[0] == 401


async def test_this_machine_reads_without_a_login_only_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    async with api_world(tmp_path, rules={"loopback": True}) as world:
        assert (await world.ask("GET", "/v1/nodes"))[0] == 200
        for host in ("rebound.example.com", "[::1", "localhost.example.com"):
            assert (await world.ask("GET", "/v1/nodes", headers={"Host": host}))[0] == 401
        assert (await world.ask("GET", "/v1/nodes", "invented"))[0] == 401


async def test_callers_are_slowed_down(tmp_path: Path) -> None:
    async with api_world(tmp_path, others=Rate(0.1, 2)) as world:
        found = [(await world.ask("GET", "/v1/status", "reader"))[0] for _ in range(3)]
        assert found == [200, 200, 429]


# --- lists


async def test_pages_join_to_the_whole(world: ApiWorld) -> None:
    world.fleet = fleet(*(healthy(f"gpu-{x}", gpus=3) for x in range(4)))
    names, path = [], "/v1/gpus?limit=5&model=H100"
    while path:
        async with world.session("reader") as client, client.get(path) as answer:
            found = await answer.json()
            link = answer.links.get("next")
            path = "" if link is None else str(URL(link["url"]).relative())
        names += [f"{x['node']}/{x['index']}" for x in found["items"]]
        assert (found["next"] is None) is (path == "")
    assert names == [f"gpu-{node}/{gpu}" for node in range(4) for gpu in range(3)]


async def test_pages_lose_nothing_where_a_name_begins_with_another(world: ApiWorld) -> None:
    nodes = ["gpu", "gpu-1", "gpu.a", "gpu0"]
    world.fleet = fleet(*(healthy(x, gpus=2) for x in nodes))
    long = "x" * 253
    world.seen = [SeenPod("t" * 63, long, f"{n:036}", "") for n in range(3)]
    for path, count in (("/v1/gpus", 8), ("/v1/nodes", 4), ("/v1/pods", 3)):
        found: list[Any] = []
        after = ""
        while True:
            page = await get(
                world, path, params={"limit": "1", **({"after": after} if after else {})}
            )
            found += page["items"]
            after = page["next"]
            if after is None:
                break
        assert len(found) == count
        assert len({json.dumps(x) for x in found}) == count


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("limit=0", "limit: 0, expected 1 to 500"),
        ("state=nonsense", "state: nonsense, expected one of lost, quarantined"),
        ("colour=red", "colour: no such parameter, expected q, node-state"),
        ("zone=a&zone=b", "zone: given twice, expected once"),
        ("namespace=A%20B", "namespace: A B, expected an RFC 1123 name"),
        ("q=%07", "q: \\x07, expected 1 to 253 characters without"),
    ],
)
async def test_a_parameter_that_is_wrong_is_named(world: ApiWorld, query: str, error: str) -> None:
    status, problem = await world.ask("GET", f"/v1/nodes?{query}", "reader")
    assert status == 400
    assert problem["error"].startswith(error)


async def test_equal_answers_have_equal_tags(world: ApiWorld) -> None:
    async with world.session("reader") as client:
        async with client.get("/v1/nodes") as answer:
            tag = answer.headers["ETag"]
            assert answer.headers["Cache-Control"] == "private, no-cache"
            assert len((await answer.json())["items"]) == 2
        known = {"If-None-Match": tag}
        async with client.get("/v1/nodes", headers=known) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        world.fleet = fleet(healthy("gpu-1", gpus=1))
        async with client.get("/v1/nodes", headers=known) as answer:
            assert answer.status == 200
            assert answer.headers["ETag"] != tag


async def test_without_the_ledger_lists_of_it_say_so(world: ApiWorld) -> None:
    world.is_ledger_fresh = False
    for path in ("/v1/pods", "/v1/reservations"):
        status, problem = await world.ask("GET", path, "reader")
        assert (status, problem["code"]) == (503, "LEDGER_UNAVAILABLE")


async def test_one_node_and_one_gpu(world: ApiWorld) -> None:
    await world.reserve()
    found = await get(world, "/v1/nodes/gpu-1", None, svid="/gpuwarden/operator/jane")
    assert found["node"]["state"] == "eligible"
    assert found["comparison"]["most-common-nodes"] == 2
    assert found["enrollment"]["can-be-accepted"] is False
    serial = found["node"]["gpus"][3]["serial"]
    path = f"/v1/gpus/{serial}"
    by_serial = await get(world, path, None, svid="/gpuwarden/operator/jane")
    assert by_serial["uuid"] == "GPU-gpu-1-3"
    assert (await world.ask("GET", path, "reader"))[0] == 404
    held_one = await get(world, "/v1/gpus/GPU-gpu-1-0")
    assert held_one["now"]["reserved-by"] == ["team-a/train-0"]
    status, problem = await world.ask("GET", "/v1/nodes/none", "reader")
    assert (status, problem["code"]) == (404, "NODE_UNKNOWN")


async def test_a_serial_that_no_node_shows_any_more_is_found_in_the_log(world: ApiWorld) -> None:
    kept = archived_evidence(Scene(evidence={"inventory": inventory(gpu(2))}))
    folder = world.audit / FOLDER / "20261128"
    folder.mkdir(parents=True)
    (folder / f"{kept.digest}.json").write_bytes(kept.encoded())
    uuid, serial = gpu(2).uuid, gpu(2).serial
    refs = {"gpus": [uuid], "lost": [], "evidence": kept.digest}
    (line,) = log(1, kind="evidence.accepted", subject="node/gone", refs=refs)
    (world.audit / file_name(1)).write_bytes(line)
    operator = {"svid": "/gpuwarden/operator/jane"}
    found = await get(world, f"/v1/gpus/{serial}", None, **operator)
    assert (found["uuid"], found["now"]) == (uuid, None)
    (place,) = found["history"]["places"]
    assert (place["node"], place["index"], place["until"]) == ("gone", 2, "")
    assert (await world.ask("GET", f"/v1/gpus/{serial}", "reader"))[0] == 404
    assert (await get(world, f"/v1/gpus/{uuid}"))["history"] == found["history"]


# --- events


async def test_changes_come_as_events(tmp_path: Path) -> None:
    async with (
        api_world(tmp_path, stream_s=10 * HANG_S) as world,
        world.session("reader") as client,
        client.get("/v1/events") as answer,
    ):
        assert answer.content_type == "text/event-stream"
        await answer.content.readuntil(b": connected\n\n")
        world.fleet = fleet(healthy("gpu-1", gpus=4), healthy("gpu-9", gpus=1))
        await world.reserve()
        events: list[list[str]] = []
        while len(events) < 3:
            said = (await answer.content.readuntil(b"\n\n")).decode()
            events += [said.split("\n")] if said.startswith("event") else []
    assert [x[0] for x in events] == ["event: node", "event: node", "event: reservations"]
    told = [json.loads(x[1].removeprefix("data: ")) for x in events[:2]]
    assert [(x["name"], x["state"]) for x in told] == [("gpu-2", "gone"), ("gpu-9", "eligible")]


async def test_nobody_takes_the_streams_of_all(tmp_path: Path) -> None:
    async with (
        api_world(tmp_path, stream_s=10 * HANG_S, others=Rate(100, 100)) as world,
        AsyncExitStack() as open_,
    ):
        world.rights.add(("anna", INSPECT))
        world.people["anna-token"] = ANNA
        client = await open_.enter_async_context(world.session("reader"))
        for _ in range(8):
            answer = await open_.enter_async_context(client.get("/v1/events"))
            assert answer.status == 200
        status, problem = await world.ask("GET", "/v1/events", "reader")
        assert (status, problem["error"]) == (503, "8 streams of this caller are open")
        anna = await open_.enter_async_context(world.session("anna-token"))
        assert (await open_.enter_async_context(anna.get("/v1/events"))).status == 200


async def test_the_stream_of_a_page_that_was_left_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it would have ended by itself, and though nothing is written to it."""
    monkeypatch.setattr(v1, "_HEARTBEAT_S", math.inf)
    limit_s = 10 * HANG_S
    async with api_world(tmp_path, stream_s=limit_s, others=Rate(1e6, 10**6)) as world:
        for _ in range(8):
            async with world.session("reader") as client, client.get("/v1/events") as answer:
                assert answer.status == 200

        async def is_let_in() -> bool | None:
            async with world.session("reader") as client, client.get("/v1/events") as answer:
                return answer.status == 200 or None

        await eventually(is_let_in, "a place for one more stream")


# --- the audit log


async def test_records_and_their_proofs(world: ApiWorld) -> None:
    async with asyncio.timeout(HANG_S):
        log = await _log(world).open()
        for number in range(5):
            record = Record(RecordKind.NODE_OPERATOR, "jane", f"node/gpu-{number}", "accepted")
            await log.grant(replace(record, refs={"reason": "<b>new</b>"}))
        await log.close()
        again = await _log(world).open()
        await again.close()
    world.published = again.published
    found = await get(world, "/v1/audit?kind=node.&limit=2&actor=jan", None, svid=JANE)
    assert [x["subject"] for x in found["items"]] == ["node/gpu-4", "node/gpu-3"]
    following = await get(world, f"/v1/audit?kind=node.&after={found['next']}", None, svid=JANE)
    assert [x["subject"] for x in following["items"]] == ["node/gpu-2", "node/gpu-1", "node/gpu-0"]
    assert following["next"] is None
    assert (await world.ask("GET", "/v1/audit?after=x", svid=JANE))[0] == 400
    assert (await get(world, "/v1/audit?code=NODE_STALE", None, svid=JANE))["items"] == []
    assert len((await get(world, "/v1/audit?q=GPU-2", None, svid=JANE))["items"]) == 1
    head = await get(world, "/v1/audit/checkpoint")
    row = found["items"][0]
    query = f"/v1/audit/proof?record={row['record']}&from=3"
    proof = await get(world, query)
    leaf, root = leaf_hash(row["line"].encode()), b64decode(head["root"])
    hashes = [b64decode(x) for x in proof["inclusion"]]
    verify_inclusion(leaf, row["record"] - 1, head["size"], root, hashes)
    older = b64decode(_root(world, 3))
    verify_consistency(3, older, head["size"], root, [b64decode(x) for x in proof["consistency"]])
    for bad, status in (
        ("record=99999", 400),
        ("size=99999&record=1", 400),
        ("", 400),
        ("record=0", 400),
    ):
        assert (await world.ask("GET", f"/v1/audit/proof?{bad}", "reader"))[0] == status
    (world.audit / "tree").write_bytes(b"\0" * 10_000)
    status, problem = await world.ask("GET", query, "reader")
    assert (status, problem["code"]) == (503, "AUDIT_UNAVAILABLE")


def _log(world: ApiWorld) -> DurableLog:
    """Opened again it publishes the checkpoint with which it was closed."""
    return audit_log(
        AuditSettings(dir=world.audit),
        LogIdentity("lab/controller-0", "boot", "1" * 32),
        SystemClock(),
        Instruments(Process.CONTROLLER, "0.1.0"),
        copies_to=None,
    )


def _root(world: ApiWorld, size: int) -> str:
    lines = b"".join(x.read_bytes() for x in sorted(world.audit.glob("*.jsonl"))).splitlines()
    tree = Frontier()
    for line in lines[:size]:
        tree.append(hashlib.sha256(b"\0" + line).digest())
    return b64encode(tree.root()).decode()


async def test_without_a_checkpoint_there_is_nothing_to_prove(world: ApiWorld) -> None:
    for path in ("/v1/audit/checkpoint", "/v1/audit/proof?record=1"):
        status, problem = await world.ask("GET", path, "reader")
        assert (status, problem["code"]) == (503, "AUDIT_UNAVAILABLE")


async def test_what_can_be_done_is_what_is_written_in_the_rights(world: ApiWorld) -> None:
    """An operator's right alone shows nothing of the fleet."""
    world.rights.add(("anna", OPERATE))
    assert (await world.ask("GET", "/v1/nodes", "anna-token"))[0] == 403
