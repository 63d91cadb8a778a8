from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from controller.access import (
    ALLOWED_CALLERS,
    KIND_OF_ROLE,
    Caller,
    CallerKind,
    Occupancy,
    PeerUsage,
    Rate,
    authorize,
    caller_of,
)
from controller.rpc.calls import peer_key, stream_facts
from gpuwarden.identity.spiffe_id import Role
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import (
    attestation_pb2,
    audit_pb2,
    fleet_pb2,
    operator_pb2,
    placement_pb2,
    support_pb2,
)
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.docs_pages.authorization import authorization_page

# --- Who a caller is: steps 2 to 5 for every method, from facts that TLS and the leaf agree on

CA = SpiffeCa()
OPERATOR = f"spiffe://{TRUST_DOMAIN}/gpuwarden/operator/kim"


def _context(ca: SpiffeCa = CA, *uris: str, **changes: Any) -> dict[str, list[bytes]]:
    names = uris or (OPERATOR,)
    _, chain = ca.issue("", uris=names)
    good = {
        "x509_pem_cert": [chain[0].public_bytes(Encoding.PEM)],
        "x509_pem_cert_chain": [one.public_bytes(Encoding.PEM) for one in chain[1:]],
        "peer_uri": [name.encode() for name in names],
        "ssl_session_reused": [b"false"],
    }
    return good | changes


def _caller(context: dict[str, list[bytes]], later: timedelta = timedelta()) -> Caller | Refusal:
    return caller_of(
        stream_facts(context),
        CA.roots,
        trust_domain=TRUST_DOMAIN,
        path_prefix="/gpuwarden",
        at=CA._at + later,
    )


@pytest.mark.parametrize("role", ["agent/n", "controller", "inspector/i", "operator/o"])
def test_the_role_comes_from_the_path(role: str) -> None:
    uri = f"spiffe://{TRUST_DOMAIN}/gpuwarden/{role}"
    caller = _caller(_context(CA, uri))
    assert isinstance(caller, Caller)
    assert (caller.kind, caller.name) == (CallerKind(role.partition("/")[0]), uri)
    assert caller.not_after is not None
    assert caller.not_after > CA._at


@pytest.mark.parametrize(
    ("context", "code"),
    [
        (_context(x509_pem_cert=[]), ReasonCode.TLS_NO_CLIENT_CERT),
        (_context(ssl_session_reused=[b"true"]), ReasonCode.TLS_RESUMED),
        (_context(CA, OPERATOR, f"{OPERATOR}2"), ReasonCode.PEER_ID_INVALID),
        (_context(peer_uri=[f"{OPERATOR}2".encode()]), ReasonCode.PEER_ID_INVALID),
        (_context(peer_uri=[]), ReasonCode.PEER_ID_INVALID),
        (_context(CA, "spiffe://other.org/gpuwarden/operator/x"), ReasonCode.PEER_FOREIGN_DOMAIN),
        (_context(SpiffeCa()), ReasonCode.CHAIN_INVALID),
        (_context(x509_pem_cert=[b"junk"]), ReasonCode.TLS_NO_CLIENT_CERT),
        (_context(CA, f"spiffe://{TRUST_DOMAIN}/other"), ReasonCode.PEER_ROLE_UNKNOWN),
    ],
)
def test_the_first_step_that_fails_gives_the_reason(
    context: dict[str, list[bytes]], code: ReasonCode
) -> None:
    refusal = _caller(context)
    assert isinstance(refusal, Refusal)
    assert refusal.code is code


def test_an_identity_ends_with_its_certificate() -> None:
    refusal = _caller(_context(), timedelta(hours=2))
    assert isinstance(refusal, Refusal)
    assert refusal.code is ReasonCode.SVID_EXPIRED


def test_a_leaf_that_cannot_be_read_is_refused_for_its_chain() -> None:
    der = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    context = _context(x509_pem_cert=[der.encode()])
    facts = stream_facts(context, Occupancy(3, 2, rate_exceeded=True))
    assert facts.uri_sans == (OPERATOR,)
    assert (facts.open_streams, facts.peer_streams, facts.rate_exceeded) == (3, 2, True)
    refusal = _caller(context)
    assert isinstance(refusal, Refusal)
    assert refusal.code is ReasonCode.CHAIN_INVALID


def test_usage_is_counted_under_the_one_name_else_the_certificate_else_together() -> None:
    assert peer_key(_context()) == OPERATOR
    two = _context(CA, OPERATOR, f"{OPERATOR}2")
    assert len(peer_key(two)) == 64
    assert peer_key({}) == ""


# --- The table covers exactly what is registered, and the documentation shows all of it

_FILES = (
    attestation_pb2.DESCRIPTOR,
    fleet_pb2.DESCRIPTOR,
    operator_pb2.DESCRIPTOR,
    placement_pb2.DESCRIPTOR,
    support_pb2.DESCRIPTOR,
    audit_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)

AGENT = CallerKind.AGENT
INSPECTOR = CallerKind.INSPECTOR
TENANT = CallerKind.TENANT
_READERS = {INSPECTOR, CallerKind.OPERATOR, CallerKind.LOCAL}
_OPERATORS = {CallerKind.OPERATOR, CallerKind.LOCAL}


_EXPECTED = {
    "gpuwarden.wire.v1.AttestationService/Attest": {AGENT},
    "gpuwarden.wire.v1.FleetService/ListNodes": _READERS,
    "gpuwarden.wire.v1.FleetService/GetNode": _READERS,
    "gpuwarden.wire.v1.FleetService/WatchNodes": _READERS,
    "gpuwarden.wire.v1.FleetService/ListGpus": _READERS,
    "gpuwarden.wire.v1.FleetService/GetStatus": _READERS,
    "gpuwarden.wire.v1.FleetService/ListClasses": _READERS,
    "gpuwarden.wire.v1.FleetService/GetClass": _READERS,
    "gpuwarden.wire.v1.FleetService/ExplainNode": _READERS,
    "gpuwarden.wire.v1.FleetService/FitPod": {TENANT, *_READERS},
    "gpuwarden.wire.v1.OperatorService/AcceptNode": _OPERATORS,
    "gpuwarden.wire.v1.OperatorService/QuarantineNode": _OPERATORS,
    "gpuwarden.wire.v1.OperatorService/ReleaseNode": _OPERATORS,
    "gpuwarden.wire.v1.OperatorService/ReleaseGpu": _OPERATORS,
    "gpuwarden.wire.v1.PlacementService/ListReservations": {TENANT, *_READERS},
    "gpuwarden.wire.v1.PlacementService/ExplainPod": {TENANT, *_READERS},
    "gpuwarden.wire.v1.PlacementService/CheckProtection": _READERS,
    "gpuwarden.wire.v1.PlacementService/ListUse": _READERS,
    "gpuwarden.wire.v1.SupportService/Collect": _READERS,
    "gpuwarden.wire.v1.AuditService/ReadRecords": _READERS,
    "gpuwarden.wire.v1.AuditService/FindGpus": _READERS,
    "gpuwarden.wire.v1.AuditService/ReadGpuRecords": _READERS,
    "grpc.health.v1.Health/Check": {AGENT, *_READERS},
    "grpc.health.v1.Health/List": {AGENT, *_READERS},
    "grpc.health.v1.Health/Watch": {AGENT, *_READERS},
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READERS,
}


def _methods(file: FileDescriptor) -> list[str]:
    return [
        f"{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    ]


_ALL_METHODS = [method for file in _FILES for method in _methods(file)]


def test_every_method_of_every_service_has_an_expectation() -> None:
    assert sorted(_ALL_METHODS) == sorted(_EXPECTED)


def test_the_table_names_no_method_that_does_not_exist() -> None:
    assert {method.removeprefix("/") for method in ALLOWED_CALLERS} <= set(_ALL_METHODS)


@pytest.mark.parametrize("caller", list(CallerKind))
@pytest.mark.parametrize("method", _ALL_METHODS)
def test_matrix(method: str, caller: CallerKind) -> None:
    refusal = authorize(f"/{method}", caller)
    if caller in _EXPECTED[method]:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.code is ReasonCode.ROLE_DENIED
        assert caller in refusal.detail


@pytest.mark.parametrize("caller", list(CallerKind))
@pytest.mark.parametrize(
    "method",
    ["", "/", "/gpuwarden.wire.v1.FleetService/DropAll", "gpuwarden.wire.v1.FleetService/GetNode"],
)
def test_what_is_not_listed_is_denied_to_everybody(method: str, caller: CallerKind) -> None:
    refusal = authorize(method, caller)
    assert refusal is not None
    assert refusal.code is ReasonCode.ROLE_DENIED


def test_every_role_has_a_caller_kind() -> None:
    assert set(KIND_OF_ROLE) == set(Role)


def test_the_documentation_has_every_method_and_every_caller() -> None:
    document = authorization_page()
    for method in _ALL_METHODS:
        assert f"| `/{method}` |" in document
    for kind in CallerKind:
        assert f" {kind} |" in document


S = 1_000_000_000


OPENINGS = Rate(1.0, 60)
MESSAGES = Rate(4.0, 20)


def _usage(openings: Rate = OPENINGS, messages: Rate = MESSAGES, peers: int = 100) -> PeerUsage:
    return PeerUsage(openings, messages, peers)


def test_streams_are_counted_per_peer_and_in_all_until_closed() -> None:
    usage = _usage()
    assert usage.open("a", 0) == Occupancy(0, 0, rate_exceeded=False)
    assert usage.open("a", 0) == Occupancy(1, 1, rate_exceeded=False)
    assert usage.open("b", 0) == Occupancy(2, 0, rate_exceeded=False)
    usage.close("a")
    assert usage.open("a", 0) == Occupancy(2, 1, rate_exceeded=False)
    assert usage.open_streams == 3


def test_opening_too_often_is_reported_and_time_heals_it() -> None:
    usage = _usage(openings=Rate(1.0, 2))
    assert [usage.open("a", 0).rate_exceeded for _ in range(3)] == [False, False, True]
    assert usage.open("b", 0).rate_exceeded is False
    assert usage.open("a", S // 2).rate_exceeded is True
    assert usage.open("a", S).rate_exceeded is False


def test_messages_have_their_own_rate_per_peer() -> None:
    usage = _usage(messages=Rate(2.0, 3))
    refusals = [usage.message("a", 0) for _ in range(4)]
    assert refusals[:3] == [None, None, None]
    assert refusals[3] is not None
    assert refusals[3].code is ReasonCode.LIMIT_RATE
    assert usage.message("b", 0) is None
    assert usage.message("a", S) is None


def test_who_comes_too_fast_is_reported_for_how_long() -> None:
    usage = _usage(messages=Rate(0.25, 1))
    assert usage.wait_ns("a") == 0
    assert usage.message("a", 0) is None
    assert usage.message("a", S) is not None
    assert usage.wait_ns("a") == 3 * S
    assert usage.message("a", 4 * S) is None


def test_a_bucket_never_holds_more_than_its_burst_and_ignores_time_going_back() -> None:
    usage = _usage(messages=Rate(1.0, 2))
    usage.message("a", 100 * S)
    assert usage.message("a", 1000 * S) is None
    assert usage.message("a", 0) is None
    assert usage.message("a", 0) is not None


def test_memory_is_bounded_and_peers_with_streams_are_kept() -> None:
    usage = _usage(peers=3)
    usage.open("busy", 0)
    for number in range(10):
        usage.message(f"idle-{number}", 0)
    assert usage.known_peers == 3
    usage.close("busy")
    assert usage.open_streams == 0


def test_a_table_full_of_busy_peers_grows_only_with_the_streams() -> None:
    usage = _usage(peers=1)
    usage.open("a", 0)
    usage.open("b", 0)
    assert usage.known_peers == 2
