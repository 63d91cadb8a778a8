"""The webhooks of a whole controller: open where they are configured, told where people look."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.admitted_pods import new_pod
from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually
from tests.integration.test_controller_app import _restored_logging
from tests.integration.test_controller_in_a_cluster import TD, World, world

__all__ = ["_restored_logging"]
"""A fixture that is used by every test of the module where it stands."""


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as api:
        yield api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer(tmp_path)
    await made.start()
    made.create("nodes", {"metadata": {"name": "node-1"}})
    for name, labels in (("plain", {}), ("strict", {"gpuwarden.dev/enforce": "true"})):
        made.create("namespaces", {"metadata": {"name": name, "labels": labels}})
    yield made
    await made.stop()


class Asking:
    """An API server with a certificate for one controller."""

    def __init__(self, here: World, context: ssl.SSLContext) -> None:
        self.here = here
        self._context = context

    async def ask(self, path: str, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
        return await self.post(path, review_json(pod, namespace=namespace))

    async def post(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        url = f"https://{self.here.controller.addresses.admission}{path}"
        connector = aiohttp.TCPConnector(ssl=self._context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, json=review) as answer,
        ):
            assert answer.status == 200
            found: dict[str, Any] = await answer.json()
            return found

    async def knows_namespaces(self) -> None:
        """A namespace that is not known yet counts as enforced."""

        async def known() -> bool | None:
            answer = await self.ask("/mutate/pods", new_pod(), "plain")
            return not patch_of(answer) or None

        await eventually(known, "the namespaces are known")


@asynccontextmanager
async def asking(
    folder: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi, **changes: Any
) -> AsyncIterator[Asking]:
    ca = WebCa(folder, "webhooks")
    certificate, key = ca.issue("webhook", server=True)
    values = {
        "listen__admission": "127.0.0.1:0",
        "admission__tls__cert": str(certificate),
        "admission__tls__key": str(key),
        "admission__tls__clientCa": str(ca.file),
        **changes,
    }
    context = ssl.create_default_context(cafile=str(ca.file))
    context.load_cert_chain(*ca.issue("api-server"))
    async with world(folder, api, workload_api, **values) as here:
        yield Asking(here, context)


async def test_enforced_namespaces_come_from_the_api_and_decisions_go_into_the_log(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with asking(tmp_path, api, workload_api, schedulerName="mine") as there:
        await there.knows_namespaces()
        pod = new_pod(annotations={"gpuwarden.dev/min-level": "L0"})
        patch = patch_of(await there.ask("/mutate/pods", pod, "plain"))
        assert patch == [{"op": "add", "path": "/spec/schedulerName", "value": "mine"}]
        assert len(patch_of(await there.ask("/mutate/pods", pod, "strict"))) == 3
        refused = await there.ask("/validate/pods", new_pod(hostPID=True), "strict")
        assert refused["response"]["allowed"] is False
        controller = there.here.controller
        labels = 'code="BYPASS_HOST_PID",decision="refused"'
        assert await controller.metric(f"gpuwarden_admission_refusals_total{{{labels}}}") == 1
        labels = 'path="/validate/pods",result="refused"'
        assert await controller.metric(f"gpuwarden_admission_requests_total{{{labels}}}") == 1

        async def written() -> list[dict[str, Any]] | None:
            found = [x for x in controller.records() if x["kind"] == "admission.decision"]
            return found or None

        (record,) = await eventually(written, "the decision is in the audit log")
        assert (record["subject"], record["decision"]) == ("pod/strict/train-7d9f-*", "refused")
        assert record["codes"] == ["BYPASS_HOST_PID", "BYPASS_UNINJECTED"]
        assert record["actor"] == "jane"


async def test_report_only_lets_everything_in_and_says_it_in_events(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with asking(tmp_path, api, workload_api, enforcement="report") as there:
        pod = new_pod(hostPID=True)
        pod["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "r",
                "uid": "u",
                "controller": True,
            }
        ]
        answer = await there.ask("/validate/pods", pod, "strict")
        assert answer["response"]["allowed"] is True
        (event,) = await there.here.events("PodWouldBeDenied")
        assert event["note"] == "gpuwarden: BYPASS_HOST_PID would be denied: hostPID is set"
        assert event["regarding"] == {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "r",
            "namespace": "strict",
            "uid": "u",
        }


async def test_without_certificates_there_are_no_webhooks(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, api, workload_api) as here:
        assert here.controller.addresses.admission == ""
