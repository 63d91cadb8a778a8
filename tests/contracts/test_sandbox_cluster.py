"""The demo's cluster keeps the contract of the Kubernetes API, through its own client."""

import json
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.kube.api.client import ApiClient
from controller.kube.api.resources import ApiError
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from sandbox.kube.cluster import InsecureCluster
from sandbox.kube.exchange import HttpExchange
from sandbox.kube.json_patch import PatchError, applied
from sandbox.kube.objects import ApiObjects, RefusedError
from tests.contracts.kubernetes_api import KubernetesApiContract

POD: dict[str, Any] = {"metadata": {"name": "train-0"}, "spec": {"containers": []}}
PODS = "/api/v1/namespaces/team-a/pods"
Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InsecureCluster]:
    made = InsecureCluster(tmp_path / "kube")
    await made.start({"gpu-1": "uid-1"})
    yield made
    await made.close()


@pytest.fixture
async def exchange(cluster: InsecureCluster) -> AsyncIterator[HttpExchange]:
    made = HttpExchange(cluster.kubeconfig)
    yield made
    await made.close()


class TestContract(KubernetesApiContract):
    @pytest.fixture
    def api(self, exchange: HttpExchange) -> ApiClient:
        return ApiClient(exchange, Instruments(Process.CONTROLLER, "test"), page_objects=2)


@asynccontextmanager
async def webhooks(cluster: InsecureCluster, folder: Path, answer: Answer) -> AsyncIterator[None]:
    """Webhooks with the controller's certificate, which want the API server's."""

    async def handle(request: web.Request) -> web.Response:
        review = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        found = answer(request.path, review["request"])
        return web.json_response({"response": response | found})

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "webhook.crt", folder / "webhook.key")
    context.verify_mode = ssl.CERT_REQUIRED
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    cluster.use_webhooks(f"127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield
    finally:
        await runner.cleanup()


def labelled(path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Mutating webhooks that write what they were asked as."""
    if path.startswith("/validate"):
        return {}
    label = {
        "op": "add",
        "path": "/metadata/labels",
        "value": {"by": asked["userInfo"]["username"]},
    }
    return {"patch": b64encode(json.dumps([label]).encode()).decode()}


async def test_a_pod_is_validated_as_it_is_stored_and_a_binding_binds_it_once(
    cluster: InsecureCluster, exchange: HttpExchange, tmp_path: Path
) -> None:
    validated = []

    def answer(path: str, asked: dict[str, Any]) -> dict[str, Any]:
        if path == "/validate/pods":
            validated.append(asked["object"]["metadata"])
        return labelled(path, asked)

    async with webhooks(cluster, tmp_path / "kube", answer):
        stored = await exchange.call("POST", PODS, POD)
        assert validated == [
            {k: stored["metadata"][k] for k in ("name", "labels", "namespace", "uid")}
        ]
        binding = {
            "metadata": {"name": "train-0", "annotations": {"a": "b"}},
            "target": {"kind": "Node", "name": "gpu-1"},
        }
        late = binding | {"metadata": {"name": "train-0", "resourceVersion": "old"}}
        with pytest.raises(ApiError, match="409 Conflict: Precondition failed: resourceVersion"):
            await exchange.call("POST", f"{PODS}/train-0/binding", late)
        await exchange.call("POST", f"{PODS}/train-0/binding", binding)
        bound = await exchange.call("GET", f"{PODS}/train-0")
        assert bound["spec"]["nodeName"] == "gpu-1"
        assert bound["metadata"]["annotations"] == {"a": "b"}
        assert bound["metadata"]["labels"]["by"].endswith("gpuwarden-scheduler")
        assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
        with pytest.raises(ApiError, match="409 Conflict: pod train-0 is already assigned"):
            await exchange.call("POST", f"{PODS}/train-0/binding", binding)


async def test_nothing_is_stored_where_a_webhook_refuses_or_does_not_answer(
    cluster: InsecureCluster, exchange: HttpExchange, tmp_path: Path
) -> None:
    def refused(path: str, _: dict[str, Any]) -> dict[str, Any]:
        no = {"allowed": False, "status": {"code": 403, "message": "REQ_INVALID no"}}
        return no if path == "/validate/pods" else {}

    async with webhooks(cluster, tmp_path / "kube", refused):
        with pytest.raises(ApiError, match=r"403 Forbidden: .* REQ_INVALID no"):
            await exchange.call("POST", PODS, POD)
    with pytest.raises(ApiError, match="500 InternalError: failed calling webhook /mutate/pods"):
        await exchange.call("POST", PODS, POD)
    assert cluster.api.objects.all("pods") == {}


async def test_another_token_may_nothing(cluster: InsecureCluster, exchange: HttpExchange) -> None:
    cluster.api.tokens = {"another"}
    with pytest.raises(ApiError, match="401 Unauthorized"):
        await exchange.call("GET", PODS)


def test_old_changes_are_forgotten_and_the_objects_stay() -> None:
    objects = ApiObjects(kept=10)
    first = objects.create("nodes", "a", {"metadata": {"name": "a"}})["metadata"]
    versions = [
        objects.create("nodes", f"b-{x}", {"metadata": {"name": f"b-{x}"}})["metadata"]
        for x in range(10)
    ]
    assert len(objects.history) == 6
    assert len(objects.all("nodes")) == 11
    with pytest.raises(RefusedError, match="too old resource version"):
        objects.number_of(first["resourceVersion"])
    since = objects.number_of(versions[3]["resourceVersion"])
    assert [x.key for x in objects.after("nodes", since)] == [f"b-{x}" for x in range(4, 10)]


def test_a_json_patch_that_tests_in_vain_changes_nothing() -> None:
    test = {"op": "test", "path": "/a", "value": 1}
    assert applied({"a": 1}, [test, {"op": "remove", "path": "/a"}]) == {}
    with pytest.raises(PatchError, match="the test failed"):
        applied({"a": 2}, [test])
