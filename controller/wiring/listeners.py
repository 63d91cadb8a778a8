"""The listeners of a controller, opened in order and closed together.

What is asked from inside is opened first (probes, the unix socket), then scheduler, webhooks and
HTTP API, and the agents' listener last: evidence that arrives finds everything behind it open. The
port of the probes closes last. Must not know what is answered on any of them.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from controller.access import owner_of_socket
from controller.operations.readiness import Conditions, ListenerState
from controller.recorders.listeners import show_listener
from controller.recorders.trust import TrustRecorder
from controller.rpc.attestation import AttestationService
from controller.rpc.audit_log import AuditServicer
from controller.rpc.fleet import FleetServicer
from controller.rpc.handshakes import BegunHandshakes
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller, tls_caller
from controller.rpc.server import AddService, RpcServer, agents_server, local_server, set_serving
from controller.rpc.services import OperatorServicer, PlacementServicer, SupportServicer
from controller.rpc.tcp_peers import tcp_peers
from controller.settings import ControllerSettings
from controller.web.extender.extender import ExtenderServer
from controller.web.listener import HttpServer
from controller.web.server import OpsServer
from controller.wiring.people import PeopleAccess
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.svid import SvidSource
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import names
from gpuwarden.telemetry.limited import LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event
from gpuwarden.wire.v1.attestation_pb2_grpc import add_AttestationServiceServicer_to_server
from gpuwarden.wire.v1.audit_pb2_grpc import add_AuditServiceServicer_to_server
from gpuwarden.wire.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server
from gpuwarden.wire.v1.operator_pb2_grpc import add_OperatorServiceServicer_to_server
from gpuwarden.wire.v1.placement_pb2_grpc import add_PlacementServiceServicer_to_server
from gpuwarden.wire.v1.support_pb2_grpc import add_SupportServiceServicer_to_server

_CALLS_BESIDE_STREAMS: Final = 1000
_HANDSHAKES_S: Final = 5.0
_SHOWN_PEERS: Final = 8


@dataclass(frozen=True, slots=True)
class Addresses:
    """What the listeners were bound to; ports are never 0 here."""

    agents: str
    extender: str
    ops: str
    local: str
    admission: str = ""
    """Empty without webhooks."""
    api: str = ""
    """Empty without the HTTP API."""
    access_tokens: str = ""
    """Empty without access for people, as the next."""
    access_certificates: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcServices:
    """What is served over gRPC: `attestation` to agents, the others on the unix socket too."""

    attestation: AttestationService
    fleet: FleetServicer
    operator: OperatorServicer
    placement: PlacementServicer
    support: SupportServicer
    audit: AuditServicer

    def to_people(self) -> tuple[AddService, ...]:
        """What every gRPC server serves."""
        return (
            lambda server: add_FleetServiceServicer_to_server(self.fleet, server),
            lambda server: add_OperatorServiceServicer_to_server(self.operator, server),
            lambda server: add_PlacementServiceServicer_to_server(self.placement, server),
            lambda server: add_SupportServiceServicer_to_server(self.support, server),
            lambda server: add_AuditServiceServicer_to_server(self.audit, server),
        )

    def to_agents(self) -> tuple[AddService, ...]:
        """What the agents' server serves."""
        return (
            lambda server: add_AttestationServiceServicer_to_server(self.attestation, server),
            *self.to_people(),
        )


class Listeners:
    """One for the process: `open` once, `close`, and `close_ops` at the very end."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        ops: OpsServer,
        services: RpcServices,
        extender: ExtenderServer,
        admission: HttpServer | None,
        api: HttpServer | None,
        people: PeopleAccess | None,
        conditions: Conditions,
        svids: SvidSource,
        recorder: TrustRecorder,
        instruments: Instruments,
        notice: str = "",
    ) -> None:
        """`admission` is None without webhooks, `api` without `api.tls`, `people` likewise.

        `notice` comes with every answer over gRPC.
        """
        self._settings = settings
        self._ops = ops
        self._services = services
        self._extender = extender
        self._admission = admission
        self._api = api
        self._people = people
        self._conditions = conditions
        self._svids = svids
        self._recorder = recorder
        self._instruments = instruments
        self._notice = notice
        self._log = logger("controller")
        self._limited = LimitedLog(self._log, instruments)
        self._agents_port = settings.listen.agents.port
        self._begun = BegunHandshakes(time.monotonic, lambda: tcp_peers(self._agents_port))
        self._rpc: list[RpcServer] = []
        self._http = tuple(one for one in (ops, extender, admission, api) if one is not None)
        for one in self._http:
            show_listener(one, instruments)

    async def open(
        self,
        before_tls: Callable[[], Awaitable[None]],
        before_agents: Callable[[], Awaitable[None]],
    ) -> Addresses:
        """Open all of them; no agent is heard before `before_agents` is over.

        Listeners whose certificates come later open when `before_tls` is over. Raises OSError or
        SocketInUseError for an address that cannot be had, and TlsFilesError where certificates
        did not come; `close` closes what was opened until then.
        """
        ops = await _started(self._ops)
        await self._serve(self._local_server())
        await before_tls()
        extender = await _started(self._extender)
        admission = await _started(self._admission)
        api = await _started(self._api)
        people = await self._serve_people()
        await before_agents()
        agents = self._agents_server()
        await self._serve(agents)
        self._agents_port = int(agents.address.rpartition(":")[2])
        return Addresses(
            agents.address,
            extender,
            ops,
            str(self._settings.listen.local),
            admission,
            api,
            *people,
        )

    def announce(self, addresses: Addresses) -> None:
        """A line in the log for each listener that is open."""
        for listener, address in asdict(addresses).items():
            if address:
                self._log.info(Event.LISTENER_OPEN, listener=listener, address=address)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What has to run, each once: changed certificates are taken, lost handshakes counted."""
        tasks = {"handshakes": self._watch_handshakes()}
        if self._settings.extender.tls.cert is not None:
            tasks["certificates"] = self._extender.watch_certificates()
        if self._admission is not None:
            tasks["admission certificates"] = self._admission.watch_certificates()
        if self._api is not None:
            tasks["api certificates"] = self._api.watch_certificates()
        if self._people is not None:
            tasks |= self._people.tasks()
        return tasks

    def warnings(self) -> tuple[str, ...]:
        """What somebody should know of the listeners: refused clients, certificates that end."""
        people = () if self._people is None else self._people.warnings()
        return (*(text for one in self._http for text in one.warnings()), *people)

    def states(self) -> tuple[ListenerState, ...]:
        """What those with certificates from files show and demand."""
        people = None if self._people is None else self._people.state()
        states = [
            ListenerState(one.name, one.tls.certificates, one.clients is not None, one.client_ends)
            for one in self._http
            if one.tls is not None
        ]
        return tuple(states) if people is None else (*states, people)

    async def set_serving(self, *, ready: bool) -> None:
        """Publish readiness to who asks over gRPC."""
        for server in self._rpc:
            await set_serving(server, ready=ready)

    async def leave(self, within_s: float) -> None:
        """Send the clients of extender, webhooks and HTTP API elsewhere; those answer on."""
        await asyncio.gather(*(one.leave(within_s) for one in self._to_leave()))

    def close(self, grace_s: float) -> Sequence[asyncio.Future[None]]:
        """Begin to close all but the port of the probes; running answers may end in time."""
        closing = [one.stop(grace_s) for one in self._rpc]
        closing.extend(one.stop(grace_s) for one in self._to_leave())
        return [asyncio.ensure_future(one) for one in closing]

    def _to_leave(self) -> tuple[HttpServer, ...]:
        """All that speak HTTP but the port of the probes."""
        return tuple(one for one in self._http if one is not self._ops)

    async def close_ops(self) -> None:
        """Close the port of the probes."""
        await self._ops.stop()

    def _local_server(self) -> RpcServer:
        path = self._settings.listen.local
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return local_server(
            path=path,
            interceptor=AuthorizationInterceptor(
                authenticate=local_caller(owner_of_socket(os.geteuid())),
                observer=self._recorder,
                clock=self._conditions.clock,
                notice=self._notice,
            ),
            services=self._services.to_people(),
        )

    def _agents_server(self) -> RpcServer:
        settings = self._settings
        return agents_server(
            address=str(settings.listen.agents),
            credentials=server_credentials(
                self._svids, self._handshake_failed, on_offer=self._handshake_begun
            ),
            interceptor=AuthorizationInterceptor(
                authenticate=tls_caller(
                    lambda: self._conditions.known().roots,
                    trust_domain=settings.trust_domain,
                    path_prefix=settings.path_prefix,
                    connected=self._begun.called,
                ),
                observer=self._recorder,
                clock=self._conditions.clock,
                message_bytes=settings.limits.message_bytes,
                notice=self._notice,
            ),
            services=self._services.to_agents(),
            max_calls=settings.limits.streams + _CALLS_BESIDE_STREAMS,
            message_bytes=settings.limits.message_bytes,
        )

    async def _serve_people(self) -> tuple[str, str]:
        """Their addresses; empty where there are no such listeners."""
        if self._people is None:
            return "", ""
        servers = self._people.servers(self._services.to_people(), self._recorder, self._notice)
        for server in servers:
            await self._serve(server)
        by_token, by_certificate = servers
        return by_token.address, by_certificate.address

    async def _serve(self, server: RpcServer) -> None:
        self._rpc.append(server)
        await set_serving(server, ready=False)
        await server.start()

    def _handshake_begun(self) -> None:
        """Called on gRPC's threads; gRPC tells nobody how the handshake ends."""
        self._begun.begun()
        self._instruments.counter(names.HANDSHAKES).labels("svid").inc()

    def _handshake_failed(self, text: str) -> None:
        """Called on gRPC's threads, once per handshake without a usable SVID of this process."""
        self._instruments.counter(names.TLS_MATERIAL_REFUSED).labels("agents").inc()
        self._instruments.counter(names.HANDSHAKES).labels("no-svid").inc()
        self._count_failures("no-svid", 1)
        self._limited.error(Event.TLS_MATERIAL_REFUSED, key=text, listener="agents", reason=text)

    async def _watch_handshakes(self) -> None:
        while True:
            await asyncio.sleep(_HANDSHAKES_S)
            failed = self._begun.take_failed()
            if failed.count:
                self._count_failures("no-call", failed.count)
                self._limited.warning(
                    Event.TLS_HANDSHAKE_FAILED,
                    listener="agents",
                    cause="no-call",
                    count=failed.count,
                    peer=", ".join(failed.peers[:_SHOWN_PEERS]) or "not seen yet",
                    reason="connections without a call; gRPC does not say why, the log of the"
                    " agent at that address does (tunnel.failed)",
                )

    def _count_failures(self, cause: str, count: int) -> None:
        self._instruments.counter(names.HANDSHAKE_FAILURES).labels("agents", cause).inc(count)


async def _started(server: HttpServer | None) -> str:
    """The address that it was bound to; empty where there is no such listener."""
    return "" if server is None else str(Address(*await server.start()))
