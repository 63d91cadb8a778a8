"""Calls a controller over its unix socket, with an SVID through an mTLS tunnel, or a kubeconfig.

One command, one connection. Every failure becomes a CliError with its exit code; text from the
controller is escaped. Credentials are read once and not renewed. Prints nothing but the
controller's notice that nothing is proven.
"""

import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from grpc import aio

from gpuwarden.cli.connection.audit_client import AuditClient
from gpuwarden.cli.connection.options import Connection, chosen_server
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.terminal import shown
from gpuwarden.identity.chain import ChainError, spiffe_id_of
from gpuwarden.identity.spiffe_id import Role, SpiffeId, SpiffeIdError, parse_spiffe_id
from gpuwarden.identity.svid import Offer, OfferRefusedError, Svid, appraise
from gpuwarden.identity.tunnel import DialFailure, Tunnel, TunnelTimeouts
from gpuwarden.support.part import CONTROLLER_PARTS, MAX_PART_BYTES, Part, missing
from gpuwarden.wire.error_metadata import NOTICE_KEY, REASON_KEY
from gpuwarden.wire.transport import client_options
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as place
from gpuwarden.wire.v1 import support_pb2 as sup
from gpuwarden.wire.v1.fleet_pb2_grpc import FleetServiceStub
from gpuwarden.wire.v1.operator_pb2_grpc import OperatorServiceStub
from gpuwarden.wire.v1.placement_pb2_grpc import PlacementServiceStub
from gpuwarden.wire.v1.support_pb2_grpc import SupportServiceStub

if TYPE_CHECKING:
    from gpuwarden.cli.connection.cluster_connection import Way
    from gpuwarden.wire.v1.fleet_pb2_grpc import FleetServiceAsyncStub
    from gpuwarden.wire.v1.operator_pb2_grpc import OperatorServiceAsyncStub
    from gpuwarden.wire.v1.placement_pb2_grpc import PlacementServiceAsyncStub
    from gpuwarden.wire.v1.support_pb2_grpc import SupportServiceAsyncStub

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
Explain = Callable[[aio.AioRpcError], CliError]

_MAX_PORT: Final = 65535
_EXIT: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: ExitCode.USAGE,
    grpc.StatusCode.PERMISSION_DENIED: ExitCode.NOT_AUTHORISED,
    grpc.StatusCode.UNAUTHENTICATED: ExitCode.NOT_AUTHORISED,
    grpc.StatusCode.UNAVAILABLE: ExitCode.NOT_REACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: ExitCode.TIMEOUT,
}
_MAX_LIFETIME: Final = timedelta(days=31)
"""Operators may hold longer SVIDs than workloads; the server has its own limit."""
_MAX_PEM_BYTES: Final = 1024 * 1024
_FETCH_SECONDS: Final = 5.0
_READERS: Final = frozenset({Role.INSPECTOR, Role.OPERATOR})


class Client:
    """The methods of all services, with a time limit; each raises CliError."""

    def __init__(
        self,
        channel: aio.Channel,
        timeout: float,
        explain: Explain,
        noticed: set[str] | None = None,
    ) -> None:
        """`noticed` is shared by clients of one command, so that each notice is printed once."""
        self._fleet: FleetServiceAsyncStub = FleetServiceStub(channel)
        self._operator: OperatorServiceAsyncStub = OperatorServiceStub(channel)
        self._placement: PlacementServiceAsyncStub = PlacementServiceStub(channel)
        self._support: SupportServiceAsyncStub = SupportServiceStub(channel)
        self._timeout = timeout
        self._explain = explain
        self._noticed = set[str]() if noticed is None else noticed
        self.log = AuditClient(channel, timeout, explain, self._notice)
        """The audit log of the replica."""

    async def nodes(self) -> pb.ListNodesResponse:
        """All nodes."""
        return await self._answer(self._fleet.ListNodes, pb.ListNodesRequest())

    async def status(self) -> pb.GetStatusResponse:
        """The controller and its fleet in numbers."""
        return await self._answer(self._fleet.GetStatus, pb.GetStatusRequest())

    async def node(self, name: str) -> pb.GetNodeResponse:
        """One node with its GPUs."""
        return await self._answer(self._fleet.GetNode, pb.GetNodeRequest(name=name))

    async def gpus(self, node: str) -> pb.ListGpusResponse:
        """All GPUs, or those of one node."""
        return await self._answer(self._fleet.ListGpus, pb.ListGpusRequest(node=node))

    async def classes(self) -> pb.ListClassesResponse:
        """All classes."""
        return await self._answer(self._fleet.ListClasses, pb.ListClassesRequest())

    async def attestation_class(self, reference: str) -> pb.Class:
        """The class behind a hash, a prefix of one, or a name."""
        request = pb.GetClassRequest(class_ref=reference)
        return (await self._answer(self._fleet.GetClass, request)).attestation_class

    async def explanation(self, name: str) -> pb.ExplainNodeResponse:
        """Why a node is or is not eligible."""
        return await self._answer(self._fleet.ExplainNode, pb.ExplainNodeRequest(name=name))

    async def fit(self, pod_json: bytes, namespace: str) -> pb.FitPodResponse:
        """Which nodes would pass for a pod."""
        request = pb.FitPodRequest(pod_json=pod_json, namespace=namespace)
        return await self._answer(self._fleet.FitPod, request)

    async def accept(
        self, name: str, reason: str, expected: str, claimed_by: str = ""
    ) -> ops.AcceptNodeResponse:
        """Accept the hardware that a node shows."""
        request = ops.AcceptNodeRequest(
            name=name, reason=reason, expected_version=expected, claimed_by=claimed_by
        )
        return await self._answer(self._operator.AcceptNode, request)

    async def quarantine(
        self, name: str, reason: str, claimed_by: str = ""
    ) -> ops.QuarantineNodeResponse:
        """Quarantine a node."""
        request = ops.QuarantineNodeRequest(name=name, reason=reason, claimed_by=claimed_by)
        return await self._answer(self._operator.QuarantineNode, request)

    async def release(
        self, name: str, reason: str, expected: str, claimed_by: str = ""
    ) -> ops.ReleaseNodeResponse:
        """Release a node from quarantine."""
        request = ops.ReleaseNodeRequest(
            name=name, reason=reason, expected_version=expected, claimed_by=claimed_by
        )
        return await self._answer(self._operator.ReleaseNode, request)

    async def release_gpu(
        self, gpu: str, reservation: str, reason: str, claimed_by: str = ""
    ) -> ops.ReleaseGpuResponse:
        """Release one GPU from one reservation."""
        request = ops.ReleaseGpuRequest(
            gpu=gpu, reservation=reservation, reason=reason, claimed_by=claimed_by
        )
        return await self._answer(self._operator.ReleaseGpu, request)

    async def reservations(self, node: str, namespace: str) -> list[place.Reservation]:
        """All reservations, or those on a node or of a namespace; page by page."""
        found: list[place.Reservation] = []
        after = ""
        while True:
            request = place.ListReservationsRequest(node=node, namespace=namespace, after=after)
            page = await self._answer(self._placement.ListReservations, request)
            found += page.reservations
            if page.next_after <= after:
                return found
            after = page.next_after

    async def evicted(self, node: str) -> tuple[int, list[place.EvictedPod]]:
        """Number of nodes, and their pods that protection evicts; page by page."""
        found: list[place.EvictedPod] = []
        after = ""
        while True:
            request = place.CheckProtectionRequest(node=node, after=after)
            page = await self._answer(self._placement.CheckProtection, request)
            found += page.pods
            if page.next_after <= after:
                return page.nodes, found
            after = page.next_after

    async def account(self, namespace: str, name: str) -> place.ExplainPodResponse:
        """What a pod required, and the GPUs that it got."""
        request = place.ExplainPodRequest(namespace=namespace, name=name)
        return await self._answer(self._placement.ExplainPod, request)

    async def use(self, namespace: str) -> place.ListUseResponse:
        """GPUs that are used otherwise than reserved, or reserved and not used."""
        request = place.ListUseRequest(namespace=namespace)
        return await self._answer(self._placement.ListUse, request)

    async def support(self) -> list[Part]:
        """The controller's parts of a support bundle."""
        parts: dict[str, Part] = {}
        try:
            call = self._support.Collect(sup.CollectRequest(), timeout=self._timeout)
            async for one in call:
                await self._notice(call)
                _join(parts, one)
        except aio.AioRpcError as error:
            if not parts:
                raise self._explain(error) from None
        return list(parts.values())

    async def watch(self) -> AsyncIterator[pb.WatchNodesResponse]:
        """The present nodes, then changes, without a time limit."""
        try:
            call = self._fleet.WatchNodes(pb.WatchNodesRequest())
            async for message in call:
                await self._notice(call)
                yield message
        except aio.AioRpcError as error:
            raise self._explain(error) from None

    async def _answer(self, method: "aio.UnaryUnaryMultiCallable[Q, A]", request: Q) -> A:
        try:
            call = method(request, timeout=self._timeout)
            answer = await call
            await self._notice(call)
        except aio.AioRpcError as error:
            raise self._explain(error) from None
        return answer

    async def _notice(self, call: "aio.Call") -> None:
        """Print the controller's notice, once."""
        for key, value in await call.initial_metadata():
            if key == NOTICE_KEY and str(value) not in self._noticed:
                self._noticed.add(str(value))
                sys.stderr.write(f"*** {shown(str(value))} ***\n")


def _join(parts: dict[str, Part], one: sup.CollectResponse) -> None:
    """Add a chunk to its part; CliError where that grows beyond all bounds."""
    if one.part not in CONTROLLER_PARTS:
        return
    known = parts.get(one.part)
    content = (known.content or b"" if known else b"") + one.content
    if len(content) > MAX_PART_BYTES:
        parts[one.part] = missing(one.part, f"larger than {MAX_PART_BYTES} bytes")
    elif one.missing:
        parts[one.part] = missing(one.part, one.missing)
    elif known is None:
        parts[one.part] = Part(one.part, content, "", tuple(one.withheld), one.left_out)
    elif known.content is not None:
        parts[one.part] = replace(known, content=content)


@asynccontextmanager
async def connected(connection: Connection) -> AsyncIterator[Client]:
    """An open connection; raises CliError where none can be had."""
    server = chosen_server(connection)
    if not server:
        # Imported here: who asks a socket need not wait for it.
        from gpuwarden.cli.connection.cluster_connection import open_way  # noqa: PLC0415 - see above

        async with open_way(connection) as way, over_way(connection, way) as client:
            yield client
        return
    if server.startswith("unix:"):
        path = Path(server.removeprefix("unix:").removeprefix("//"))
        _demand_socket(path)
        async with aio.insecure_channel(f"unix:{path}", options=client_options()) as channel:
            yield Client(channel, connection.timeout, _failure)
        return
    host, port = address_of(server)
    async with over_mtls(connection, own_svid(connection), host, port) as client:
        yield client


@asynccontextmanager
async def over_mtls(
    connection: Connection, svid: Svid, host: str, port: int, noticed: set[str] | None = None
) -> AsyncIterator[Client]:
    """An mTLS tunnel to one address, with this SVID; raises CliError."""
    expected = expected_controller(connection, svid.spiffe_id)
    timeouts = TunnelTimeouts(dial=connection.timeout)
    async with Tunnel(svid, host, port, expected, timeouts=timeouts) as tunnel:
        explain = _tunnelled(tunnel, address_text(host, port))
        async with tunnel.channel() as channel:
            yield Client(channel, connection.timeout, explain, noticed)


@asynccontextmanager
async def over_way(
    connection: Connection, way: "Way", noticed: set[str] | None = None
) -> AsyncIterator[Client]:
    """TLS with the controller itself, through a port that the API server forwards.

    gRPC sends the token to a server that it has verified, and to no other.
    """
    given = way.credentials
    by_certificate = bool(given.certificate)
    try:
        credentials = grpc.ssl_channel_credentials(
            way.authority,
            given.key if by_certificate else None,
            given.certificate if by_certificate else None,
        )
        if not by_certificate:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.access_token_call_credentials(given.token)
            )
    except ValueError:
        text = "kubeconfig: client certificate and key; expected PEM"
        raise CliError(ExitCode.USAGE, text) from None
    options = (*client_options(), ("grpc.ssl_target_name_override", way.server_name))
    async with aio.secure_channel(way.target, credentials, options=options) as channel:
        yield Client(channel, connection.timeout, _forwarded(way, by_certificate), noticed)


def _forwarded(way: "Way", by_certificate: bool) -> Explain:  # noqa: FBT001 - which credentials
    """Errors as `_failure` maps them; where no session came about, with what could be the cause."""

    def explain(error: aio.AioRpcError) -> CliError:
        if way.trouble is not None:
            return way.trouble
        failure = _failure(error)
        if failure.code is not ExitCode.NOT_REACHABLE or REASON_KEY in dict(
            error.trailing_metadata() or ()
        ):
            return failure
        hint = f"its certificate must be for {way.server_name} by ConfigMap gpuwarden-access"
        if by_certificate:
            hint += ", and yours by the cluster's own client CA"
        return CliError(failure.code, f"no TLS session with the controller ({hint}): {failure}")

    return explain


def _demand_socket(path: Path) -> None:
    try:
        found = path.is_socket()
    except PermissionError:
        _deny_socket(path)
    if not found:
        text = f"no controller listens at unix:{path}; give --server, or a --kubeconfig"
        raise CliError(ExitCode.NOT_REACHABLE, text)
    if not os.access(path, os.R_OK | os.W_OK):
        _deny_socket(path)


def _deny_socket(path: Path) -> NoReturn:
    raise CliError(ExitCode.NOT_AUTHORISED, f"unix:{path} may only be opened by its owner")


def address_of(server: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; raises CliError."""
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        text = f"--server: expected unix:PATH or HOST:PORT, got '{shown(server[:80])}'"
        raise CliError(ExitCode.USAGE, text)
    if not 0 < int(port[:6]) <= _MAX_PORT:
        raise CliError(ExitCode.USAGE, f"--server: port {port[:6]} is not between 1 and 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_text(host: str, port: int) -> str:
    """`HOST:PORT`, as the option takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tunnelled(tunnel: Tunnel, server: str) -> Explain:
    """Errors as `_failure` maps them; a failed dial has a better reason than gRPC gives."""

    def explain(error: aio.AioRpcError) -> CliError:
        dial = tunnel.last_error
        if dial is None:
            return _failure(error)
        refused = dial.failure is DialFailure.REFUSED
        code = ExitCode.NOT_AUTHORISED if refused else ExitCode.NOT_REACHABLE
        return CliError(code, f"{shown(server)}: {dial}")

    return explain


def _failure(error: aio.AioRpcError) -> CliError:
    code = _EXIT.get(error.code(), ExitCode.ERROR)
    text = shown(error.details() or error.code().name)
    if code is ExitCode.TIMEOUT:
        text = "no answer in time; see --timeout"
    return CliError(code, text)


# --- credentials


def own_svid(connection: Connection) -> Svid:
    """The SVID that the options name, from files or the Workload API; raises CliError."""
    given = {"--svid": connection.svid, "--key": connection.key, "--bundle": connection.bundle}
    if not any(given.values()):
        return _from_workload_api(connection.workload_api)
    missing = [name for name, path in given.items() if path is None]
    if missing:
        raise CliError(ExitCode.USAGE, f"{' and '.join(missing)} missing; all three go together")
    return _from_files(*(path for path in given.values() if path is not None))


def expected_controller(connection: Connection, own: SpiffeId) -> SpiffeId:
    """The SPIFFE ID that the controller must have; raises CliError."""
    if connection.controller_id is not None:
        try:
            return parse_spiffe_id(connection.controller_id)
        except SpiffeIdError as error:
            raise CliError(ExitCode.USAGE, f"--controller-id: {error}") from None
    prefix, _, role = own.path.rpartition("/")[0].rpartition("/")
    if role in set(Role):
        return SpiffeId(own.trust_domain, f"{prefix}/{Role.CONTROLLER}")
    raise CliError(ExitCode.USAGE, f"{own} has no path prefix; give --controller-id")


def is_reader(spiffe_id: SpiffeId) -> bool:
    """Whether the identity has a role that may read the fleet, whatever the path prefix."""
    return spiffe_id.path.rpartition("/")[0].rpartition("/")[2] in _READERS


def _from_files(svid: Path, key: Path, bundle: Path) -> Svid:
    chain = _certificates("--svid", svid)
    try:
        private_key = load_pem_private_key(_read("--key", key, secret=True), password=None)
        spiffe_id = spiffe_id_of(chain[0])
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise CliError(ExitCode.USAGE, f"--key: {key} is not an unencrypted PEM key") from None
    except (ChainError, SpiffeIdError) as error:
        raise CliError(ExitCode.USAGE, f"--svid: {svid}: {error}") from None
    roots = tuple(_certificates("--bundle", bundle))
    return _appraised(Offer(str(spiffe_id), private_key, tuple(chain), roots, (str(spiffe_id),)))


def _from_workload_api(endpoint: str | None) -> Svid:
    # Imported here: the library takes longer to load than a local question takes to answer.
    from gpuwarden.identity.workload_api import (  # noqa: PLC0415 - see above
        SpiffeWorkloadApi,
        WorkloadApiDeniedError,
        WorkloadApiError,
    )

    if not endpoint:
        text = "no SVID: give --svid, --key and --bundle, or --workload-api"
        raise CliError(ExitCode.USAGE, text)
    api = SpiffeWorkloadApi(
        endpoint, is_reader, fetch_timeout=_FETCH_SECONDS, first_update_timeout=_FETCH_SECONDS
    )
    try:
        offer = api.fetch()
    except WorkloadApiError as error:
        denied = isinstance(error, WorkloadApiDeniedError)
        code = ExitCode.NOT_AUTHORISED if denied else ExitCode.NOT_REACHABLE
        raise CliError(code, f"Workload API at {endpoint}: {error}") from None
    if not any(is_reader(parse_spiffe_id(offered)) for offered in offer.offered):
        text = f"Workload API offers no inspector or operator, only {', '.join(offer.offered[:8])}"
        raise CliError(ExitCode.NOT_AUTHORISED, text)
    return _appraised(offer)


def _appraised(offer: Offer) -> Svid:
    try:
        return appraise(offer, lambda _: True, datetime.now(UTC), _MAX_LIFETIME, generation=1)
    except OfferRefusedError as error:
        raise CliError(ExitCode.NOT_AUTHORISED, f"own SVID cannot be used: {error}") from None


def _certificates(option: str, path: Path) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(option, path))
    except ValueError:
        raise CliError(ExitCode.USAGE, f"{option}: {path} holds no PEM certificates") from None


def _read(option: str, path: Path, *, secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if secret and os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
                raise CliError(ExitCode.USAGE, f"{option}: {path} is open to others; chmod o= it")
            content = file.read(_MAX_PEM_BYTES + 1)
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"{option}: {path}: {error.strerror}") from None
    if len(content) > _MAX_PEM_BYTES:
        raise CliError(ExitCode.USAGE, f"{option}: {path} is larger than {_MAX_PEM_BYTES} bytes")
    return content
