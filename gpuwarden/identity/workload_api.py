"""The SPIFFE Workload API through the `spiffe` library: one fetch, or a watch.

Translates the library's classes and errors and judges nothing; see
`svid` and `watchdog`. Calls block, and the library calls back on its own threads.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from spiffe import WorkloadApiClient, X509Bundle, X509Source, X509Svid
from spiffe.errors import PySpiffeError

from gpuwarden.identity.svid import Offer, Wanted, choose

_SHOWN_TEXT = 200
WAKE_S = 10.0
"""Longest sleep of a thread of the library that waits for an update.

gRPC's blocking calls wake ten times a second, for signals that only the main thread gets,
and there is no setting. An idle agent would spend most of its time on that. What is waited
for ends the sleep at once, whatever its length. See docs/adr/0014.
"""
_CONSTANT: Final = "MAXIMUM_WAIT_TIMEOUT"


def sleep_longer() -> bool:
    """Let blocking calls of gRPC in this process sleep longer; False where gRPC has no such thing.

    Then they wake often, which costs time and nothing else.
    """
    try:
        private = import_module("grpc._common")
    except ImportError:
        return False
    if not isinstance(getattr(private, _CONSTANT, None), float):
        return False
    setattr(private, _CONSTANT, WAKE_S)
    return True


class WorkloadApiError(Exception):
    """The Workload API gave no usable answer; one line for people."""


class WorkloadApiDeniedError(WorkloadApiError):
    """The Workload API answered that this process has no identity (PERMISSION_DENIED)."""


class SpiffeWorkloadApi:
    """The Workload API at `endpoint` (`unix:///path` or a path), for the identity `wanted`.

    The socket may be missing: each call looks for it again, over a fresh connection.
    """

    def __init__(
        self, endpoint: str, wanted: Wanted, *, fetch_timeout: float, first_update_timeout: float
    ) -> None:
        self._endpoint = f"unix://{endpoint}" if endpoint.startswith("/") else endpoint
        self._wanted = wanted
        self._fetch_timeout = fetch_timeout
        self._first_update_timeout = first_update_timeout

    def fetch(self) -> Offer:
        """Ask once; raises WorkloadApiError."""
        try:
            with WorkloadApiClient(self._endpoint) as client:
                context = client.fetch_x509_context(timeout=self._fetch_timeout)
        except PySpiffeError as error:
            raise _translated(error) from error
        offered = [str(svid.spiffe_id) for svid in context.x509_svids]
        svid = context.x509_svids[choose(offered, self._wanted)]
        bundle = context.x509_bundle_set.get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
        return _offer(svid, bundle, tuple(offered))

    def watch(self, updated: Callable[[], None]) -> "SpiffeWatch":
        """Stay connected; `updated` is called after each update but the first."""
        return SpiffeWatch(self._endpoint, self._wanted, self._first_update_timeout, updated)


class SpiffeWatch:
    """An `X509Source` of the library; blocks until its first update, else WorkloadApiError."""

    def __init__(
        self, endpoint: str, wanted: Wanted, timeout: float, updated: Callable[[], None]
    ) -> None:
        self._wanted = wanted
        self._offered: tuple[str, ...] = ()
        sleep_longer()
        try:
            self._source = X509Source(
                socket_path=endpoint, timeout_in_seconds=timeout, svid_picker=self._pick
            )
        except PySpiffeError as error:
            raise _translated(error) from error
        self._source.subscribe_for_updates(updated)

    def latest(self) -> Offer:
        """The last update; raises WorkloadApiError once the source has closed."""
        try:
            context = self._source.get_x509_context()
        except PySpiffeError as error:
            raise _translated(error) from error
        svid = context.default_svid
        bundle = context.x509_bundle_set.get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
        return _offer(svid, bundle, self._offered)

    def close(self) -> None:
        """End the watch and its connection."""
        self._source.close()

    def _pick(self, svids: list[X509Svid]) -> X509Svid:
        """Never raises: an error here would close the source for good."""
        self._offered = tuple(str(svid.spiffe_id) for svid in svids)
        return svids[choose(self._offered, self._wanted)]


def _offer(svid: X509Svid, bundle: X509Bundle | None, offered: tuple[str, ...]) -> Offer:
    roots = () if bundle is None else tuple(sorted(bundle.x509_authorities, key=_fingerprint))
    return Offer(str(svid.spiffe_id), svid.private_key, tuple(svid.cert_chain), roots, offered)


def _fingerprint(certificate: x509.Certificate) -> bytes:
    return certificate.fingerprint(SHA256())


def _translated(error: PySpiffeError) -> WorkloadApiError:
    """The error as one of this package; its cause carries the gRPC status."""
    text = ascii(str(error))[1:-1][:_SHOWN_TEXT]
    code = getattr(error.__cause__, "code", None)
    if callable(code) and code().name == "PERMISSION_DENIED":
        return WorkloadApiDeniedError(text)
    return WorkloadApiError(text)
