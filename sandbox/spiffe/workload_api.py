"""A SPIFFE Workload API server with a throwaway CA: one unix socket per simulated workload.

Source: SPIFFE Workload API standard sections 3 (the `workload.spiffe.io` header)
and 5 (X.509-SVID profile). A workload is whoever can open its socket; nothing is
attested. JWT methods answer UNIMPLEMENTED. Message classes come from `spiffe`,
so that client and server agree on the wire by construction.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, Self

import grpc
from spiffe._proto import workload_pb2, workload_pb2_grpc

from sandbox.spiffe.ca import InsecureCa
from sandbox.spiffe.workload import ENDING, SILENT, Authority, Fault, Workload, bundle_of

_LOG = logging.getLogger(__name__)
_HEADER = ("workload.spiffe.io", "true")
_STREAMS_PER_SOCKET = 32
_NO_IDENTITY = "no identity issued"


class InsecureWorkloadApi:
    """A trust domain on this machine: workloads by name, each with its socket `<name>.sock`.

    Thread-safe. `ttl` is the lifetime of SVIDs; with `rotate_every` they are renewed
    by themselves, as SPIRE does at half of the lifetime. With `intermediates` that many
    CAs stand between the root and the leaves.
    """

    def __init__(
        self,
        directory: Path,
        trust_domain: str = "example.org",
        *,
        ttl: timedelta = timedelta(hours=1),
        rotate_every: timedelta | None = None,
        intermediates: int = 0,
        federated: Mapping[str, InsecureCa] | None = None,
    ) -> None:
        _LOG.warning(
            "INSECURE: throwaway SPIFFE trust domain %s in %s; never use it with real workloads",
            trust_domain,
            directory,
        )
        self.trust_domain = trust_domain
        self._directory = directory
        self._ttl = ttl
        self._intermediates = intermediates
        self._federated = {
            f"spiffe://{name}": bundle_of(ca) for name, ca in (federated or {}).items()
        }
        self._lock = threading.RLock()
        self._roots = [InsecureCa(trust_domain)]
        self._issuer = self._issuer_below(self._roots[0])
        self._sockets: dict[str, _Socket] = {}
        self._stopped = threading.Event()
        if rotate_every is not None:
            threading.Thread(
                target=self._rotate_forever, args=(rotate_every.total_seconds(),), daemon=True
            ).start()

    @property
    def ca(self) -> InsecureCa:
        """The CA that issues at present."""
        return self._issuer

    @property
    def roots(self) -> tuple[InsecureCa, ...]:
        """The roots of the bundle, newest first."""
        return tuple(self._roots)

    def add(self, name: str, *ids: str, dns: tuple[str, ...] = ()) -> str:
        """Start serving a workload; returns its endpoint, `unix://…`."""
        with self._lock:
            if name in self._sockets:
                raise ValueError(f"there is a workload {name} already")
            workload = Workload(self._directory / f"{name}.sock", ids, self._ttl, dns)
            workload.renew(self._authority())
            self._sockets[name] = _Socket(workload)
            self._sockets[name].open()
            return f"unix://{workload.socket}"

    def remove(self, name: str) -> None:
        """Stop serving a workload and forget it."""
        with self._lock:
            self._sockets.pop(name).close()

    def assign(self, name: str, *ids: str) -> None:
        """Give a workload other identities."""
        with self._lock:
            self._sockets[name].workload.renew(self._authority(), ids=ids)

    def rotate(self, name: str | None = None) -> None:
        """Issue new SVIDs to one workload, or to all."""
        with self._lock:
            for socket in self._chosen(name):
                socket.workload.renew(self._authority())

    def rotate_ca(self) -> None:
        """A new root issues from now on; the old ones stay in the bundle until `retire_ca`."""
        with self._lock:
            self._roots.insert(0, InsecureCa(self.trust_domain))
            self._issuer = self._issuer_below(self._roots[0])
            self.rotate()

    def retire_ca(self) -> None:
        """Take all but the newest root out of the bundle."""
        with self._lock:
            del self._roots[1:]
            self.rotate()

    def fault(self, name: str | None, fault: Fault) -> None:
        """Let something go wrong for one workload or for all; `Fault.NONE` repairs it."""
        with self._lock:
            for socket in self._chosen(name):
                if fault is Fault.SOCKET_REMOVED:
                    socket.close()
                socket.workload.renew(self._authority(), fault=fault)
                if fault is not Fault.SOCKET_REMOVED:
                    socket.open()

    def status(self) -> dict[str, dict[str, object]]:
        """Each workload's socket, identities and fault, for the control program."""
        with self._lock:
            return {
                name: {
                    "socket": str(socket.workload.socket),
                    "ids": list(socket.workload.ids),
                    "fault": socket.workload.fault.value,
                }
                for name, socket in self._sockets.items()
            }

    def close(self) -> None:
        """End all streams and remove all sockets."""
        self._stopped.set()
        with self._lock:
            for socket in self._sockets.values():
                socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _authority(self) -> Authority:
        return Authority(self._issuer, bundle_of(*self._roots), self._federated)

    def _issuer_below(self, ca: InsecureCa) -> InsecureCa:
        for _ in range(self._intermediates):
            ca = InsecureCa(self.trust_domain, issuer=ca)
        return ca

    def _chosen(self, name: str | None) -> Sequence["_Socket"]:
        return list(self._sockets.values()) if name is None else [self._sockets[name]]

    def _rotate_forever(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            self.rotate()


@dataclass
class _Socket:
    """The gRPC server of one workload, which can go away and come back."""

    workload: Workload
    server: grpc.Server | None = None

    def open(self) -> None:
        if self.server is not None:
            return
        self.server = grpc.server(
            ThreadPoolExecutor(_STREAMS_PER_SOCKET, thread_name_prefix="workload-api"),
            options=[("grpc.so_reuseport", 0)],
        )
        workload_pb2_grpc.add_SpiffeWorkloadAPIServicer_to_server(  # type: ignore[no-untyped-call] # generated without types
            _Service(self.workload), self.server
        )
        self.server.add_insecure_port(f"unix:{self.workload.socket}")
        self.server.start()

    def close(self) -> None:
        if self.server is None:
            return
        self.server.stop(grace=None).wait()
        self.server = None
        self.workload.socket.unlink(missing_ok=True)


class _Service(workload_pb2_grpc.SpiffeWorkloadAPIServicer):
    """Serves one workload; whatever it does not override answers UNIMPLEMENTED."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def FetchX509SVID(  # noqa: N802 - the name of the method in the standard
        self, request: workload_pb2.X509SVIDRequest, context: grpc.ServicerContext
    ) -> Iterator[workload_pb2.X509SVIDResponse]:
        """Send the SVIDs now and after each change."""
        del request
        yield from self._updates(context)

    def FetchX509Bundles(  # noqa: N802 - the name of the method in the standard
        self, request: workload_pb2.X509BundlesRequest, context: grpc.ServicerContext
    ) -> Iterator[workload_pb2.X509BundlesResponse]:
        """Send the bundles now and after each change."""
        del request
        for response in self._updates(context):
            bundles = dict(response.federated_bundles)
            for svid in response.svids:
                trust_domain = svid.spiffe_id.removeprefix("spiffe://").partition("/")[0]
                bundles[f"spiffe://{trust_domain}"] = svid.bundle
            yield workload_pb2.X509BundlesResponse(bundles=bundles)

    def _updates(self, context: grpc.ServicerContext) -> Iterator[workload_pb2.X509SVIDResponse]:
        if _HEADER not in {(key, value) for key, value in context.invocation_metadata()}:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "security header missing")
        context.add_callback(self._workload.wake)
        if self._workload.fault is Fault.REDACTED:
            _end(context, Fault.DENIED)
        seen = 0
        while context.is_active():
            seen = self._workload.wait_beyond(seen, context.is_active)
            fault = self._workload.fault
            if fault in ENDING:
                if fault is Fault.EOF:
                    return
                _end(context, fault)
            if fault not in SILENT:
                yield self._workload.response()


def _end(context: grpc.ServicerContext, fault: Fault) -> NoReturn:
    if fault is Fault.CANCELLED:
        context.abort(grpc.StatusCode.CANCELLED, "cancelled by the sandbox")
    context.abort(grpc.StatusCode.PERMISSION_DENIED, _NO_IDENTITY)
