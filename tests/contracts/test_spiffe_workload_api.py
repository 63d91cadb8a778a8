"""The stand-in and the library's Workload API keep the same promises; so does SvidWatcher.

The real part runs against the sandbox's server over a unix socket. Timings are
those of production divided by some hundred, so each outage takes milliseconds.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import grpc
import pytest
from spiffe._proto import workload_pb2, workload_pb2_grpc

from gpuwarden.clock import SystemClock
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import Offer, exactly
from gpuwarden.identity.svid_watcher import SvidWatcher, WorkloadApi
from gpuwarden.identity.watchdog import Limits
from gpuwarden.identity.workload_api import (
    SpiffeWorkloadApi,
    WorkloadApiDeniedError,
    WorkloadApiError,
)
from sandbox.spiffe.ca import InsecureCa
from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.workload_api import FakeWorkloadApi
from tests.hang import HANG_S

AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
OTHER = "spiffe://example.org/other"
WANTED = exactly(SpiffeId("example.org", "/gpuwarden/agent/node-a"))
QUICK = Limits(
    fetch_timeout=0.5,
    first_update_timeout=2.0,
    tick=0.01,
    probe_every=0.05,
    confirm_after=0.02,
    backoff_base=0.01,
    backoff_cap=0.05,
    overdue_retry=0.1,
)
SECONDS = HANG_S


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    foreign = InsecureCa("other.org")
    with InsecureWorkloadApi(tmp_path, federated={"other.org": foreign}) as api:
        yield api


class Backstage(Protocol):
    """What a test does to a Workload API from behind."""

    @property
    def api(self) -> WorkloadApi: ...
    def rotate(self) -> None: ...
    def deny(self) -> None: ...
    def spoil(self) -> None: ...


@dataclass
class RealBackstage:
    sandbox: InsecureWorkloadApi
    api: WorkloadApi

    def rotate(self) -> None:
        self.sandbox.rotate()

    def deny(self) -> None:
        self.sandbox.fault("a", Fault.DENIED)

    def spoil(self) -> None:
        self.sandbox.fault("a", Fault.EMPTY)


@dataclass
class FakeBackstage:
    api: FakeWorkloadApi

    def _set(self, answer: Offer | Exception) -> None:
        self.api.answer = answer

    def rotate(self) -> None:
        self._set(some_offer())
        for watch in self.api.open_watches:
            watch.update(self.api.answer)

    def deny(self) -> None:
        self._set(WorkloadApiDeniedError("denied"))

    def spoil(self) -> None:
        self._set(WorkloadApiError("empty"))
        for watch in self.api.open_watches:
            watch.update(WorkloadApiError("source has error"))


def some_offer() -> Offer:
    ca = InsecureCa("example.org")
    issued = ca.issue(AGENT)
    return Offer(AGENT, issued.private_key, issued.chain, (ca.certificate,), (AGENT,))


def real(endpoint: str) -> SpiffeWorkloadApi:
    return SpiffeWorkloadApi(endpoint, WANTED, fetch_timeout=0.5, first_update_timeout=2.0)


@pytest.fixture(params=["fake", "real"])
def backstage(request: pytest.FixtureRequest, sandbox: InsecureWorkloadApi) -> Backstage:
    if request.param == "fake":
        return FakeBackstage(FakeWorkloadApi(some_offer()))
    return RealBackstage(sandbox, real(sandbox.add("a", OTHER, AGENT)))


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(SECONDS / 0.005)):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not come to that")


def material(offer: Offer) -> Offer:
    return replace(offer, private_key=None)


def test_a_fetch_answers_with_the_wanted_identity(backstage: Backstage) -> None:
    offer = backstage.api.fetch()
    assert offer.spiffe_id == AGENT
    assert AGENT in offer.offered
    assert len(offer.roots) == 1


def test_a_watch_says_the_same_and_follows_a_rotation(backstage: Backstage) -> None:
    updated = threading.Event()
    watch = backstage.api.watch(updated.set)
    first = watch.latest()
    assert material(first) == material(backstage.api.fetch())
    backstage.rotate()
    while watch.latest().chain == first.chain:  # the first SVID is told too, at any time
        assert updated.wait(SECONDS)
        updated.clear()
    assert material(watch.latest()) == material(backstage.api.fetch())
    watch.close()
    with pytest.raises(WorkloadApiError):
        watch.latest()


def test_a_denial_is_distinguished_and_not_seen_by_an_open_watch(backstage: Backstage) -> None:
    watch = backstage.api.watch(lambda: None)
    backstage.deny()
    with pytest.raises(WorkloadApiDeniedError):
        backstage.api.fetch()
    assert watch.latest().spiffe_id == AGENT
    watch.close()


def test_a_spoilt_update_ends_the_watch(backstage: Backstage) -> None:
    watch = backstage.api.watch(lambda: None)
    backstage.spoil()

    def ended() -> bool:
        try:
            watch.latest()
        except WorkloadApiError as error:
            return not isinstance(error, WorkloadApiDeniedError)
        return False

    until(ended)
    with pytest.raises(WorkloadApiError):
        backstage.api.watch(lambda: None)
    watch.close()


@pytest.fixture
def svid_watcher(sandbox: InsecureWorkloadApi, tmp_path: Path) -> Iterator[SvidWatcher]:
    del sandbox  # ends after the SVID watcher
    endpoint = str(tmp_path / "a.sock")
    with SvidWatcher.dialing(endpoint, WANTED, SystemClock(), QUICK) as svid_watcher:
        yield svid_watcher


def generation(svid_watcher: SvidWatcher) -> int:
    svid = svid_watcher.current()
    return 0 if svid is None else svid.generation


def test_a_socket_that_does_not_exist_yet_is_waited_for(
    sandbox: InsecureWorkloadApi, svid_watcher: SvidWatcher
) -> None:
    until(lambda: "does not exist" in svid_watcher.state())
    sandbox.add("a", AGENT)
    until(lambda: generation(svid_watcher) == 1)


def test_a_rotation_arrives_without_a_rebuild(
    sandbox: InsecureWorkloadApi, svid_watcher: SvidWatcher
) -> None:
    sandbox.add("a", AGENT)
    until(lambda: generation(svid_watcher) == 1)
    for expected in range(2, 7):
        sandbox.rotate()
        until(lambda expected=expected: generation(svid_watcher) == expected)  # type: ignore[misc] # bound early
    assert svid_watcher.facts().rebuilds == 1


def test_the_order_of_identities_decides_nothing_and_none_of_ours_is_reported(
    sandbox: InsecureWorkloadApi, svid_watcher: SvidWatcher
) -> None:
    sandbox.add("a", OTHER)
    until(lambda: svid_watcher.state().endswith(f"configured identity not offered, only {OTHER}"))
    sandbox.assign("a", OTHER, AGENT)
    until(lambda: generation(svid_watcher) == 1)
    sandbox.assign("a", AGENT, OTHER)
    until(lambda: generation(svid_watcher) == 2)
    sandbox.assign("a", OTHER)
    until(lambda: generation(svid_watcher) == 0)


def test_only_roots_of_the_own_trust_domain_are_taken_and_a_ca_rotation_overlaps(
    sandbox: InsecureWorkloadApi, svid_watcher: SvidWatcher
) -> None:
    def roots() -> set[bytes]:
        svid = svid_watcher.current()
        return set() if svid is None else {root.signature for root in svid.roots}

    sandbox.add("a", AGENT)
    [first] = [ca.certificate.signature for ca in sandbox.roots]
    until(lambda: roots() == {first})
    sandbox.rotate_ca()
    second = sandbox.roots[0].certificate.signature
    until(lambda: roots() == {first, second})
    sandbox.retire_ca()
    until(lambda: roots() == {second})


KEEPS = [
    (Fault.SOCKET_REMOVED, "does not exist"),
    (Fault.EMPTY, "empty"),
    (Fault.MALFORMED, "parsing certificate"),
    (Fault.CANCELLED, "CANCELLED"),
    (Fault.EOF, "response is invalid"),
    (Fault.HANG, "Deadline Exceeded"),
    (Fault.KEY_MISMATCH, "private key does not belong to the leaf"),
    (Fault.EXPIRED, "SVID refused: the chain ended"),
    (Fault.UNCHAINED, "SVID refused: no path to a root"),
]


@pytest.mark.parametrize(("fault", "told"), KEEPS)
def test_an_outage_is_reported_keeps_the_svid_and_is_recovered_from(
    sandbox: InsecureWorkloadApi, svid_watcher: SvidWatcher, fault: Fault, told: str
) -> None:
    sandbox.add("a", AGENT)
    until(lambda: generation(svid_watcher) == 1)
    sandbox.fault("a", fault)
    until(lambda: told in svid_watcher.state())
    assert generation(svid_watcher) == 1
    sandbox.fault("a", Fault.NONE)
    until(lambda: generation(svid_watcher) > 1)


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.REDACTED])
def test_a_denied_identity_is_dropped_and_taken_up_again(
    sandbox: InsecureWorkloadApi, svid_watcher: SvidWatcher, fault: Fault
) -> None:
    sandbox.add("a", AGENT)
    until(lambda: generation(svid_watcher) == 1)
    sandbox.fault("a", fault)
    until(lambda: generation(svid_watcher) == 0)
    assert "PERMISSION_DENIED" in svid_watcher.state()
    sandbox.fault("a", Fault.NONE)
    until(lambda: generation(svid_watcher) > 1)


def test_short_lived_svids_that_rotate_by_themselves_are_never_missing(tmp_path: Path) -> None:
    second = timedelta(seconds=1)
    with InsecureWorkloadApi(tmp_path, ttl=4 * second, rotate_every=second / 5) as sandbox:
        sandbox.add("a", AGENT)
        gaps = 0
        svid_watcher = SvidWatcher.dialing(
            f"unix://{tmp_path}/a.sock", WANTED, SystemClock(), QUICK
        )
        with svid_watcher:
            until(lambda: generation(svid_watcher) > 0)

            def fifth() -> bool:
                nonlocal gaps
                gaps += svid_watcher.current() is None
                return generation(svid_watcher) >= 5

            until(fifth)
        assert gaps == 0


def test_the_server_demands_the_security_header_and_knows_no_jwt(
    sandbox: InsecureWorkloadApi,
) -> None:
    endpoint = sandbox.add("a", AGENT)
    with grpc.insecure_channel(endpoint) as channel:
        stub = workload_pb2_grpc.SpiffeWorkloadAPIStub(channel)  # type: ignore[no-untyped-call] # generated without types
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.FetchX509SVID(workload_pb2.X509SVIDRequest()))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        header = [("workload.spiffe.io", "true")]
        with pytest.raises(grpc.RpcError) as unknown:
            stub.FetchJWTSVID(workload_pb2.JWTSVIDRequest(audience=["x"]), metadata=header)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        bundles = next(stub.FetchX509Bundles(workload_pb2.X509BundlesRequest(), metadata=header))
        assert set(bundles.bundles) == {"spiffe://example.org", "spiffe://other.org"}
