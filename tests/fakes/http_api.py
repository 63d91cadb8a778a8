"""The HTTP API over real TLS, with a ledger in memory and an invented API server behind it."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
from cryptography import x509

from controller.access import BoundPod, FoundPod, PeerUsage, Person, TokenIdentity
from controller.audit.checkpoints import Published
from controller.binding.records import ReservationChange
from controller.console.console import Console, ConsoleBounds
from controller.explain.fleet_rows import FleetFacts
from controller.explain.pod import AllocationTrace
from controller.explain.pod_views import SeenPod
from controller.fleet.directory import KnownNode
from controller.fleet.quarantine import Shown, show
from controller.fleet.view import FleetSnapshot
from controller.ledger.record import PodGone, PodRef, PodSeen
from controller.ledger.reservation_id import ReservationSubject
from controller.ledger.restore import LivePod
from controller.operations.operator_service import Done, OperatorService, Order
from controller.people.reviews import AccessReviews, TokenReviews
from controller.people.rights import Right
from controller.people.roles import Roles
from controller.placement.explanation import FitReport
from controller.policy import DEFAULT_POLICY
from controller.web.api.api import ApiLimits, Endpoint
from controller.web.api.authentication import Authentication
from controller.web.api.documents import FinalizeRequest, Inventory
from controller.web.api.finalize import Finalizer
from controller.web.api.operations import Operation
from controller.web.api.reading import Reading, Sources
from controller.web.api.v1 import V1
from controller.web.api.v1_operations import StatusView, Witness
from controller.web.api.viewers import PeopleRules, Viewers
from controller.web.listener import HttpServer
from controller.web.tls import TlsFiles
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.settings.values import Address
from sandbox.spiffe.ca import InsecureCa
from tests.builders.bindings import IDS
from tests.builders.fleet_views import fleet, healthy
from tests.builders.ledger import POD, holder, record
from tests.builders.web_certificates import WebCa
from tests.fakes.clock import FakeClock
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore
from tests.fakes.listener import SeenConnections
from tests.fakes.token_reviewer import FakeTokenReviewer, token_of
from tests.hang import HANG_S, PATIENT

TD = "example.org"
SHOP = "system:serviceaccount:monitoring:shop"
GPUS = ("GPU-gpu-1-0", "GPU-gpu-1-1")
ID = IDS.make(ReservationSubject("team-a", "gpu-1", GPUS, "uid-0"))
BODY = {
    "namespace": "team-a",
    "name": "train-0",
    "uid": "uid-0",
    "reservation-id": ID,
    "gpu-uuid": GPUS[0],
}


class ApiWorld(SeenConnections):
    """What the API is asked about; tests change it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.authority = InsecureCa(TD)
        self.roots: tuple[x509.Certificate, ...] = (self.authority.certificate,)
        self.web = WebCa(folder, "web")
        self.folder = folder
        self.reviewer = FakeTokenReviewer(
            {
                "pod": token_of("team-a", "train-0", "uid-0"),
                "other-pod": token_of("team-a", "train-1", "uid-1"),
                "reader": TokenIdentity(SHOP, None),
                "reader-pod": TokenIdentity(SHOP, BoundPod("monitoring", "shop-0", "uid-7")),
            }
        )
        self.fleet: FleetSnapshot = fleet(healthy("gpu-1", gpus=4), healthy("gpu-2", gpus=1))
        self.memory = MemoryLedgerStore()
        self.store = FaultyLedgerStore(self.memory)
        self.is_ledger_fresh = True
        self.pod = FoundPod(
            PodSeen("uid-0", "gpu-1", ID, has_ended=False), LivePod(POD, "gpu-1", ID, GPUS)
        )
        self.late = timedelta()
        self.counted = 0
        """Requests that were counted against the rate of their caller."""
        self.answers: list[tuple[str, int]] = []
        self.failures: list[Exception] = []
        self.calls: list[tuple[str, str | None]] = []
        self.people: dict[str, Person] = {}
        """By token."""
        self.rights: set[tuple[str, Right]] = set()
        """User and what they may do."""
        self.rules = {"cookie": True}
        """How people come (`PeopleRules`)."""
        self.seen: list[SeenPod] | None = []
        self.labels: dict[str, KnownNode] = {}
        self.traces: dict[str, AllocationTrace] = {}
        self.fits: dict[str, FitReport] = {}
        """By namespace/name."""
        self.audit = folder / "audit"
        self.published: Published | None = None
        self.witnesses: list[Witness] = []
        self.alarms: dict[str, tuple[str, ...]] = {}
        self.warnings: list[str] = []
        self.not_ready = ""
        self.enforcement = "enforce"
        self.evaluation = False
        self.replicas = ["controller-0"]
        self.operators = FakeOperators(self)
        self.changes: list[ReservationChange] = []
        self.port = 0

    async def reserve(self) -> None:
        for gpu in GPUS:
            made = record(holder(*GPUS, reservation=ID), gpu=gpu)
            assert await self.memory.compare_and_set(None, made)

    def states(self) -> list[str]:
        entries = self.memory.snapshot().entries.values()
        return [x.record.holders[0].state.value for x in entries]

    # --- what the endpoint is told of ---

    def answered(self, operation: Operation, status: int, _seconds: float) -> None:
        self.answers.append((operation.value, status))

    def failed(self, _operation: Operation, error: Exception) -> None:
        self.failures.append(error)

    def finalized(self, caller: str, _request: FinalizeRequest, refusal: Refusal | None) -> None:
        self.calls.append((caller, None if refusal is None else refusal.code.value))

    def boottime_ns(self) -> int:
        self.counted += 1
        return self.clock.boottime_ns()

    async def find(self, pod: PodRef) -> FoundPod:
        return self.pod if pod.uid == "uid-0" else FoundPod(PodGone(), None)

    def inventory(self) -> Inventory:
        ledger = self.memory.snapshot()
        now_ns = 0 if self.is_ledger_fresh else ledger.fresh_until_ns
        return Inventory(self.fleet, ledger, {}, now_ns)

    # --- what v1 is told of ---

    def facts(self) -> FleetFacts:
        found = self.inventory()
        return FleetFacts(found.fleet, found.ledger, self.labels, found.now_ns)

    def shown(self, node: str) -> Shown:
        view = self.fleet.nodes.get(node)
        return show(node, None, view, unwritten=None, now_ns=0)

    def status(self) -> StatusView:
        return StatusView(
            cluster="lab",
            replica="controller-0",
            version="0.1.0",
            not_ready=self.not_ready,
            warnings=self.warnings,
            enforcement=self.enforcement,
            evaluation=self.evaluation,
            leads=True,
            replicas=self.replicas,
            alarms={x: list(codes) for x, codes in self.alarms.items()},
            spire="ok",
            ledger_known=self.is_ledger_fresh,
        )

    async def trace(self, namespace: str, name: str) -> AllocationTrace | Refusal:
        unknown = Refusal(ReasonCode.POD_UNKNOWN, f"no pod {namespace}/{name}")
        return self.traces.get(f"{namespace}/{name}", unknown)

    async def verdicts(self, namespace: str, name: str) -> FitReport | Refusal:
        unknown = Refusal(ReasonCode.POD_UNKNOWN, f"no pod {namespace}/{name}")
        return self.fits.get(f"{namespace}/{name}", unknown)

    def sources(self) -> Sources:
        return Sources(
            facts=self.facts,
            policy=lambda: DEFAULT_POLICY,
            shown=self.shown,
            status=self.status,
            pods=lambda: self.seen or (),
            trace=self.trace,
            verdicts=self.verdicts,
            audit=self.audit,
            published=lambda: self.published,
            witnesses=lambda: self.witnesses,
            alarms=lambda: self.alarms,
            clock=self.clock,
        )

    async def review(self, person: Person, right: Right) -> bool:
        return (person.username, right) in self.rights

    def viewers(self, callers: Authentication, **rules: Any) -> Viewers:
        people = PeopleRules(
            reviews=TokenReviews(
                FakePersonReviewer(self.people),
                boottime_ns=self.clock.boottime_ns,
                reviewed=lambda _result: None,
            ),
            roles=Roles(
                AccessReviews(
                    self, boottime_ns=self.clock.boottime_ns, reviewed=lambda _result: None
                )
            ),
            **{**self.rules, **rules},
        )
        return Viewers(
            callers,
            people,
            roots=lambda: self.roots,
            wall=lambda: datetime.now(UTC) + self.late,
            trust_domain=TD,
        )

    # --- callers ---

    @asynccontextmanager
    async def session(
        self, token: str | None = None, *, svid: str | None = None, ca: InsecureCa | None = None
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """`svid` is the path below the trust domain; `ca` issues it in the place of ours."""
        context = ssl.create_default_context(cafile=str(self.web.file))
        if svid is not None:
            issued = (ca or self.authority).issue(f"spiffe://{TD}{svid}")
            file = self.folder / "client.pem"
            file.write_bytes(issued.key_pem + issued.chain_pem)
            context.load_cert_chain(file)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(
            f"https://localhost:{self.port}",
            connector=aiohttp.TCPConnector(ssl=context),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=HANG_S),
        ) as made:
            yield made

    async def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        *,
        svid: str | None = None,
        ca: InsecureCa | None = None,
        **request: Any,
    ) -> tuple[int, Any]:
        """Status and JSON."""
        async with (
            self.session(token, svid=svid, ca=ca) as client,
            client.request(method, path, **request) as answer,
        ):
            assert answer.content_type == "application/json"
            return answer.status, await answer.json()


class FakeOperators:
    """Does nothing, and remembers what it was told to do."""

    def __init__(self, world: ApiWorld) -> None:
        self._world = world
        self.acts: list[tuple[str, Order, str]] = []
        self.refusal: Refusal | None = None

    async def accept(self, order: Order, expected: str) -> Done | Refusal:
        return self._done("accept", order, expected)

    async def release(self, order: Order, expected: str) -> Done | Refusal:
        return self._done("release", order, expected)

    async def quarantine(self, order: Order) -> Done | Refusal:
        return self._done("quarantine", order, "")

    def _done(self, act: str, order: Order, expected: str) -> Done | Refusal:
        self.acts.append((act, order, expected))
        return self.refusal or Done(self._world.shown(order.node))


class FakePersonReviewer:
    """An API server's opinion of people's tokens."""

    def __init__(self, known: dict[str, Person]) -> None:
        self._known = known

    async def review(self, token: str) -> Person | None:
        return self._known.get(token)


@asynccontextmanager
async def api_world(
    folder: Path,
    *,
    has_reviews: bool = True,
    rules: dict[str, Any] | None = None,
    stream_s: float = 0.3,
    insecure: tuple[str, ...] = (),
    **limits: Any,
) -> AsyncIterator[ApiWorld]:
    world = ApiWorld(folder)
    certificate, key = world.web.issue("api", server=True)
    bounds = ApiLimits(**{"answer_s": HANG_S, **PATIENT, **limits})
    reviews = TokenReviews(
        world.reviewer, boottime_ns=world.clock.boottime_ns, reviewed=lambda _result: None
    )
    authentication = Authentication(
        reviews=reviews if has_reviews else None,
        roots=lambda: world.roots,
        wall=lambda: datetime.now(UTC) + world.late,
        trust_domain=TD,
        path_prefix="/gpuwarden",
        readers=("monitoring/shop",),
    )
    viewers = world.viewers(authentication, **(rules or {}))
    usage = PeerUsage(openings=bounds.others, messages=bounds.others)
    reading = Reading(world.sources(), viewers)
    v1 = V1(
        reading,
        viewers,
        usage=usage,
        boottime_ns=world.boottime_ns,
        answered=world.answered,
        failed=world.failed,
        answer_s=bounds.answer_s,
        stream_s=stream_s,
    )
    console = Console(
        reading,
        viewers,
        v1,
        cast("OperatorService", world.operators),
        usage=usage,
        clock=world.clock,
        answered=world.answered,
        failed=world.failed,
        bounds=ConsoleBounds(answer_s=bounds.answer_s, receive_s=bounds.receive_s),
    )
    endpoint = Endpoint(
        authentication,
        world.inventory,
        Finalizer(world.store, world, IDS, world.changes.append),
        viewers=viewers,
        usage=usage,
        routes=(v1.add_routes, console.add_routes),
        sink=world,
        boottime_ns=world.boottime_ns,
        limits=bounds,
        insecure=insecure,
    )
    server = HttpServer(
        endpoint.application(),
        name="api",
        address=Address("127.0.0.1", 0),
        tls=TlsFiles(certificate, key),
        limits=bounds,
        observer=world,
        client_roots=lambda: world.roots,
    )
    _, world.port = await server.start()
    try:
        yield world
    finally:
        await server.stop(0.5)
