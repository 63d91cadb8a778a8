"""The listeners of a controller, opened in order and closed together.

First what is asked from inside (probes, the unix socket), then scheduler, webhooks and
HTTP API, the agents' last: evidence that arrives finds everything behind it open. The
port of the probes closes last. Must not know what is answered on any of them.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from controller.composition.parts import Parts
from controller.http_server import HttpServer
from controller.ops import OpsServer
from controller.rpc.caller import owner_of_socket
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller, tls_caller
from controller.rpc.server import (
    AddService,
    RpcServer,
    agents_server,
    local_server,
    set_serving,
)
from controller.rpc.support_service import SupportService
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event
from gpuwarden.wire.v1.attestation_pb2_grpc import add_AttestationServiceServicer_to_server
from gpuwarden.wire.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server
from gpuwarden.wire.v1.operator_pb2_grpc import add_OperatorServiceServicer_to_server
from gpuwarden.wire.v1.placement_pb2_grpc import add_PlacementServiceServicer_to_server
from gpuwarden.wire.v1.support_pb2_grpc import add_SupportServiceServicer_to_server

_CALLS_BESIDE_STREAMS: Final = 1000


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


class Listeners:
    """One for the process: `open` once, `close`, and `close_ops` at the very end."""

    def __init__(
        self,
        parts: Parts,
        ops: OpsServer,
        support: SupportService,
        instruments: Instruments,
        log: EventLogger,
    ) -> None:
        self._parts = parts
        self._ops = ops
        self._support = support
        self._instruments = instruments
        self._log = log
        self._rpc: list[RpcServer] = []

    async def open(self, before_agents: Callable[[], Awaitable[None]]) -> Addresses:
        """Open all of them; no agent is heard before `before_agents` is over.

        Raises OSError or SocketInUseError for an address that cannot be had; `close` closes
        what was opened until then.
        """
        parts = self._parts
        ops = await self._ops.start()
        await self._serve(self._local_server())
        extender = await parts.extender.start()
        admission = await _started(parts.admission)
        api = await _started(parts.api)
        await before_agents()
        agents = self._agents_server()
        await self._serve(agents)
        return Addresses(
            agents.address,
            str(Address(*extender)),
            str(ops),
            str(parts.settings.listen.local),
            admission,
            api,
        )

    def announce(self, addresses: Addresses) -> None:
        """A line in the log for each listener that is open."""
        for listener, address in asdict(addresses).items():
            if address:
                self._log.info(Event.LISTENER_OPEN, listener=listener, address=address)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What has to run, each once: certificate files that change are taken into use."""
        parts, tasks = self._parts, {}
        if parts.settings.extender.tls.cert is not None:
            tasks["certificates"] = parts.extender.watch_certificates()
        if parts.admission is not None:
            tasks["admission certificates"] = parts.admission.watch_certificates()
        if parts.api is not None:
            tasks["api certificates"] = parts.api.watch_certificates()
        return tasks

    async def set_serving(self, *, ready: bool) -> None:
        """Publish readiness to who asks over gRPC."""
        for server in self._rpc:
            await set_serving(server, ready=ready)

    def close(self, grace_s: float) -> Sequence[asyncio.Future[None]]:
        """Begin to close all but the port of the probes; running answers may end in time."""
        parts = self._parts
        closing = [one.stop(grace_s) for one in self._rpc]
        others = (parts.extender, parts.admission, parts.api)
        closing.extend(one.stop(grace_s) for one in others if one is not None)
        return [asyncio.ensure_future(one) for one in closing]

    async def close_ops(self) -> None:
        """Close the port of the probes."""
        await self._ops.stop()

    def _local_server(self) -> RpcServer:
        parts, path = self._parts, self._parts.settings.listen.local
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return local_server(
            path=path,
            interceptor=AuthorizationInterceptor(
                authenticate=local_caller(owner_of_socket(os.geteuid())),
                observer=parts.journal,
                clock=parts.clock,
            ),
            services=self._services(),
        )

    def _agents_server(self) -> RpcServer:
        parts, settings = self._parts, self._parts.settings
        return agents_server(
            address=str(settings.listen.agents),
            credentials=server_credentials(
                parts.svids, self._handshake_failed, on_offer=self._handshake_begun
            ),
            interceptor=AuthorizationInterceptor(
                authenticate=tls_caller(
                    lambda: parts.conditions.known().roots,
                    trust_domain=settings.trust_domain,
                    path_prefix=settings.path_prefix,
                ),
                observer=parts.journal,
                clock=parts.clock,
            ),
            services=(
                lambda server: add_AttestationServiceServicer_to_server(parts.attestation, server),
                *self._services(),
            ),
            max_calls=settings.limits.streams + _CALLS_BESIDE_STREAMS,
        )

    def _services(self) -> tuple[AddService, ...]:
        """What both gRPC servers serve."""
        parts = self._parts
        return (
            lambda server: add_FleetServiceServicer_to_server(parts.fleet, server),
            lambda server: add_OperatorServiceServicer_to_server(parts.operator, server),
            lambda server: add_PlacementServiceServicer_to_server(parts.placement, server),
            lambda server: add_SupportServiceServicer_to_server(self._support, server),
        )

    async def _serve(self, server: RpcServer) -> None:
        self._rpc.append(server)
        await set_serving(server, ready=False)
        await server.start()

    def _handshake_begun(self) -> None:
        """Called on gRPC's threads; how the handshake ends, gRPC tells nobody."""
        self._instruments.counter(names.HANDSHAKES).labels("svid").inc()

    def _handshake_failed(self, text: str) -> None:
        """Called on gRPC's threads, once per handshake without usable material of ours."""
        self._instruments.counter(names.TLS_MATERIAL_REFUSED).labels("agents").inc()
        self._instruments.counter(names.HANDSHAKES).labels("no-svid").inc()
        self._log.error(Event.TLS_MATERIAL_REFUSED, reason=text)


async def _started(server: HttpServer | None) -> str:
    """The address that it was bound to; empty where there is no such listener."""
    return "" if server is None else str(Address(*await server.start()))
