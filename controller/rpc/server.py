"""The gRPC servers: mTLS for agents and readers, TLS for people, a unix socket for this machine.

Wires services, interceptor and bounds together; decides nothing. Ports may be 0:
`address` tells what was bound.
"""

import os
import socket
import stat
from collections.abc import (
    Callable,
    Iterator,
)
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from controller.rpc.calls import wait_for_left_reads
from controller.rpc.interceptor import MESSAGE_BYTES, AuthorizationInterceptor
from controller.rpc.strict_messages import ENVELOPE_BYTES, REQUEST_BYTES
from gpuwarden.wire.transport import server_options
from gpuwarden.wire.v1 import (
    attestation_pb2,
    audit_pb2,
    fleet_pb2,
    operator_pb2,
    placement_pb2,
    support_pb2,
)

# --- unix socket

_MAX_PATH_BYTES: Final = 107
_CONNECT_SECONDS: Final = 1.0
_OWNER_ONLY: Final = 0o177


class SocketInUseError(OSError):
    """The path cannot be had; says why and what to do."""


def claim_socket(path: Path) -> None:
    """Make the path of the unix socket free for gRPC to bind, or raise SocketInUseError.

    A socket left behind by a dead process is replaced; one that a living server
    answers on, or a file that is no socket, is never touched.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketInUseError(f"listen.local: path longer than {_MAX_PATH_BYTES} bytes: {path}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketInUseError(f"listen.local: {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise SocketInUseError(f"listen.local: {path} exists and is not a socket")
    if _answers(path):
        raise SocketInUseError(f"listen.local: another process serves {path}")
    path.unlink(missing_ok=True)


@contextmanager
def owner_only() -> Iterator[None]:
    """Whatever is created inside belongs to the owner alone (mode 0600), from its first moment."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


# --- servers

_STREAMS_PER_CONNECTION: Final = 32
_HANDSHAKE_MS: Final = 10_000
_CONNECTION_AGE_MS: Final = 31 * 60 * 1000
_CONNECTION_AGE_GRACE_MS: Final = 60 * 1000
_LEFT_READS_SECONDS: Final = 0.5
_IDLE_MS: Final = 5 * 60 * 1000

_METADATA_BYTES: Final = 32 << 10
_CALLS_OF_PEOPLE: Final = 256
"""At a time; each person has a share of their own."""

ATTESTATION: Final = attestation_pb2.DESCRIPTOR.services_by_name["AttestationService"].full_name
FLEET: Final = fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name
OPERATOR: Final = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name
PLACEMENT: Final = placement_pb2.DESCRIPTOR.services_by_name["PlacementService"].full_name
SUPPORT: Final = support_pb2.DESCRIPTOR.services_by_name["SupportService"].full_name
AUDIT: Final = audit_pb2.DESCRIPTOR.services_by_name["AuditService"].full_name
TO_PEOPLE: Final = (FLEET, OPERATOR, PLACEMENT, SUPPORT, AUDIT)
"""What both servers have; agents' streams are not for the socket."""

AddService = Callable[[aio.Server], None]


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A started or startable server with its health service and the address it has."""

    server: aio.Server
    health: HealthServicer
    address: str

    async def start(self) -> None:
        """Begin to serve."""
        await self.server.start()

    async def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING, refuse new calls, let running ones end within the grace, then cut."""
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_seconds)
        await wait_for_left_reads(_LEFT_READS_SECONDS)


class ListenError(OSError):
    """An address could not be bound; names the setting."""


def agents_server(
    *,
    address: str,
    credentials: grpc.ServerCredentials,
    interceptor: AuthorizationInterceptor,
    services: tuple[AddService, ...],
    max_calls: int,
    message_bytes: int = MESSAGE_BYTES,
) -> RpcServer:
    """The mTLS server of all services, health and reflection.

    More than `max_calls` calls at a time are refused with RESOURCE_EXHAUSTED, and so is a message
    that no method takes, before it is read; `message_bytes` is what an agent's payload may have.
    """
    server = aio.server(
        interceptors=(interceptor,),
        options=_options(connection_age=True, message_bytes=message_bytes),
        maximum_concurrent_rpcs=max_calls,
    )
    for add in services:
        add(server)
    _describe(server, ATTESTATION, *TO_PEOPLE)
    servicer = _add_health(server)
    host, _, _ = address.rpartition(":")
    try:
        port = server.add_secure_port(address if host else f"[::]{address}", credentials)
    except RuntimeError as error:
        raise ListenError(f"listen.agents: cannot bind {address}") from error
    return RpcServer(server, servicer, f"{host or '[::]'}:{port}")


def local_server(
    *, path: Path, interceptor: AuthorizationInterceptor, services: tuple[AddService, ...]
) -> RpcServer:
    """The server on a unix socket of mode 0600; the folder must exist."""
    claim_socket(path)
    server = aio.server(interceptors=(interceptor,), options=_options(connection_age=False))
    for add in services:
        add(server)
    _describe(server, *TO_PEOPLE)
    servicer = _add_health(server)
    try:
        with owner_only():
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ListenError(f"listen.local: cannot bind {path}") from error
    return RpcServer(server, servicer, f"unix:{path}")


def people_server(
    *,
    listener: str,
    address: str,
    credentials: grpc.ServerCredentials,
    interceptor: AuthorizationInterceptor,
    services: tuple[AddService, ...],
) -> RpcServer:
    """A server for people; `listener` is the setting of its address.

    Their tokens come in metadata, which may be larger than gRPC allows by itself.
    """
    server = aio.server(
        interceptors=(interceptor,),
        options=(
            *_options(connection_age=True),
            ("grpc.max_metadata_size", _METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ),
        maximum_concurrent_rpcs=_CALLS_OF_PEOPLE,
    )
    for add in services:
        add(server)
    _describe(server, *TO_PEOPLE)
    servicer = _add_health(server)
    host, _, _ = address.rpartition(":")
    try:
        port = server.add_secure_port(address if host else f"[::]{address}", credentials)
    except RuntimeError as error:
        raise ListenError(f"{listener}: cannot bind {address}") from error
    return RpcServer(server, servicer, f"{host or '[::]'}:{port}")


async def set_serving(server: RpcServer, *, ready: bool) -> None:
    """Publish readiness under the empty service name."""
    answer = health_pb2.HealthCheckResponse
    await server.health.set("", answer.SERVING if ready else answer.NOT_SERVING)


def _describe(server: aio.Server, *services: str) -> None:
    """Let those who may ask find out what there is to call."""
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


def _add_health(server: aio.Server) -> HealthServicer:
    servicer = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return servicer


def _options(
    *, connection_age: bool, message_bytes: int = MESSAGE_BYTES
) -> tuple[tuple[str, int], ...]:
    aging = (
        ("grpc.max_connection_age_ms", _CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", _CONNECTION_AGE_GRACE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    )
    return (
        *server_options(max_received_bytes=max(REQUEST_BYTES, message_bytes + ENVELOPE_BYTES)),
        ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        *(aging if connection_age else ()),
    )
