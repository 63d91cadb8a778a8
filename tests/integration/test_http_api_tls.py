"""The HTTP API over TLS, as pods, readers, operators and worse callers meet it."""

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.access import FoundPod, Rate
from controller.fleet.view import FleetSnapshot, NodeView
from controller.ledger.record import PodGone
from controller.web.api.operations import OPERATIONS, Operation
from controller.web.server import INSECURE_HEADER
from sandbox.spiffe.ca import InsecureCa
from tests.fakes.eventually import eventually
from tests.fakes.http_api import BODY, GPUS, ApiWorld, api_world
from tests.hang import HANG_S

FILE = Path(__file__).resolve().parents[2] / "docs/reference/openapi.json"
DOCUMENT = json.loads(FILE.read_text())
OPERATOR, INSPECTOR = "/gpuwarden/operator/jane", "/gpuwarden/inspector/shop"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with api_world(tmp_path) as made:
        await made.reserve()
        yield made
        assert_documented(made)


def assert_documented(world: ApiWorld) -> None:
    """Whatever was answered is in the document."""
    for operation, status in world.answers:
        described = OPERATIONS[Operation(operation)]
        responses = DOCUMENT["paths"][described.path][described.method.lower()]["responses"]
        assert str(status) in responses, (operation, status)


async def finalized(
    world: ApiWorld,
    token: str | None = "pod",  # noqa: S107 -- a name that the fake knows
    *,
    svid: str | None = None,
    **changes: Any,
) -> tuple[int, Any]:
    body = {key: text for key, text in {**BODY, **changes}.items() if text is not None}
    return await world.ask("POST", "/finalize", token, svid=svid, json=body)


@pytest.mark.parametrize("insecure", [(), ("evaluation",)], ids=["real", "evaluation"])
async def test_every_answer_of_an_evaluation_says_so(
    tmp_path: Path, insecure: tuple[str, ...]
) -> None:
    async with api_world(tmp_path, insecure=insecure) as world, world.session() as client:
        for path, status in (("/nodes", 401), ("/openapi.json", 200), ("/none", 404)):
            async with client.get(path) as answer:
                assert answer.status == status
                assert answer.headers.getall(INSECURE_HEADER, []) == list(insecure)


async def test_a_pod_confirms_its_gpus_and_may_say_so_twice(world: ApiWorld) -> None:
    for _ in range(2):
        assert await finalized(world) == (200, {"status": "ok"})
    assert await finalized(world, **{"gpu-uuid": GPUS[1]}) == (200, {"status": "ok"})
    assert world.states() == ["Confirmed", "Confirmed"]
    assert [x.gpus for x in world.changes] == [(GPUS[0],), (GPUS[1],)]
    assert world.calls == [("system:serviceaccount:team-a:default", None)] * 3
    assert world.answers == [("finalize", 200)] * 3


async def test_an_operator_confirms_for_a_pod(world: ApiWorld) -> None:
    assert await finalized(world, None, svid=OPERATOR) == (200, {"status": "ok"})
    assert world.calls == [(f"spiffe://example.org{OPERATOR}", None)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"name": None, "uid": " ", "reservation-id": 7, "gpu-uuid": ""},
            "missing required fields: name, uid, reservation-id, gpu-uuid",
        ),
        ({"gpu-uuid": "0"}, "gpu-uuid: 0, expected"),
    ],
)
async def test_what_is_missing_or_wrong_is_named(
    world: ApiWorld, changes: dict[str, Any], error: str
) -> None:
    status, answer = await finalized(world, **changes)
    assert status == 400
    assert set(answer) == {"error"}
    assert answer["error"].startswith(error)
    assert world.states() == ["Proposed", "Proposed"]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"reservation-id": "v1.k1.no", "gpu-uuid": "GPU-x"}, 404, "RESERVATION_UNKNOWN"),
        ({"reservation-id": "v1.k1.no"}, 409, "RESERVATION_CONFLICT"),
        ({"gpu-uuid": "GPU-gpu-1-3"}, 409, "RESERVATION_CONFLICT"),
    ],
)
async def test_what_does_not_fit_has_a_code(
    world: ApiWorld, changes: dict[str, str], status: int, code: str
) -> None:
    found, answer = await finalized(world, **changes)
    assert (found, answer["code"]) == (status, code)
    assert answer["error"].startswith(f"{code}: ")
    assert world.calls[0][1] == code


async def test_a_pod_that_is_gone_or_a_ledger_that_is_down(world: ApiWorld) -> None:
    world.store.is_dead = True
    status, answer = await finalized(world)
    assert (status, answer["code"]) == (503, "LEDGER_UNAVAILABLE")
    world.store.is_dead = False
    world.pod = FoundPod(PodGone(), None)
    status, answer = await finalized(world)
    assert (status, answer["code"]) == (409, "RESERVATION_EXPIRED")
    assert world.states() == ["Proposed", "Proposed"]


@pytest.mark.parametrize(
    ("token", "svid", "status", "code"),
    [
        (None, None, 401, "TOKEN_INVALID"),
        ("invented", None, 401, "TOKEN_INVALID"),
        ("other-pod", None, 403, "ROLE_DENIED"),
        ("reader", None, 403, "ROLE_DENIED"),
        ("reader-pod", None, 403, "ROLE_DENIED"),
        (None, INSPECTOR, 403, "ROLE_DENIED"),
        (None, "/gpuwarden/agent/gpu-1", 403, "ROLE_DENIED"),
        (None, "/somebody", 401, "PEER_ROLE_UNKNOWN"),
    ],
)
async def test_nobody_else_confirms(
    world: ApiWorld, token: str | None, svid: str | None, status: int, code: str
) -> None:
    found, answer = await finalized(world, token, svid=svid)
    assert (found, answer["code"]) == (status, code)
    assert world.states() == ["Proposed", "Proposed"]


@pytest.mark.parametrize("path", ["/devices", "/nodes", "/reservations"])
@pytest.mark.parametrize(
    ("token", "svid", "status"),
    [
        (None, None, 401),
        ("invented", None, 401),
        ("pod", None, 403),
        ("reader", None, 200),
        ("reader-pod", None, 200),
        (None, INSPECTOR, 200),
        (None, OPERATOR, 200),
        (None, "/gpuwarden/agent/gpu-1", 403),
    ],
)
async def test_who_reads(
    world: ApiWorld, path: str, token: str | None, svid: str | None, status: int
) -> None:
    assert (await world.ask("GET", path, token, svid=svid))[0] == status


async def test_what_is_read(world: ApiWorld) -> None:
    status, devices = await world.ask("GET", "/devices", "reader")
    assert status == 200
    assert list(devices) == [*(f"GPU-gpu-1-{x}" for x in range(4)), "GPU-gpu-2-0"]
    assert devices[GPUS[0]]["node"] == "gpu-1"
    assert devices[GPUS[0]]["assignment"]["reservation-id"] == BODY["reservation-id"]
    assert devices["GPU-gpu-2-0"]["assignment"] is None
    _, nodes = await world.ask("GET", "/nodes", "reader")
    assert {name: x["state"] for name, x in nodes.items()} == {
        "gpu-1": "eligible",
        "gpu-2": "eligible",
    }
    _, found = await world.ask("GET", "/reservations", "reader")
    assert found[BODY["reservation-id"]]["gpus"] == dict.fromkeys(GPUS, "Proposed")


@pytest.mark.parametrize(
    ("token", "svid", "are_shown"),
    [
        ("reader", None, False),
        ("reader-pod", None, False),
        ("reader", OPERATOR, False),
        (None, INSPECTOR, True),
        (None, OPERATOR, True),
    ],
)
async def test_who_reads_serials(
    world: ApiWorld, token: str | None, svid: str | None, *, are_shown: bool
) -> None:
    _, devices = await world.ask("GET", "/devices", token, svid=svid)
    _, nodes = await world.ask("GET", "/nodes", token, svid=svid)
    assert [("serial" in x) for x in devices.values()] == [are_shown] * 5
    assert [("serials" in x) for x in nodes.values()] == [are_shown] * 2
    if are_shown:
        assert {devices[x]["serial"] for x in GPUS} <= set(nodes["gpu-1"]["serials"].values())


async def test_pages_are_linked(world: ApiWorld) -> None:
    seen: list[str] = []
    async with world.session("reader") as client:
        path: str | None = "/nodes?limit=1"
        while path is not None:
            async with client.get(path) as answer:
                assert answer.status == 200
                seen += await answer.json()
                found = answer.headers.get("Link")
                path = None if found is None else found.partition("<")[2].partition(">")[0]
    assert seen == ["gpu-1", "gpu-2"]
    status, answer = await world.ask("GET", "/nodes?limit=x", "reader")
    assert (status, answer) == (400, {"error": "limit: x, expected 1 to 500"})


async def test_an_old_ledger_is_not_shown_and_nodes_are(world: ApiWorld) -> None:
    world.is_ledger_fresh = False
    for path in ("/devices", "/reservations"):
        status, answer = await world.ask("GET", path, "reader")
        assert (status, answer["code"]) == (503, "LEDGER_UNAVAILABLE")
    assert (await world.ask("GET", "/nodes", "reader"))[0] == 200


async def test_whoever_waits_for_a_page_gets_one_of_when_it_is_made(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class HeldUp(dict[str, NodeView]):
        """Nodes that are not read before somebody says so."""

        def __iter__(self) -> Iterator[str]:
            begun.set()
            go_on.wait(HANG_S)
            return super().__iter__()

    async with api_world(tmp_path, pages_at_once=1) as world:
        world.fleet = replace(world.fleet, nodes=HeldUp(world.fleet.nodes))
        first = asyncio.create_task(world.ask("GET", "/devices", "reader"))
        await asyncio.to_thread(begun.wait, 20)
        second = asyncio.create_task(world.ask("GET", "/devices", "reader"))

        async def is_counted() -> bool | None:
            return world.counted == 2 or None

        await eventually(is_counted, "the second waits for its page")
        world.is_ledger_fresh = False
        go_on.set()
        assert [(await x)[0] for x in (first, second)] == [200, 503]


async def test_an_api_server_that_is_away_is_no_refusal(world: ApiWorld) -> None:
    world.reviewer.down = True
    status, answer = await world.ask("GET", "/nodes", "reader")
    assert (status, answer["code"]) == (503, "TOKEN_REVIEW_UNAVAILABLE")
    assert (await world.ask("GET", "/nodes", svid=INSPECTOR))[0] == 200


@pytest.mark.parametrize("value", ["pod", "Basic cG9kOg==", "Bearer", "Bearer ", "Bearer \u00e9"])
async def test_other_ways_to_authenticate_are_none(world: ApiWorld, value: str) -> None:
    status, answer = await world.ask("GET", "/nodes", headers={"Authorization": value})
    assert (status, answer["code"]) == (401, "TOKEN_INVALID")
    assert world.reviewer.asked == []


async def test_a_token_wins_over_a_certificate(world: ApiWorld) -> None:
    assert (await world.ask("GET", "/nodes", "pod", svid=OPERATOR))[0] == 403


async def test_a_certificate_of_another_authority_ends_in_the_handshake(world: ApiWorld) -> None:
    for ca in (InsecureCa("example.org"), InsecureCa("other.org")):
        with pytest.raises(aiohttp.ClientError):
            await world.ask("GET", "/nodes", svid=OPERATOR, ca=ca)
    assert world.answers == []


async def test_intermediates_are_followed_and_roots_are_those_of_now(world: ApiWorld) -> None:
    below = InsecureCa("example.org", issuer=world.authority)
    assert (await world.ask("GET", "/nodes", svid=OPERATOR, ca=below))[0] == 200
    other = InsecureCa("example.org")
    async with world.session(svid=OPERATOR) as client:
        async with client.get("/nodes") as answer:
            assert answer.status == 200
        world.roots = (other.certificate,)
        async with client.get("/nodes") as answer:
            assert answer.status == 401
            assert (await answer.json())["code"] == "CHAIN_INVALID"
    assert (await world.ask("GET", "/nodes", svid=OPERATOR, ca=other))[0] == 200
    with pytest.raises(aiohttp.ClientError):
        await world.ask("GET", "/nodes", svid=OPERATOR)
    world.roots = ()
    assert (await world.ask("GET", "/nodes", "reader"))[0] == 200


async def test_a_connection_outlives_no_certificate(world: ApiWorld) -> None:
    async with world.session(svid=OPERATOR) as client:
        async with client.get("/nodes") as answer:
            assert answer.status == 200
        world.late = timedelta(hours=2)
        async with client.get("/nodes") as answer:
            assert answer.status == 401
            assert (await answer.json())["code"] == "SVID_EXPIRED"


async def test_a_pod_that_floods_is_slowed_and_others_are_not(tmp_path: Path) -> None:
    async with api_world(tmp_path, pods=Rate(1.0, 2)) as world:
        found = [(await finalized(world, **{"gpu-uuid": "GPU-x"}))[0] for _ in range(3)]
        assert found[2] == 429
        assert len(world.calls) == 2
        assert (await finalized(world, "other-pod"))[0] == 403
        world.clock.advance(1)
        assert (await finalized(world))[0] != 429


async def asked(world: ApiWorld, method: str, path: str, token: str) -> tuple[int, str | None]:
    """Status, and when to come again."""
    async with (
        world.session(token) as client,
        client.request(method, path, json=BODY if method == "POST" else None) as answer,
    ):
        return answer.status, answer.headers.get("Retry-After")


async def test_a_pod_that_reads_reads_as_often_as_other_readers(tmp_path: Path) -> None:
    async with api_world(tmp_path, pods=Rate(1 / 15, 1), others=Rate(0.4, 3)) as world:
        read = [await asked(world, "GET", "/nodes", "reader-pod") for _ in range(4)]
        assert read == [*[(200, None)] * 3, (429, "3")]
        world.clock.advance(2.5)
        assert await asked(world, "GET", "/nodes", "reader-pod") == (200, None)
        said = [await asked(world, "POST", "/finalize", "reader-pod") for _ in range(2)]
        assert said == [(403, None), (429, "15")], "its own word has a measure of its own"


async def test_a_pod_that_may_not_read_gets_no_more_for_being_refused(tmp_path: Path) -> None:
    async with api_world(tmp_path, pods=Rate(1 / 15, 2), others=Rate(1.0, 50)) as world:
        await world.reserve()
        for _ in range(2):
            assert await asked(world, "GET", "/nodes", "pod") == (403, None)
        assert await asked(world, "POST", "/finalize", "pod") == (429, "15")
        world.clock.advance(6)
        assert await asked(world, "POST", "/finalize", "pod") == (429, "9")
        world.clock.advance(9)
        assert await asked(world, "POST", "/finalize", "pod") == (200, None)


async def test_nothing_of_a_body_is_read_before_the_caller_may_call(world: ApiWorld) -> None:
    status, _ = await world.ask("POST", "/finalize", "invented", data=b"x" * (1 << 20))
    assert status == 401
    status, answer = await world.ask("POST", "/finalize", "pod", data=b"x" * (1 << 20))
    assert (status, set(answer)) == (413, {"error"})


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with api_world(tmp_path, receive_s=0.05) as world:
        status, answer = await world.ask("POST", "/finalize", "pod", data=slowly())
        text = "request body did not arrive within 0.05 s"
        assert (status, answer) == (408, {"error": text})
        assert_documented(world)


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_a_caller_that_goes_in_the_middle_is_no_fault_of_ours(
    world: ApiWorld, framing: str
) -> None:
    context = ssl.create_default_context(cafile=str(world.web.file))
    _, there = await asyncio.open_connection("localhost", world.port, ssl=context)
    head = ("POST /finalize HTTP/1.1", "Host: localhost", "Authorization: Bearer pod", framing)
    there.write("\r\n".join((*head, "", "5\r\n{")).encode())
    await world.reviewer.was_asked.wait()
    there.transport.abort()

    async def answered() -> list[tuple[str, int]] | None:
        return world.answers or None

    assert await eventually(answered, "it is over") == [("finalize", 400)]
    assert world.failures == []


async def test_bodies_that_are_too_many_at_once_may_come_again(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def held_up() -> AsyncIterator[bytes]:
        yield b"x" * 90
        await go_on.wait()

    async with api_world(tmp_path, body_bytes=100) as world:
        asking = [
            asyncio.create_task(world.ask("POST", "/finalize", "pod", data=held_up()))
            for _ in range(3)
        ]
        done, rest = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        go_on.set()
        assert [x.result() for x in done] == [(503, {"error": "too many large requests at once"})]
        assert [x[0] for x in await asyncio.gather(*rest)] == [400, 400]
        assert_documented(world)


async def test_a_failure_tells_nothing(world: ApiWorld) -> None:
    world.fleet = FleetSnapshot({"gpu-1": None}, {}, 1)  # type: ignore[dict-item] # a fault of ours
    status, answer = await world.ask("GET", "/nodes", "reader")
    assert (status, answer) == (500, {"error": "a fault of the controller; see its log"})
    assert len(world.failures) == 1


@pytest.mark.parametrize("probe", ["/healthz", "/health"])
async def test_the_document_and_the_probe_are_for_anybody(world: ApiWorld, probe: str) -> None:
    status, found = await world.ask("GET", "/openapi.json")
    assert status == 200
    assert found == DOCUMENT
    async with world.session() as client, client.get(probe) as answer:
        assert (answer.status, await answer.text()) == (200, "ok")


async def test_other_paths_and_methods(world: ApiWorld) -> None:
    assert (await world.ask("GET", "/none"))[0] == 404
    assert (await world.ask("GET", "/finalize", "pod"))[0] == 405
    assert (await world.ask("DELETE", "/devices", svid=OPERATOR))[0] == 405
    assert world.answers == []


async def test_what_takes_too_long_is_undecided(tmp_path: Path) -> None:
    async with api_world(tmp_path, answer_s=0.05, receive_s=0.1) as world:
        world.reviewer.binding_webhook = asyncio.Event()
        assert await world.ask("GET", "/nodes", "reader") == (503, {"error": "no answer in time"})
        world.reviewer.binding_webhook.set()

        async def answered() -> bool | None:
            """In 0.05 s, which a busy machine may miss."""
            return (await world.ask("GET", "/nodes", "reader"))[0] == 200 or None

        await eventually(answered, "an answer in time")


async def test_without_an_api_server_no_token_counts(tmp_path: Path) -> None:
    async with api_world(tmp_path, has_reviews=False) as world:
        status, answer = await world.ask("GET", "/nodes", "reader")
        assert (status, answer["error"]) == (401, "TOKEN_INVALID: no token counts here")
        assert (await world.ask("GET", "/nodes", svid=INSPECTOR))[0] == 200


async def test_no_answer_is_kept_on_the_way(world: ApiWorld) -> None:
    async with world.session("reader") as client:
        for path in ("/nodes", "/devices?limit=0", "/nowhere"):
            async with client.get(path) as answer:
                assert answer.headers["Cache-Control"] == "no-store"


async def test_many_at_once(world: ApiWorld) -> None:
    found = await asyncio.gather(*(finalized(world) for _ in range(20)))
    assert {x[0] for x in found} == {200}
    assert len(world.changes) == 1
    assert len(world.reviewer.asked) == 1


def test_every_operation_but_the_document_wants_to_know_who_calls() -> None:
    open_ones = {x for x, each in OPERATIONS.items() if each.access.value == "anybody"}
    assert open_ones == {Operation.OPENAPI}
