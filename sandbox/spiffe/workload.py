"""One simulated workload: which identities it is given, what it holds now, and what goes wrong.

State and its lock only; the gRPC service in `workload_api` reads it. Each change
gets a new number, for which any number of open streams can wait.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from spiffe._proto import workload_pb2

from sandbox.spiffe.ca import InsecureCa, LeafShape, new_key


class Fault(StrEnum):
    """What a Workload API can do to a workload instead of serving it."""

    NONE = "none"
    SOCKET_REMOVED = "socket-removed"
    """The agent is gone: streams break, the socket file does not exist."""
    DENIED = "denied"
    """Streams end with PERMISSION_DENIED, as SPIRE does when no entry matches."""
    REDACTED = "redacted"
    """New calls get PERMISSION_DENIED while open streams stay silent."""
    EMPTY = "empty"
    """An update without any SVID."""
    MALFORMED = "malformed"
    """An update whose certificate is no DER."""
    CANCELLED = "cancelled"
    """Streams end with CANCELLED."""
    EOF = "eof"
    """Streams end with OK."""
    HANG = "hang"
    """Calls are taken and never answered; open streams stay silent."""
    KEY_MISMATCH = "key-mismatch"
    """An update whose key is not the leaf's."""
    EXPIRED = "expired"
    """An update whose leaf ended a minute ago."""
    UNCHAINED = "unchained"
    """An update whose leaf does not lead to the bundle that comes with it."""


ENDING = {Fault.DENIED, Fault.CANCELLED, Fault.EOF}
"""Faults that end open streams."""
SILENT = {Fault.REDACTED, Fault.HANG}
"""Faults in which open streams get nothing."""
_EXPIRED_FOR = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """The CA that issues now, and the whole bundle in DER (overlapping while a CA rotates)."""

    ca: InsecureCa
    bundle: bytes
    federated: dict[str, bytes]


class Workload:
    """The workload behind one socket; `ids` are its SPIFFE IDs in the order they are sent."""

    def __init__(
        self, socket: Path, ids: tuple[str, ...], ttl: timedelta, dns: tuple[str, ...] = ()
    ) -> None:
        self.socket = socket
        self._shape = LeafShape(dns=dns)
        self._ids = ids
        self._ttl = ttl
        self._changed = threading.Condition()
        self._number = 0
        self._fault = Fault.NONE
        self._response = workload_pb2.X509SVIDResponse()

    @property
    def fault(self) -> Fault:
        """What goes wrong at present."""
        return self._fault

    @property
    def ids(self) -> tuple[str, ...]:
        """The identities given to this workload."""
        return self._ids

    def renew(
        self,
        authority: Authority,
        *,
        fault: Fault | None = None,
        ids: tuple[str, ...] | None = None,
    ) -> None:
        """Issue new SVIDs under `authority`, with `fault` and `ids` changed where given."""
        with self._changed:
            self._fault = self._fault if fault is None else fault
            self._ids = self._ids if ids is None else ids
            self._response = self._issue(authority)
            self._number += 1
            self._changed.notify_all()

    def wait_beyond(self, number: int, alive: Callable[[], bool]) -> int:
        """Block until there is a change later than `number` or the caller is not `alive`."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or not alive())
            return self._number

    def wake(self) -> None:
        """Let every waiting caller look whether it is still alive."""
        with self._changed:
            self._changed.notify_all()

    def response(self) -> workload_pb2.X509SVIDResponse:
        """The update for this workload as of now, spoilt by its fault."""
        with self._changed:
            return self._response

    def _issue(self, authority: Authority) -> workload_pb2.X509SVIDResponse:
        if self._fault is Fault.EMPTY:
            return workload_pb2.X509SVIDResponse(federated_bundles=authority.federated)
        svids = [self._issue_one(spiffe_id, authority) for spiffe_id in self._ids]
        return workload_pb2.X509SVIDResponse(svids=svids, federated_bundles=authority.federated)

    def _issue_one(self, spiffe_id: str, authority: Authority) -> workload_pb2.X509SVID:
        ttl = -_EXPIRED_FOR if self._fault is Fault.EXPIRED else self._ttl
        ca = authority.ca
        if self._fault is Fault.UNCHAINED:
            ca = InsecureCa(ca.trust_domain)
        issued = ca.issue(spiffe_id, ttl=ttl, shape=self._shape)
        key = issued.key_pkcs8
        if self._fault is Fault.KEY_MISMATCH:
            key = InsecureCa(ca.trust_domain).issue(spiffe_id, key=new_key()).key_pkcs8
        chain = b"".join(issued.chain_der)
        return workload_pb2.X509SVID(
            spiffe_id=spiffe_id,
            x509_svid=b"no DER" if self._fault is Fault.MALFORMED else chain,
            x509_svid_key=key,
            bundle=authority.bundle,
        )


def bundle_of(*authorities: InsecureCa) -> bytes:
    """Root certificates as the Workload API sends them: DER, one after the other."""
    return b"".join(ca.certificate.public_bytes(Encoding.DER) for ca in authorities)
