"""Certificates that gpuwarden manages itself, with an API server and real TLS on both sides.

Clients trust what is published at the moment of their request, and nothing else. A scheduler has
read its bundle when it started.
"""

import asyncio
import base64
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.admission.review import AdmissionHandler, Verdict
from controller.certificates.files import CertificateFiles
from controller.certificates.plan import Terms
from controller.kube.api.client import ApiClient
from controller.kube.objects.certificates import STARVED_S, ManagedCertificates
from controller.web.extender.extender import Extender, ExtenderLimits, ExtenderServer
from controller.web.listener import HttpServer
from controller.web.tls import PreviousFiles, TlsFiles
from controller.web.webhook import AdmissionLimits, AdmissionWebhooks
from gpuwarden.clock import SystemClock
from gpuwarden.moment import NS_PER_S
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.admitted_pods import new_pod
from tests.builders.bindings import binding, binding_review
from tests.builders.fleet_views import fleet, hash_of, healthy
from tests.builders.kube_access import api_client, in_cluster
from tests.builders.pods import pod_json
from tests.fakes.admission import AdmissionMeasurements
from tests.fakes.api_server import DirectExchange, FakeApiServer
from tests.fakes.binding_world import BindingWorld
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import eventually
from tests.fakes.placement import Measurements, Sink, World, args
from tests.fakes.recording_audit import RecordingAudit

NAMESPACE = "gpuwarden-system"
DAY = timedelta(days=1)
ROTATIONS = 100
WRITES = 16
"""Of one rotation."""
ALWAYS_DUE = Terms(authority=400 * DAY, leaf=30_000 * DAY, renew_before=20_000 * DAY)
"""An authority has never enough left for a whole leaf, so the next one follows after a day."""
USUAL = Terms(authority=1825 * DAY, leaf=180 * DAY, renew_before=30 * DAY)
FILTER = args(pod_json({"gpuwarden.dev/required-hash": hash_of("a")}), "n1", "n2")
REVIEW = review_json(new_pod(), namespace="team-a")
POD_PATH, BINDING_PATH, FILTER_PATH = "/mutate/pods", "/mutate/bindings", "/filter"
WEBHOOKS = {POD_PATH: "gpuwarden-pods", BINDING_PATH: "gpuwarden-bindings"}
TOO_LARGE = {"gpuwarden.dev/gpu-selector": "memory>=4000Gi"}


def register_webhooks(api: FakeApiServer) -> None:
    """As `kubectl apply` does it: nobody knows the authority yet."""
    for kind, name, count in (
        ("mutatingwebhookconfigurations", "gpuwarden-pods", 2),
        ("mutatingwebhookconfigurations", "gpuwarden-bindings", 2),
        ("validatingwebhookconfigurations", "gpuwarden-pods", 2),
    ):
        webhooks = [{"name": f"w{n}", "clientConfig": {"service": {}}} for n in range(count)]
        api.create(kind, {"metadata": {"name": name}, "webhooks": webhooks})


def secret(api: FakeApiServer, name: str) -> dict[str, bytes]:
    found = api.objects.get("secrets", f"{NAMESPACE}/{name}")
    return {key: base64.b64decode(text) for key, text in found["data"].items()}


def published(api: FakeApiServer, name: str, kind: str = "mutatingwebhookconfigurations") -> bytes:
    """What API servers trust now for these webhooks."""
    webhooks = api.objects.get(kind, name)["webhooks"]
    (bundle,) = {x["clientConfig"].get("caBundle", "") for x in webhooks}
    return base64.b64decode(bundle)


def trusting(bundle: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.decode())
    return context


async def post(
    port: int,
    path: str,
    body: Any,
    context: ssl.SSLContext,
    service: str,
    *,
    name: str | None = None,
) -> Any:
    """On a connection of its own, for a Service or this name; raises aiohttp.ClientError."""
    name = name or f"{service}.{NAMESPACE}.svc"
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://127.0.0.1:{port}{path}", json=body, ssl=context, server_hostname=name
        ) as answer,
    ):
        assert answer.status == 200
        return await answer.json()


async def let_in(_request: object) -> Verdict:
    return Verdict()


class Question:
    """One path of a listener, asked again and again; raises where an answer is not the right one.

    Every other Binding is of a pod that gets a GPU, and every other of one that no GPU is for.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = "extender" if path == FILTER_PATH else "admission"
        self.answered = 0
        self._gets_a_gpu = False

    def body(self) -> dict[str, Any]:
        """What is asked next."""
        if self.path == BINDING_PATH:
            self._gets_a_gpu = not self._gets_a_gpu
            pod = "fits" if self._gets_a_gpu else "too-large"
            return binding_review(binding(pod, uid=f"uid-{pod}"))
        return FILTER if self.path == FILTER_PATH else REVIEW

    def take(self, answer: Any) -> None:
        """The answer to it."""
        self.answered += 1
        if self.path == FILTER_PATH:
            assert answer["NodeNames"] == ["n1"]
            return
        response = answer["response"]
        assert response["uid"] == REVIEW["request"]["uid"]
        if self.path == POD_PATH:
            assert response["allowed"] is True
        elif self._gets_a_gpu:
            assert response["allowed"] is True, response
            (given,) = (
                x["value"] for x in patch_of(answer) if x["path"] == "/metadata/annotations"
            )
            assert given["gpuwarden.dev/gpu-uuids-assigned"] == "GPU-gpu-1-0"
        else:
            assert (response["allowed"], response["status"]["code"]) == (False, 403)
            assert "GPU_NO_MATCH" in response["status"]["message"]


@dataclass
class Replica:
    certificates: ManagedCertificates
    audit: RecordingAudit
    admission: HttpServer
    extender: ExtenderServer
    seen: tuple[AdmissionMeasurements, Measurements]
    ports: dict[str, int] = field(default_factory=dict)

    async def look(self) -> None:
        """Lead and copy, then take new files into use, as both do now and then."""
        await self.certificates.reconcile()
        self.admission.reload_certificates()
        self.extender.reload_certificates()


def replica(
    api: ApiClient,
    folder: Path,
    clock: FakeClock,
    *,
    leads: Callable[[], bool] = lambda: True,
    terms: Terms = USUAL,
    previous: PreviousFiles | None = None,
    given: Callable[[str], TlsFiles] | None = None,
    decide_binding: AdmissionHandler = let_in,
) -> Replica:
    """With `given` its listeners have those files, and its managed ones are not used."""

    def files(
        listener: str, client_ca: str | None = None, before: PreviousFiles | None = None
    ) -> TlsFiles:
        found = folder / listener
        ca = None if client_ca is None else found / client_ca
        return TlsFiles(found / "tls.crt", found / "tls.key", ca, True, before)

    audit, seen = RecordingAudit(), (AdmissionMeasurements(), Measurements())
    certificates = ManagedCertificates(
        api,
        CertificateFiles(folder),
        namespace=NAMESPACE,
        terms=terms,
        listeners={"admission", "extender"},
        clock=clock,
        instruments=Instruments(Process.CONTROLLER, "test"),
        audit=audit,
        leads=leads,
        jitter=lambda: 0.0,
    )
    limits, bounds = AdmissionLimits(), ExtenderLimits()
    webhooks = AdmissionWebhooks(
        {POD_PATH: let_in, BINDING_PATH: decide_binding},
        metrics=seen[0],
        limits=limits,
        report=False,
    )
    verbs = World(fleet(healthy("n1"))).verbs()
    extender = Extender(verbs, note=Sink().note, metrics=seen[1], limits=bounds)
    local = Address("127.0.0.1", 0)
    return Replica(
        certificates,
        audit,
        HttpServer(
            webhooks.application(),
            name="admission",
            address=local,
            tls=given("admission") if given else files("admission"),
            limits=limits,
            observer=seen[0],
        ),
        ExtenderServer(
            extender,
            address=local,
            tls=given("extender") if given else files("extender", "ca.crt", previous),
            observer=seen[1],
            limits=bounds,
        ),
        seen,
    )


class PausingApi(ApiClient):
    """An API client that lets a test in after each write."""

    def __init__(self, server: FakeApiServer) -> None:
        super().__init__(DirectExchange(server), Instruments(Process.CONTROLLER, "test"))
        self.writes = 0
        self.pause: Callable[[int], Awaitable[None]] | None = None

    async def create(self, *arguments: Any) -> bytes:
        return await self._then(await super().create(*arguments))

    async def patch(self, *arguments: Any, **more: Any) -> bytes:
        return await self._then(await super().patch(*arguments, **more))

    async def _then(self, answer: bytes) -> bytes:
        self.writes += 1
        if self.pause is not None:
            await self.pause(self.writes)
        return answer


@dataclass
class Scene:
    server: FakeApiServer
    api: PausingApi
    folder: Path
    clock: FakeClock
    replicas: list[Replica]
    scheduler_trusts: bytes = b""
    questions: tuple[Question, ...] = field(
        default_factory=lambda: tuple(map(Question, (POD_PATH, BINDING_PATH, FILTER_PATH)))
    )

    def start_scheduler(self) -> None:
        """It reads its bundle now, and its certificate at each connection."""
        self.scheduler_trusts = secret(self.server, "gpuwarden-scheduler-client-tls")["ca.crt"]

    async def everybody_asks(self) -> None:
        """The API server about a pod and a Binding, the scheduler about nodes, every replica."""
        for one in self.replicas:
            for question in self.questions:
                name = WEBHOOKS.get(question.path)
                context = trusting(published(self.server, name)) if name else self.scheduler()
                service = f"gpuwarden-{question.listener}"
                port = one.ports[question.listener]
                question.take(await post(port, question.path, question.body(), context, service))

    @property
    def answered(self) -> int:
        """By whichever replica."""
        return sum(x.answered for x in self.questions)

    def assert_nothing_failed(self, bindings: int) -> None:
        """As the listeners and webhooks have it; so many Bindings, half of them allowed."""
        for one in self.replicas:
            assert not [x for seen in one.seen for x in seen.refused]
            assert not one.seen[0].failures
        found = Counter(x for one in self.replicas for x in one.seen[0].answers)
        by_result = {
            result: count for (path, result), count in found.items() if path == BINDING_PATH
        }
        assert by_result.keys() == {"patched", "refused"}
        assert sum(by_result.values()) == bindings

    def scheduler(self) -> ssl.SSLContext:
        """What a scheduler connects with now."""
        context = trusting(self.scheduler_trusts)
        found = secret(self.server, "gpuwarden-scheduler-client-tls")
        pair = [self.folder / "client.crt", self.folder / "client.key"]
        for path, entry in zip(pair, ("tls.crt", "tls.key"), strict=True):
            path.write_bytes(found[entry])
        context.load_cert_chain(pair[0], pair[1])
        return context

    def decisions(self) -> Counter[str]:
        return Counter(x.decision for one in self.replicas for x in one.audit.noted)


@asynccontextmanager
async def installed(
    server: FakeApiServer, folder: Path, terms: Terms = USUAL
) -> AsyncIterator[Scene]:
    """Two replicas, both of which believe that they lead; listeners are open."""
    register_webhooks(server)
    begin_ns = SystemClock().wall_ns() - int((ROTATIONS + 20) * DAY.total_seconds()) * NS_PER_S
    api, clock = PausingApi(server), FakeClock(wall=begin_ns)
    pods = BindingWorld(8)
    pods.pod("fits")
    pods.pod("too-large", annotations=TOO_LARGE)
    replicas = [
        replica(api, folder / f"r{n}", clock, terms=terms, decide_binding=webhook.decide)
        for n, webhook in enumerate([(await pods.replica(x)).binding_webhook for x in "ab"])
    ]
    scene = Scene(server, api, folder, clock, replicas)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(one.certificates.reconcile() for one in replicas))
        for one in replicas:
            await one.certificates.reconcile()
            for listener in (one.admission, one.extender):
                _, one.ports[listener.name] = await listener.start()
                stack.push_async_callback(listener.stop, 0.5)
        scene.start_scheduler()
        yield scene


async def test_a_hundred_rotations_under_load_fail_no_request(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """Asked after another write of each rotation, while the other leader writes in between."""
    async with installed(server, tmp_path, ALWAYS_DUE) as scene:
        first, second = scene.replicas
        for turn in range(ROTATIONS):
            scene.clock.advance(DAY.total_seconds())
            before, before_asked = scene.api.writes, scene.answered

            async def pause(
                writes: int,
                at: int = before + 1 + turn % WRITES,
                other: Replica = second,
                turn: int = turn,
            ) -> None:
                if writes == at:
                    scene.api.pause = None
                    await scene.everybody_asks()
                    if turn % 2:
                        await other.look()

            scene.api.pause = pause
            await first.look()
            await second.look()
            assert scene.answered > before_asked, "there was no such write"
            if turn % 4 == 0:
                await first.look()
                await scene.everybody_asks()
            scene.start_scheduler()
            first, second = second, first
        await scene.everybody_asks()
    assert scene.decisions()["rotated"] == ROTATIONS
    asked = (ROTATIONS + ROTATIONS // 4 + 1) * len(scene.replicas)
    assert [x.answered for x in scene.questions] == [asked] * 3
    scene.assert_nothing_failed(asked)


@dataclass
class Client:
    """One API server or scheduler that never stops asking one replica."""

    scene: Scene
    replica: Replica
    question: Question
    is_kept: bool
    """Whether it keeps its connection, or makes one for each request."""
    connections: int = 0
    _known: tuple[bytes, ssl.SSLContext] | None = None

    def __post_init__(self) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._connected)
        connector = aiohttp.TCPConnector(force_close=not self.is_kept)
        self.session = aiohttp.ClientSession(connector=connector, trace_configs=[trace])

    async def ask_until(self, changed: asyncio.Event) -> None:
        """One request is always under way until then. Raises where one fails."""
        while True:
            await self._ask()
            if changed.is_set():
                return

    async def _connected(self, *_: object) -> None:
        self.connections += 1

    async def _ask(self) -> None:
        listener = self.question.listener
        async with self.session.post(
            f"https://127.0.0.1:{self.replica.ports[listener]}{self.question.path}",
            json=self.question.body(),
            ssl=self._trusting(),
            server_hostname=f"gpuwarden-{listener}.{NAMESPACE}.svc",
        ) as answer:
            assert answer.status == 200
            self.question.take(await answer.json())

    def _trusting(self) -> ssl.SSLContext:
        """As both do: what is trusted now, and so the connection, changes where its bytes do."""
        webhook = WEBHOOKS.get(self.question.path)
        if webhook is None:
            bundle = self.scene.scheduler_trusts
        else:
            bundle = published(self.scene.server, webhook)
        if self._known is None or self._known[0] != bundle:
            made = self.scene.scheduler() if webhook is None else trusting(bundle)
            self._known = bundle, made
        return self._known[1]


async def test_requests_under_way_while_certificates_change_all_succeed(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """Six clients ask without a pause about pods, Bindings and nodes, three on new connections."""
    async with installed(server, tmp_path, ALWAYS_DUE) as scene:
        first = scene.replicas[0]
        clients = [
            Client(scene, one, Question(path), is_kept=(path == POD_PATH) is (one is first))
            for one in scene.replicas
            for path in (POD_PATH, BINDING_PATH, FILTER_PATH)
        ]
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client.session)
            for _ in range(ROTATIONS):
                scene.clock.advance(DAY.total_seconds())
                changed = asyncio.Event()
                async with asyncio.TaskGroup() as tasks:
                    for client in clients:
                        tasks.create_task(client.ask_until(changed))
                    for one in scene.replicas:
                        await one.look()
                    changed.set()
                scene.start_scheduler()
    assert scene.decisions()["rotated"] == ROTATIONS
    for client in clients:
        assert client.question.answered >= ROTATIONS
        assert (client.connections < client.question.answered) is client.is_kept
    scene.assert_nothing_failed(
        sum(x.question.answered for x in clients if x.question.path == BINDING_PATH)
    )


async def test_a_replica_that_waits_for_its_leader_in_vain_makes_them_itself(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """One that has certificates of others leads on while replicas are changed, and makes none."""
    register_webhooks(server)
    api, clock = PausingApi(server), FakeClock()
    one = replica(api, tmp_path, clock, leads=lambda: False).certificates
    await one.reconcile()
    clock.advance(STARVED_S - 0.001)
    await one.reconcile()
    assert (api.writes, str(one.waiting())[:18]) == (0, "waiting for Secret")
    clock.advance(0.001)
    await one.reconcile()
    assert one.waiting() is None
    before = api.writes
    server.delete("secrets", f"{NAMESPACE}/gpuwarden-webhook-tls")
    clock.advance(3600)
    await one.reconcile()
    assert (api.writes, before > 6) == (before, True)


# --- a whole controller


def managed(folder: Path, **more: str) -> dict[str, str]:
    """Settings of a controller that manages the certificates of its three listeners."""
    files = folder / "certificates"
    return {
        "certificates__selfManaged__enabled": "true",
        "certificates__selfManaged__folder": str(files),
        "listen__admission": "127.0.0.1:0",
        "listen__api": "127.0.0.1:0",
        "admission__tls__cert": str(files / "admission" / "tls.crt"),
        "admission__tls__key": str(files / "admission" / "tls.key"),
        "extender__tls__cert": str(files / "extender" / "tls.crt"),
        "extender__tls__key": str(files / "extender" / "tls.key"),
        "extender__tls__clientCa": str(files / "extender" / "ca.crt"),
        "api__tls__cert": str(files / "api" / "tls.crt"),
        "api__tls__key": str(files / "api" / "tls.key"),
        **more,
    }


async def test_a_first_installation_needs_nothing_but_the_rights(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    register_webhooks(cluster.api)
    async with cluster.controller(**managed(cluster.folder)) as here:
        assert not [x for x in await here.reasons() if x.startswith("certificates")]
        bundle = published(cluster.api, "gpuwarden-pods")
        for name in ("gpuwarden-bindings", "gpuwarden-pods"):
            assert published(cluster.api, name) == bundle
        kind = "validatingwebhookconfigurations"
        assert published(cluster.api, "gpuwarden-pods", kind) == bundle
        trusted = cluster.api.objects.get("configmaps", f"{NAMESPACE}/gpuwarden-ca")["data"]
        assert trusted == {"ca.crt": bundle.decode()}
        context = trusting(bundle)
        port = int(here.addresses.admission.rpartition(":")[2])
        answer = await post(port, "/mutate/pods", REVIEW, context, "gpuwarden-admission")
        assert answer["response"]["uid"] == REVIEW["request"]["uid"]
        port = int(here.addresses.extender.rpartition(":")[2])
        with pytest.raises((aiohttp.ClientError, OSError)):
            await post(port, "/filter", FILTER, context, "gpuwarden-extender")
        found = secret(cluster.api, "gpuwarden-scheduler-client-tls")
        pair = [cluster.folder / "client.crt", cluster.folder / "client.key"]
        for path, entry in zip(pair, ("tls.crt", "tls.key"), strict=True):
            path.write_bytes(found[entry])
        context.load_cert_chain(pair[0], pair[1])
        answer = await post(port, "/filter", FILTER, context, "gpuwarden-extender")
        assert "NodeNames" in answer
        left = await here.metric('gpuwarden_managed_certificate_expires_seconds{certificate="api"}')
        assert left is not None
        assert 89 * 86_400 < left <= 90 * 86_400
        issued = {x["subject"] for x in here.records() if x["kind"] == "certificate.change"}

        async def all_recorded() -> bool | None:
            found = {x["subject"] for x in here.records() if x["kind"] == "certificate.change"}
            return len(found) == 6 or None

        await eventually(all_recorded, f"records of the authority and five leaves, not {issued}")
        assert not [x for x in await here.warnings() if x.startswith("certificates")]
        keys = [secret(cluster.api, x)["tls.key"] for x in ("gpuwarden-http-api-tls",)]
        keys.append(secret(cluster.api, "gpuwarden-authority")["current.key"])
        told = capsys.readouterr().out + str(here.records())
        assert "certificate.change" in told
        assert not [key for key in keys if key.splitlines()[1].decode() in told]


async def test_listeners_wait_for_their_certificates_and_readiness_says_for_which(
    cluster: FakeCluster, own_port: int
) -> None:
    """A malformed Secret is named and left alone; without it the controller goes on."""
    broken = {"metadata": {"name": "gpuwarden-webhook-tls", "namespace": NAMESPACE}, "data": {}}
    cluster.api.create("secrets", broken)
    ops = f"127.0.0.1:{own_port}"
    seen: list[str] = []

    async def look() -> bool | None:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{ops}/readyz") as x:
                reasons = (await x.json())["reasons"]
        except aiohttp.ClientError:
            return None
        waits = "certificates: waiting for Secret gpuwarden-webhook-tls ("
        seen[:] = [x for x in reasons if x.startswith(waits)]
        return bool(seen) or None

    async def mend() -> None:
        await eventually(look, "readiness names the Secret")
        assert (
            cluster.api.objects.get("secrets", f"{NAMESPACE}/gpuwarden-webhook-tls")["data"] == {}
        )
        cluster.api.delete("secrets", f"{NAMESPACE}/gpuwarden-webhook-tls")

    mending = asyncio.create_task(mend())
    async with cluster.controller(**managed(cluster.folder, listen__ops=ops)) as here:
        await mending
        assert seen == [
            (
                "certificates: waiting for Secret gpuwarden-webhook-tls"
                " (Secret gpuwarden-webhook-tls: tls.crt: there is none)"
            )
        ]
        assert here.addresses.admission
        assert not [x for x in await here.reasons() if x.startswith("certificates")]


async def test_a_controller_that_waits_for_certificates_ends_when_it_is_told(
    cluster: FakeCluster,
) -> None:
    for _ in range(1000):
        cluster.api.fail_next(403, matching="secrets")
    stop = asyncio.Event()

    async def asked() -> bool | None:
        return any("/secrets/" in path for _, path in cluster.api.requests) or None

    async def end() -> None:
        await eventually(asked, "it asks for its Secrets")
        stop.set()

    ending = asyncio.create_task(end())
    async with cluster.controller(stop=stop, **managed(cluster.folder)) as here:
        await ending
        assert await here.task == 0
        assert here.addresses.admission == ""


async def test_a_secret_that_somebody_breaks_replaces_nothing_and_is_a_warning(
    server: FakeApiServer, tmp_path: Path
) -> None:
    async with installed(server, tmp_path) as scene:
        one = scene.replicas[0]
        key = f"{NAMESPACE}/gpuwarden-extender-tls"
        found = server.objects.get("secrets", key)
        server.change("secrets", {**found, "data": {**found["data"], "tls.key": "AAAA"}})
        await one.look()
        text = "certificates: Secret gpuwarden-extender-tls: tls.key: expected a PEM private key"
        assert [x for x in one.certificates.warnings() if x.startswith(text)]
        await scene.everybody_asks()
        server.change("secrets", {**server.objects.get("secrets", key), **found})
        await one.look()
        assert one.certificates.warnings() == ()


async def test_a_replica_that_does_not_lead_writes_nothing(
    server: FakeApiServer, tmp_path: Path
) -> None:
    api = PausingApi(server)
    follower = replica(api, tmp_path / "f", FakeClock(), leads=lambda: False)
    await follower.certificates.reconcile()
    assert api.writes == 0
    text = "waiting for Secret gpuwarden-webhook-tls, gpuwarden-extender-tls"
    assert follower.certificates.waiting() == text


async def test_a_write_that_is_not_taken_is_named_and_tried_again(
    server: FakeApiServer, tmp_path: Path
) -> None:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    leader = replica(api, tmp_path / "l", FakeClock())
    server.fail_next(403, matching=f"create /api/v1/namespaces/{NAMESPACE}/secrets")
    await leader.certificates.reconcile()
    (fault,) = leader.certificates.warnings()
    assert fault.startswith("certificates: Secret gpuwarden-authority: the API server answered 403")
    assert server.objects.all("secrets") == {}
    server.fail_next(409, matching="create")
    await leader.certificates.reconcile()
    assert leader.certificates.warnings() == ()
    assert server.objects.all("secrets") == {}
    await leader.certificates.reconcile()
    assert (leader.certificates.waiting(), leader.certificates.warnings()) == (None, ())
    server.objects.delete("secrets", f"{NAMESPACE}/gpuwarden-http-api-tls")
    await server.stop()
    await leader.certificates.reconcile()
    assert leader.certificates.waiting() is None
    await transport.close()


async def test_who_stops_leading_stops_writing(server: FakeApiServer, tmp_path: Path) -> None:
    api = PausingApi(server)
    leader = replica(api, tmp_path / "l", FakeClock(), leads=lambda: api.writes < 3)
    await leader.certificates.reconcile()
    assert api.writes == 3


async def test_a_folder_that_cannot_be_written_is_named(
    server: FakeApiServer, tmp_path: Path
) -> None:
    (tmp_path / "l").write_text("in the way")
    leader = replica(PausingApi(server), tmp_path / "l", FakeClock())
    await leader.certificates.reconcile()
    assert "certificates: files of admission: File exists" in leader.certificates.warnings()
    assert leader.certificates.waiting() is not None


async def test_missing_rights_are_named_and_hold_back_what_nobody_would_trust(
    server: FakeApiServer, tmp_path: Path
) -> None:
    register_webhooks(server)
    for _ in range(50):
        server.fail_next(403, matching="validatingwebhookconfigurations")
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    leader = replica(api, tmp_path / "l", FakeClock())
    await leader.certificates.reconcile()
    (fault,) = leader.certificates.warnings()
    assert fault.startswith(
        "certificates: ValidatingWebhookConfiguration gpuwarden-pods: the API server answered 403"
    )
    assert set(server.objects.all("secrets")) == {f"{NAMESPACE}/gpuwarden-authority"}
    await server.stop()
    await leader.certificates.reconcile()
    (fault,) = leader.certificates.warnings()
    assert fault.startswith("certificates: the Kubernetes API: no answer")
    await transport.close()
