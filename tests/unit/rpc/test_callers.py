"""Who a caller is: steps 2 to 5 for every method, from facts that TLS and the leaf agree on."""

from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from controller.access import Caller, CallerKind, Occupancy, caller_of
from controller.rpc.calls import peer_key, stream_facts
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa

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
