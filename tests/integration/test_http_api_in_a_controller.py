"""The HTTP API of a whole controller: tokens by the API server, SVIDs, and a pod's own word."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from controller.web.api.viewers import COOKIE
from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import AUDIENCE
from tests.fakes.cluster import GPUS, FakeCluster, LiveCluster
from tests.fakes.eventually import eventually
from tests.fakes.running_controller import TD

SECRET = "eyJhbGciOi.of-the-pod.signature"  # noqa: S105 -- of a fake


class Calling:
    """The API's callers."""

    def __init__(self, address: str, ca: WebCa, cluster: FakeCluster) -> None:
        self._address = address
        self._ca = ca
        self._folder = cluster.folder
        self._spiffe = cluster.workload_api

    async def ask(
        self, method: str, path: str, token: str = "", *, svid: str = "", body: Any = None
    ) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=str(self._ca.file))
        if svid:
            issued = self._spiffe.ca.issue(f"spiffe://{TD}/gpuwarden/{svid}")
            file = self._folder / "caller.pem"
            file.write_bytes(issued.key_pem + issued.chain_pem)
            context.load_cert_chain(file)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(ssl=context)
        url = f"https://{self._address}{path}"
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.request(method, url, json=body) as answer,
        ):
            return answer.status, await answer.json()

    async def send(self, path: str, token: str, **form: str) -> int:
        """A form of the console's own page; the status of what comes."""
        url = f"https://{self._address}{path}"
        async with (
            self._browser(token) as session,
            session.post(url, data=form, allow_redirects=False) as answer,
        ):
            return answer.status

    async def page(self, path: str, token: str) -> str:
        """A page of the console."""
        url = f"https://{self._address}{path}"
        async with self._browser(token) as session, session.get(url) as answer:
            assert answer.status == 200
            return await answer.text()

    def _browser(self, token: str) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=str(self._ca.file))
        headers = {"Cookie": f"{COOKIE}={token}", "Sec-Fetch-Site": "same-origin"}
        connector = aiohttp.TCPConnector(ssl=context)
        return aiohttp.ClientSession(connector=connector, headers=headers)


def settings_of(ca: WebCa) -> dict[str, str]:
    certificate, key = ca.issue("api-listener", server=True)
    return {
        "listen__api": "127.0.0.1:0",
        "api__tls__cert": str(certificate),
        "api__tls__key": str(key),
        "api__audience": "gpus.example.org",
        "api__readers": "monitoring/shop",
    }


@asynccontextmanager
async def calling(cluster: FakeCluster) -> AsyncIterator[tuple[LiveCluster, Calling]]:
    ca = WebCa(cluster.folder, "api-listener-ca")
    async with cluster.live(**settings_of(ca)) as here:
        yield here, Calling(here.controller.addresses.api, ca, cluster)


def pod_user(name: str, uid: str) -> dict[str, Any]:
    prefix = "authentication.kubernetes.io"
    return {
        "username": "system:serviceaccount:team-a:default",
        "extra": {f"{prefix}/pod-name": [name], f"{prefix}/pod-uid": [uid]},
    }


async def test_a_pod_confirms_its_own_reservation_and_readers_see_it(cluster: FakeCluster) -> None:
    async with calling(cluster) as (here, there):
        uid = here.create("train-0")["metadata"]["uid"]
        given = await here.bound("train-0")
        assert given in GPUS
        annotations = cluster.api.objects.get("pods", "team-a/train-0")["metadata"]["annotations"]
        body = {
            "namespace": "team-a",
            "name": "train-0",
            "uid": uid,
            "reservation-id": annotations["gpuwarden.dev/reservation-id"],
            "gpu-uuid": given,
        }
        user = pod_user("train-0", uid)
        cluster.api.reviewed[SECRET] = {
            "user": user,
            "audiences": ["https://kubernetes.default.svc"],
        }
        status, answer = await there.ask("POST", "/finalize", SECRET, body=body)
        assert (status, answer["code"]) == (401, "TOKEN_INVALID")
        mine = f"{SECRET}2"
        cluster.api.reviewed[mine] = {"user": user, "audiences": ["gpus.example.org"]}
        assert await there.ask("POST", "/finalize", mine, body=body) == (200, {"status": "ok"})
        assert await there.ask("POST", "/finalize", mine, body=body) == (200, {"status": "ok"})
        await here.state_of(given, "Confirmed")
        other = {**body, "gpu-uuid": next(x for x in GPUS if x != given)}
        status, answer = await there.ask("POST", "/finalize", svid="operator/jane", body=other)
        assert (status, answer["code"]) == (409, "RESERVATION_CONFLICT")
        status, devices = await there.ask("GET", "/devices", svid="inspector/shop")
        assert (status, set(devices)) == (200, set(GPUS))
        assert devices[given]["assignment"]["uid"] == uid
        assert devices[given]["status"] == "assigned"
        _, nodes = await there.ask("GET", "/nodes", svid="inspector/shop")
        assert nodes["node-1"]["state"] == "eligible"
        controller = here.controller
        made = 'gpuwarden_api_requests_total{operation="finalize",status="200"}'
        assert await controller.metric(made) == 2
        reviews = 'gpuwarden_token_reviews_total{result="kept"}'
        assert await controller.metric(reviews) == 1

        async def written() -> list[dict[str, Any]] | None:
            found = [x for x in controller.records() if x["kind"] == "api.finalize"]
            return found if len(found) == 3 else None

        records = await eventually(written, "the calls are in the audit log")
        assert [x["decision"] for x in records] == ["confirmed", "confirmed", "refused"]
        assert records[0]["actor"] == user["username"]
        assert records[2]["actor"] == f"spiffe://{TD}/gpuwarden/operator/jane"
        assert SECRET not in json.dumps(controller.records())


async def test_people_read_and_act_as_the_api_server_lets_them(cluster: FakeCluster) -> None:
    ca = WebCa(cluster.folder, "api-listener-ca")
    for name in ("anna", "jane"):
        user = {"username": name, "groups": ["system:authenticated"]}
        cluster.api.reviewed[name] = {"user": user, "audiences": [AUDIENCE]}
    cluster.api.may |= {
        ("anna", "get", "pods", "team-a"),
        ("jane", "inspect", "fleet", ""),
        ("jane", "operate", "fleet", ""),
    }
    async with cluster.live(**settings_of(ca), console__enabled="true") as here:
        there = Calling(here.controller.addresses.api, ca, cluster)
        here.create("train-0")
        given = await here.bound("train-0")
        status, pods = await there.ask("GET", "/v1/pods?namespace=team-a", "anna")
        assert (status, [(x["name"], x["state"]) for x in pods["items"]]) == (
            200,
            [("train-0", "bound")],
        )
        assert list(pods["items"][0]["gpus"]) == [given]
        assert (await there.ask("GET", "/v1/pods?namespace=team-b", "anna"))[0] == 403
        assert (await there.ask("GET", "/v1/nodes", "anna"))[0] == 403
        status, trace = await there.ask("GET", "/v1/pods/team-a/train-0", "jane")
        stages = {x["name"]: x["state"] for x in trace["stages"]}
        assert {stages[x] for x in ("required", "reserved", "bound")} == {"reached"}
        status, gpu = await there.ask("GET", f"/v1/gpus/{given}", "jane")
        assert [(x["namespace"], x["pod"]) for x in gpu["history"]["holdings"]] == [
            ("team-a", "train-0")
        ]
        assert [x["node"] for x in gpu["history"]["places"]] == ["node-1"]
        assert (await there.ask("GET", "/v1/audit/checkpoint", "jane"))[0] == 200
        act = "/ui/nodes/node-1/quarantine"
        assert await there.send(act, "anna", reason="no right") == 403
        assert await there.send(act, "jane", reason="looks wrong") == 303
        status, node = await there.ask("GET", "/v1/nodes/node-1", "jane")
        assert node["node"]["state"] != "eligible"
        assert node["enrollment"]["quarantined-by"] == "user jane"
        assert node["enrollment"]["previous-quarantine-ended-by"] == ""
        asked = {"version": node["enrollment"]["version"]}
        assert (
            await there.send("/ui/nodes/node-1/release", "jane", reason="it is not", **asked) == 303
        )
        status, node = await there.ask("GET", "/v1/nodes/node-1", "jane")
        assert node["enrollment"]["quarantined-by"] == ""
        assert node["enrollment"]["previous-quarantine-ended-by"] == "user jane"
        assert node["enrollment"]["previous-quarantine-at"]
        assert "ended by user jane." in await there.page("/ui/nodes/node-1", "jane")
        records = [x for x in here.controller.records() if x["kind"] == "node.operator"]
        assert [(x["actor"], x["refs"]["reason"]) for x in records] == [
            ("user jane", "looks wrong"),
            ("user jane", "it is not"),
        ]


async def test_an_api_server_that_forgets_whose_tokens_these_are(cluster: FakeCluster) -> None:
    ca = WebCa(cluster.folder, "api-listener-ca")
    async with cluster.controller(**settings_of(ca)) as here:
        there = Calling(here.addresses.api, ca, cluster)
        reader = {"username": "system:serviceaccount:monitoring:shop"}
        cluster.api.reviewed["r"] = {"user": reader, "audiences": ["gpus.example.org"]}
        cluster.api.fail_next(403, matching="create /apis/authentication.k8s.io")
        status, answer = await there.ask("GET", "/nodes", "r")
        assert (status, answer["code"]) == (503, "TOKEN_REVIEW_UNAVAILABLE")
        assert answer["error"].endswith("the API server answered 403")
        assert (await there.ask("GET", "/nodes", "r"))[0] == 200
        body = {"namespace": "a", "name": "b", "uid": "c", "reservation-id": "d"}
        body["gpu-uuid"] = "GPU-a"
        status, answer = await there.ask("POST", "/finalize", svid="operator/jane", body=body)
        assert (status, answer["code"]) == (503, "LEDGER_UNAVAILABLE")


async def test_without_certificates_there_is_no_api(cluster: FakeCluster) -> None:
    async with cluster.controller() as here:
        assert here.addresses.api == ""
