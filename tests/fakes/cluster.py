"""A controller in a cluster: a fake API server, a whole controller, its webhooks, and a node.

Three stages, each with what the one before has: `FakeCluster.controller`, `.webhooks`, `.live`.
Settings are keywords, `__` for the dot.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from controller.kube.api.resources import CALLS, CERTIFICATE_CALLS, EXPORT_CALLS, HINT_CALLS, Call
from controller.kube.api.transport import Transport
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.model import Allocation, GpuProcess
from sandbox.kube.json_patch import applied
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.admitted_pods import new_pod
from tests.builders.bindings import binding, binding_review, env_pod
from tests.builders.inventory import gpu, inventory
from tests.builders.kube_access import in_cluster
from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import FakeApiServer, place_of
from tests.fakes.attest_client import AttestClient
from tests.fakes.eventually import eventually
from tests.fakes.running_controller import RunningController, running_controller

ONE_ROUND: dict[str, Any] = {
    "attestation__interval": "25s",
    "attestation__challengeTtl": "15s",
    "attestation__lease": "90s",
}
"""No second challenge comes by itself within a test."""
MANY_ROUNDS: dict[str, Any] = {
    "attestation__interval": "1s",
    "attestation__challengeTtl": "3s",
    "attestation__lease": "10s",
}
"""An answer that comes too late ends the stream, and the agent says nothing more: after a second a
busy machine was too late."""
ENV_POLICY = """\
apiVersion: config.gpuwarden.dev/v1alpha1
kind: Policy
defaultMode: env
"""
CARDS = inventory(gpu(0), gpu(1), gpu(2))
GPUS = tuple(card.uuid for card in CARDS.gpus)
BINDINGS = "/mutate/bindings"
NAMESPACE = "gpuwarden-system"


def is_granted(verb: str, path: str, granted: tuple[Call, ...]) -> bool:
    """Whether RBAC with just these rights lets the request through."""
    parts, place = path.strip("/").split("/"), place_of(path)
    group = "" if parts[0] == "api" else parts[1]
    wanted = "/".join(x for x in (place.collection, place.subresource) if x)
    return any(
        (call.verb.value, call.resource.group, call.rbac_name) == (verb, group, wanted)
        and call.name in {None, place.name}
        and (not call.own_namespace or place.namespace == NAMESPACE)
        for call in granted
    )


class FakeCluster:
    """node-1 and three namespaces: plain, strict and team-a; the latter two are enforced."""

    def __init__(self, folder: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi) -> None:
        self.folder = folder
        self.api = api
        self.workload_api = workload_api
        self.create_nodes("node-1")
        enforced = {"gpuwarden.dev/enforce": "true"}
        for name, labels in (("plain", {}), ("strict", enforced), ("team-a", enforced)):
            api.create("namespaces", {"metadata": {"name": name, "labels": labels}})

    def create_nodes(self, *names: str) -> None:
        for name in names:
            self.api.create("nodes", {"metadata": {"name": name}})

    def taint(self, node: str, taint: dict[str, str]) -> None:
        self.api.change(
            "nodes", self.api.objects.get("nodes", node) | {"spec": {"taints": [taint]}}
        )

    async def events(self, reason: str) -> list[dict[str, Any]]:
        """Of a reason, as soon as there are any."""

        async def there() -> list[dict[str, Any]] | None:
            found = self.api.objects.all("events").values()
            return [x for x in found if x["reason"] == reason] or None

        return await eventually(there, f"an Event {reason}")

    @contextlib.asynccontextmanager
    async def controller(self, **settings: Any) -> AsyncIterator[RunningController]:
        """With its SVID, unless it is to `stop`; at its end it has made only granted calls."""
        exchange = Transport(in_cluster(self.folder / "sa", self.api), SystemClock())
        values = {
            **ONE_ROUND,
            "kubernetes__staleAfter": "45s",
            "kubernetes__namespace": NAMESPACE,
            **settings,
        }
        async with running_controller(
            self.folder, self.workload_api, exchange=exchange, **values
        ) as running:
            if "stop" not in settings:
                await running.reason("svid", wanted=False)
            yield running
        made = {(verb, path.partition("?")[0]) for verb, path in self.api.requests}
        made = {x for x in made if place_of(x[1]).subresource != "portforward"}  # of people
        is_managed = settings.get("certificates__selfManaged__enabled") == "true"
        exports = EXPORT_CALLS if "export__exporters" in settings else ()
        hints = HINT_CALLS if "hints__schedulerUrl" in settings else ()
        granted = (*CALLS, *(CERTIFICATE_CALLS if is_managed else ()), *exports, *hints)
        ungranted = sorted(x for x in made if not is_granted(*x, granted))
        assert not ungranted, ungranted

    @contextlib.asynccontextmanager
    async def webhooks(self, **settings: Any) -> AsyncIterator["Webhooks"]:
        """A controller whose webhooks listen."""
        ca = WebCa(self.folder, "webhooks")
        certificate, key = ca.issue("webhook", server=True)
        values = {
            "listen__admission": "127.0.0.1:0",
            "admission__tls__cert": str(certificate),
            "admission__tls__key": str(key),
            "admission__tls__clientCa": str(ca.file),
            **settings,
        }
        context = ssl.create_default_context(cafile=str(ca.file))
        context.load_cert_chain(*ca.issue("api-server"))
        async with self.controller(**values) as running:
            yield Webhooks(running, context)

    @contextlib.asynccontextmanager
    async def live(self, **settings: str | None) -> AsyncIterator["LiveCluster"]:
        """A controller that reserves, and node-1, whose agent answers; None unsets a setting."""
        keys, policy = self.folder / "id-keys", self.folder / "policy.yaml"
        keys.write_text(f"k1 {'ab' * 32}\n")
        policy.write_text(ENV_POLICY)
        values = {
            **MANY_ROUNDS,
            "admission__idKeys": str(keys),
            "policy__file": str(policy),
            **settings,
        }
        async with (
            self.webhooks(**{key: x for key, x in values.items() if x is not None}) as webhooks,
            webhooks.controller.client() as client,
            answering(client) as node,
        ):
            yield LiveCluster(self, webhooks, node)


class Webhooks:
    """The API server's way to the webhooks of a controller."""

    def __init__(self, controller: RunningController, context: ssl.SSLContext) -> None:
        self.controller = controller
        self._context = context

    async def ask(self, path: str, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
        """The AdmissionReview that answers the creation of a pod."""
        return await self.post(path, review_json(pod, namespace=namespace))

    async def post(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        async with self.session() as session:
            return await self.post_in(session, path, review)

    def session(self) -> aiohttp.ClientSession:
        """Connections that are used again."""
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._context))

    async def post_in(
        self, session: aiohttp.ClientSession, path: str, review: dict[str, Any]
    ) -> dict[str, Any]:
        url = f"https://{self.controller.addresses.admission}{path}"
        async with session.post(url, json=review) as answer:
            assert answer.status == 200
            found: dict[str, Any] = await answer.json()
            return found

    async def know_namespaces(self) -> None:
        """Wait for them: a namespace that is not known yet counts as enforced."""

        async def known() -> bool | None:
            answer = await self.ask("/mutate/pods", new_pod(), "plain")
            return not patch_of(answer) or None

        await eventually(known, "the namespaces are known")


class AnsweringAgent:
    """The agent of node-1, which answers every challenge with the use of the moment."""

    def __init__(self, client: AttestClient) -> None:
        self._client = client
        self.inventory = CARDS
        self.processes: tuple[GpuProcess, ...] = ()
        self.allocations: tuple[Allocation, ...] | None = None
        self.pods: tuple[str, ...] = ()
        self.silent = False
        """Whether it answers nothing any more: the node is cut off."""
        self.rounds = 0

    async def answer_for_ever(self) -> None:
        challenge = await self._client.admitted()
        while not self.silent:
            use: dict[str, Any] = {"processes": self.processes, "allocations": self.allocations}
            await self._client.answer(challenge, self.inventory, pods=self.pods, **use)
            await self._client.verdict()
            self.rounds += 1
            challenge = await self._client.challenge()

    async def some_rounds(self, count: int = 3) -> None:
        goal = self.rounds + count

        async def reached() -> bool | None:
            return self.rounds >= goal or None

        await eventually(reached, "some rounds of evidence")


@contextlib.asynccontextmanager
async def answering(client: AttestClient) -> AsyncIterator[AnsweringAgent]:
    """An agent that answers as long as this lasts, or until it is silent."""
    agent = AnsweringAgent(client)
    task = asyncio.create_task(agent.answer_for_ever())
    try:
        yield agent
    finally:
        while not task.done():  # gRPC can lose a cancellation that meets an answer
            task.cancel()
            await asyncio.wait((task,), timeout=0.2)


class LiveCluster:
    """Pods in team-a that are bound to node-1, as a scheduler and the API server do it."""

    def __init__(self, cluster: FakeCluster, webhooks: Webhooks, agent: AnsweringAgent) -> None:
        self.api = cluster.api
        self.controller = webhooks.controller
        self.webhooks = webhooks
        self.agent = agent

    def create(
        self, name: str, labels: dict[str, str] | None = None, **metadata: Any
    ) -> dict[str, Any]:
        document = env_pod(name=name)
        document["metadata"] |= {"labels": labels or {}, **metadata}
        del document["metadata"]["uid"], document["metadata"]["resourceVersion"]
        return self.api.create("pods", document)

    async def bind(self, name: str, **request: Any) -> dict[str, Any]:
        """The response of the binding webhook; an allowed Binding is carried out.

        Where the pod was changed meanwhile, the API server answers 409, and the scheduler tries
        again: that is told as a response that allows nothing.
        """
        found = self.api.objects.get("pods", f"team-a/{name}")
        sent = binding(name, "node-1", uid=found["metadata"]["uid"])
        answer = await self.webhooks.post(BINDINGS, binding_review(sent, **request))
        if answer["response"]["allowed"] and not request:
            made = applied(sent, patch_of(answer))["metadata"]
            found = self.api.objects.get("pods", f"team-a/{name}")
            if made["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return {"allowed": False, "status": {"code": 409, "message": "changed meanwhile"}}
            found["metadata"]["annotations"] |= made["annotations"]
            found["spec"]["nodeName"] = "node-1"
            self.api.change("pods", found)
        response: dict[str, Any] = answer["response"]
        return response

    async def bound(self, name: str) -> str:
        """The GPU that the pod gets, sooner or later."""

        async def allowed() -> bool | None:
            return (await self.bind(name))["allowed"] or None

        await eventually(allowed, f"{name} may be bound")
        found = self.api.objects.get("pods", f"team-a/{name}")
        uuid: str = found["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"]
        return uuid

    async def state_of(self, uuid: str, state: str | None) -> None:
        """Wait until the GPU's reservation is in this state; None: until it has none."""

        async def there() -> bool | None:
            kept = self.api.objects.all("gpureservations").get(uuid.lower())
            found = None if kept is None else kept["spec"]["holders"][0]["state"]
            return found == state or None

        await eventually(there, f"{uuid} is {state}")
