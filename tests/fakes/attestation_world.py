"""One controller's attestation side in this process, over real TLS, with nothing else around it.

What a test changes (its clocks, its SVID, its audit log, its store) are plain attributes.
"""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from controller.access import PeerUsage, Rate
from controller.fleet.attestation_result import StreamState
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.enrollment import EnrollmentUnavailableError, MemoryEnrollmentStore
from controller.fleet.quarantine import QuarantineEntries
from controller.fleet.registry import FleetRegistry
from controller.fleet.view import NodeState
from controller.operations.operator_service import Act, OperatorService, Order
from controller.policy import DEFAULT_POLICY, Policy
from controller.rpc.attestation import AttestationService, SessionTiming, StreamTable
from controller.rpc.challenges import Challenger
from controller.rpc.intake import Changes, EvidenceIntake, Result
from controller.rpc.interceptor import AuthorizationInterceptor, tls_caller
from controller.rpc.server import RpcServer, agents_server
from controller.rpc.services import OperatorServicer, SupportServicer
from controller.verifier.context import Snapshots, VerifierSettings
from controller.verifier.verifier import Verifier
from gpuwarden.clock import SystemClock
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.moment import NS_PER_US, Moment
from gpuwarden.reasons import Refusal
from gpuwarden.wire.v1 import attestation_pb2_grpc as pb_grpc
from gpuwarden.wire.v1 import operator_pb2_grpc, support_pb2_grpc
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.builders.support_scene import SupportScene
from tests.builders.svids import FakeSvidSource
from tests.fakes.attest_client import AttestClient
from tests.fakes.recording_audit import RecordingAudit

CONTROLLER = f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"
NODE = "node-1"
ABSENT = ("AuditService", "FleetService", "PlacementService")
"""Services that this world's server does not have."""
S = 1_000_000_000
SLOW = VerifierSettings(
    trust_domain=TRUST_DOMAIN,
    cluster="test",
    interval_ns=25 * S,
    lease_ns=90 * S,
    challenge_ttl_ns=15 * S,
)
"""Nothing but the first challenge comes by itself within a test."""
BRISK = replace(SLOW, interval_ns=S // 5)
"""Challenges follow each other, and a busy machine still has the time to answer."""
HASTY = replace(BRISK, challenge_ttl_ns=S // 10)
"""For answers that are to come too late."""
FAST = replace(SLOW, interval_ns=S // 10, lease_ns=S // 2, challenge_ttl_ns=S // 10)
"""For agents that say nothing for a whole lease."""


def agent(node: str = NODE) -> str:
    return f"spiffe://{TRUST_DOMAIN}/gpuwarden/agent/{node}"


@dataclass
class Witness:
    """Sees everything that is told to observers."""

    results: list[Result] = field(default_factory=list)
    changes: list[Any] = field(default_factory=list)
    challenges: list[str] = field(default_factory=list)
    ends: list[tuple[str | None, str]] = field(default_factory=list)
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)
    hang_ups: list[str] = field(default_factory=list)
    faults: list[tuple[str, Exception]] = field(default_factory=list)
    ended_one: asyncio.Event = field(default_factory=asyncio.Event)

    def appraised(self, result: Result, *, grant: bool, seconds: float) -> None:
        del grant
        assert seconds >= 0
        self.results.append(result)

    def changed(self, changes: Changes, actor: str) -> None:
        assert actor
        self.changes.extend(changes)

    def acted(self, act: Act, order: Order, refusal: Refusal | None) -> None:
        del act, order, refusal

    def opened(self, stream: StreamState) -> None:
        del stream

    def challenged(self, cause: str) -> None:
        self.challenges.append(cause)

    def ended(self, peer: str, node: str | None, cause: str, detail: str) -> None:
        del peer, detail
        self.ends.append((node, cause))
        self.ended_one.set()

    def called(self, method: str, caller: Any, refusal: Any) -> None:
        self.calls.append((method, caller, refusal))

    def hung_up(self, method: str) -> None:
        self.hang_ups.append(method)

    def failed(self, method: str, error: Exception) -> None:
        self.faults.append((method, error))


class TestStore(MemoryEnrollmentStore):
    """The memory store, which a test can take away."""

    __test__ = False
    gone = False

    async def create_if_absent(self, record: Any) -> bool:
        if self.gone:
            raise EnrollmentUnavailableError("taken away")
        return await super().create_if_absent(record)

    async def compare_and_set(self, old: Any, new: Any) -> bool:
        if self.gone:
            raise EnrollmentUnavailableError("taken away")
        return await super().compare_and_set(old, new)


class World:
    """One controller's attestation side, in this process, over TLS."""

    def __init__(
        self,
        settings: VerifierSettings = SLOW,
        *,
        timing: SessionTiming = SessionTiming(),  # noqa: B008 - a value
        messages: Rate = Rate(50.0, 50),  # noqa: B008 - a value
        nodes: tuple[str, ...] = (NODE, "node-2"),
    ) -> None:
        self.ca = SpiffeCa()
        self.svids = FakeSvidSource(self.ca.svid(CONTROLLER))
        self.audit = RecordingAudit()
        self.registry = FleetRegistry()
        self.store = TestStore()
        self.witness = Witness()
        self.table = StreamTable()
        self.usage = PeerUsage(Rate(1000.0, 1000), messages)
        self.policy: Policy = DEFAULT_POLICY
        self.directory = DirectorySnapshot({name: KnownNode() for name in nodes})
        self.tls_errors: list[str] = []
        self.clock = SystemClock()
        self.wall_shift = timedelta()
        self.slept_ns = 0
        """How long this machine was suspended: boot time goes on, as wall time does."""
        verifier = Verifier(settings)
        denials = QuarantineEntries(self.store)
        self.workbench = OperatorService(
            self.store,
            denials,
            self.registry,
            knows=lambda name: name in self.directory.nodes,
            audit=self.audit,
            clock=self.clock,
            observer=self.witness,
        )
        self.intake = EvidenceIntake(
            verifier=verifier,
            store=self.store,
            denials=denials,
            registry=self.registry,
            audit=self.audit,
            known=self.known,
            now=self.now,
            observer=self.witness,
        )
        self.service = AttestationService(
            verifier=verifier,
            intake=self.intake,
            challenger=Challenger(settings, self.svids),
            usage=self.usage,
            table=self.table,
            known=self.known,
            now=self.now,
            jitter=lambda: 0.5,
            observer=self.witness,
            timing=timing,
        )
        self.server: RpcServer

    def known(self) -> Snapshots:
        svid = self.svids.current()
        return Snapshots(
            roots=svid.roots if svid else (),
            directory=self.directory,
            enrollment=self.store.snapshot(),
            policy=self.policy,
        )

    def now(self) -> Moment:
        shift_ns = self.wall_shift // timedelta(microseconds=1) * NS_PER_US
        return Moment(self.boottime_ns(), self.clock.wall_ns() + shift_ns)

    def boottime_ns(self) -> int:
        return self.clock.boottime_ns() + self.slept_ns

    async def __aenter__(self) -> Self:
        interceptor = AuthorizationInterceptor(
            authenticate=tls_caller(
                lambda: self.known().roots, trust_domain=TRUST_DOMAIN, path_prefix="/gpuwarden"
            ),
            observer=self.witness,
            clock=self.clock,
        )
        self.server = agents_server(
            address="127.0.0.1:0",
            credentials=server_credentials(self.svids, self.tls_errors.append),
            interceptor=interceptor,
            services=(
                lambda s: pb_grpc.add_AttestationServiceServicer_to_server(self.service, s),
                lambda s: operator_pb2_grpc.add_OperatorServiceServicer_to_server(
                    OperatorServicer(self.workbench), s
                ),
                lambda s: support_pb2_grpc.add_SupportServiceServicer_to_server(
                    SupportServicer(SupportScene().state().parts), s
                ),
            ),
            max_calls=1000,
        )
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    @property
    def port(self) -> int:
        return int(self.server.address.rpartition(":")[2])

    def client(self, node: str = NODE, **changes: Any) -> AttestClient:
        return AttestClient(self.ca.svid(agent(node)), self.port, node=node, **changes)

    def state(self, node: str = NODE) -> NodeState | None:
        view = self.registry.snapshot().nodes.get(node)
        return view.state(self.boottime_ns()) if view else None
