"""TLS facts are read from gRPC's context within bounds, and whatever is odd reads as absent."""

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.identity.chain import ChainInvalidError, parse_chain
from gpuwarden.identity.peer import PeerFacts, peer_facts
from sandbox.spiffe.ca import InsecureCa

ROOT = InsecureCa("example.org")
MIDDLE = InsecureCa("example.org", issuer=ROOT)
AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
ISSUED = MIDDLE.issue(AGENT)
LEAF, ABOVE = (certificate.public_bytes(Encoding.PEM) for certificate in ISSUED.chain)


def context(**changed: list[bytes]) -> dict[str, list[bytes]]:
    return {
        "x509_pem_cert": [LEAF],
        "x509_pem_cert_chain": [ABOVE],
        "peer_uri": [AGENT.encode()],
        "ssl_session_reused": [b"false"],
        "ssl_tls_version": [b"TLSv1.3"],
    } | changed


def test_the_facts_of_a_connection() -> None:
    facts = peer_facts(context())
    assert facts == PeerFacts(ISSUED.chain_der, (AGENT,), resumed=False, tls_version="TLSv1.3")
    assert facts.leaf_der == ISSUED.chain_der[0]


def test_a_leaf_that_is_repeated_in_the_chain_counts_once() -> None:
    assert peer_facts(context(x509_pem_cert_chain=[LEAF + ABOVE])).chain == ISSUED.chain_der


def test_what_stands_behind_the_leaf_in_its_place_is_not_looked_at() -> None:
    assert peer_facts(context(x509_pem_cert=[LEAF + ABOVE])).chain == ISSUED.chain_der


def test_a_chain_may_come_in_parts() -> None:
    assert peer_facts(context(x509_pem_cert_chain=[ABOVE[:99], ABOVE[99:]])) == peer_facts(
        context()
    )


def test_what_comes_behind_the_bound_is_not_looked_at() -> None:
    bound = 6 * 16_384 * 2
    for before, chain in ((bound - len(LEAF), ISSUED.chain_der), (bound, ())):
        assert peer_facts(context(x509_pem_cert=[b" " * before + LEAF])).chain == chain


def test_the_version_of_tls_is_short_text() -> None:
    facts = peer_facts(context(ssl_tls_version=[b"TLS\xff", b"x" * 40]))
    assert facts.tls_version == "TLS\ufffd " + "x" * 27


def test_no_client_certificate_means_no_chain() -> None:
    facts = peer_facts({"transport_security_type": [b"ssl"]})
    assert facts == PeerFacts((), (), resumed=True, tls_version="")
    assert facts.leaf_der is None


@pytest.mark.parametrize("reused", [[], [b"true"], [b"false", b"false"], [b"FALSE"]])
def test_a_session_is_resumed_unless_tls_says_that_it_is_not(reused: list[bytes]) -> None:
    assert peer_facts(context(ssl_session_reused=reused)).resumed


def test_too_many_certificates_are_cut_where_the_verifier_still_sees_too_many() -> None:
    chain = peer_facts(context(x509_pem_cert_chain=[ABOVE * 100])).chain
    assert len(chain) == 6
    with pytest.raises(ChainInvalidError, match="5 intermediates, at most 4"):
        parse_chain(chain)


@pytest.mark.parametrize(
    "leaf",
    [
        [b""],
        [b"-----BEGIN CERTIFICATE-----"],
        [b"-----END CERTIFICATE----------BEGIN CERTIFICATE-----"],
        [b"-----BEGIN CERTIFICATE-----\n!!\xff!\n-----END CERTIFICATE-----"],
        [b"-----BEGIN CERTIFICATE-----\nAAAAA\n-----END CERTIFICATE-----"],
        [b"\xff" * 1_000_000],
    ],
)
def test_a_leaf_that_cannot_be_read_was_not_sent(leaf: list[bytes]) -> None:
    assert peer_facts(context(x509_pem_cert=leaf)).chain == ()


def test_every_name_is_shown_up_to_a_bound_that_is_already_too_many() -> None:
    facts = peer_facts(context(peer_uri=[AGENT.encode(), b"x:\xff", *[b"y" * 3000] * 20]))
    assert facts.uri_sans[:2] == (AGENT, "x:\ufffd")
    assert len(facts.uri_sans) == 9
    assert len(facts.uri_sans[2]) == 2049
