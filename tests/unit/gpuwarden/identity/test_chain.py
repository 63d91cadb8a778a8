"""A chain is judged by caps first, then by the X509-SVID rules, then by the path and its dates."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpuwarden.identity.chain import (
    ChainError,
    ChainInvalidError,
    SvidExpiredError,
    SvidNotYetValidError,
    _brief,
    authorities_of,
    parse_chain,
    signing_authority,
    spiffe_id_of,
    uri_sans,
    verify_chain,
)
from gpuwarden.identity.spiffe_id import SpiffeId, SpiffeIdError
from gpuwarden.reasons import ReasonCode
from sandbox.spiffe.ca import InsecureCa, LeafShape, PrivateKey

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
SECOND = timedelta(seconds=1)


def authority(**kwargs: object) -> InsecureCa:
    return InsecureCa("example.org", now=lambda: NOW, **kwargs)  # type: ignore[arg-type] # passes any keyword on


ROOT = authority()
WEAK = rsa.generate_private_key(65537, 1024)  # noqa: S505 - weak on purpose: it must be refused


def below(root: InsecureCa, depth: int) -> InsecureCa:
    for _ in range(depth):
        root = authority(issuer=root)
    return root


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_chain_of_up_to_four_intermediates_is_accepted(depth: int) -> None:
    verify_chain(below(ROOT, depth).issue(AGENT).chain_der, [ROOT.certificate], NOW)


def test_a_fifth_intermediate_is_refused_before_any_signature_is_computed() -> None:
    chain = below(ROOT, 5).issue(AGENT).chain_der
    with pytest.raises(ChainInvalidError, match="5 intermediates, at most 4"):
        parse_chain(chain)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-256", "P-384", "RSA 2048"],
)
def test_allowed_keys_are_accepted_in_leaf_and_authority(key: PrivateKey) -> None:
    root = authority(key=key)
    verify_chain(root.issue(AGENT, key=key).chain_der, [root.certificate], NOW)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (ec.generate_private_key(ec.SECP521R1()), "secp521r1"),
        (ec.generate_private_key(ec.SECP224R1()), "secp224r1"),
        (WEAK, "1024 bits"),
        (ed25519.Ed25519PrivateKey.generate(), "Ed25519"),
    ],
    ids=["P-521", "P-224", "RSA 1024", "Ed25519"],
)
def test_other_keys_are_refused(key: PrivateKey, found: str) -> None:
    with pytest.raises(ChainInvalidError, match=found):
        verify_chain(ROOT.issue(AGENT, key=key).chain_der, [ROOT.certificate], NOW)


@pytest.mark.parametrize(
    ("bits", "allowed"), [(2047, False), (2048, True), (8192, True), (8193, False)]
)
def test_sizes_of_rsa_keys_are_exact(bits: int, allowed: bool) -> None:
    # Public numbers are enough: any odd modulus of the size will do.
    key = rsa.RSAPublicNumbers(65537, (1 << bits - 1) | 1).public_key()
    issuer = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    certificate = (
        x509.CertificateBuilder(name, name, key, 1, NOW, NOW)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(issuer, SHA256())
    )
    told = "lacks extension" if allowed else f"RSA key of {bits} bits"
    with pytest.raises(ChainInvalidError, match=told):
        parse_chain([certificate.public_bytes(Encoding.DER)])


def test_a_denied_key_in_an_intermediate_is_refused() -> None:
    weak = authority(issuer=ROOT, key=WEAK)
    with pytest.raises(ChainInvalidError, match="1024 bits"):
        verify_chain(weak.issue(AGENT).chain_der, [ROOT.certificate], NOW)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (LeafShape(ca=True), "CA certificate"),
        (LeafShape(basic_constraints=False), "lacks extension 2.5.29.19"),
        (LeafShape(key_usage=False), "lacks extension 2.5.29.15"),
        (LeafShape(key_usage_critical=False), "critical"),
        (LeafShape(digital_signature=False), "digitalSignature"),
        (LeafShape(key_cert_sign=True), "keyCertSign"),
        (LeafShape(crl_sign=True), "cRLSign"),
        (LeafShape(extended=[ExtendedKeyUsageOID.SERVER_AUTH]), "no path"),
    ],
)
def test_a_leaf_that_is_no_svid_leaf_is_refused(shape: LeafShape, found: str) -> None:
    with pytest.raises(ChainInvalidError, match=found):
        verify_chain(ROOT.issue(AGENT, shape=shape).chain_der, [ROOT.certificate], NOW)


def test_a_leaf_without_extended_key_usage_is_accepted() -> None:
    leaf = ROOT.issue(AGENT, shape=LeafShape(extended=None))
    verify_chain(leaf.chain_der, [ROOT.certificate], NOW)


@pytest.mark.parametrize(
    "chain",
    [
        [],
        [b""],
        [b"\x30\x82\xff\xff"],
        [ROOT.issue(AGENT).chain_der[0] + b"\0"],
        [ROOT.issue(AGENT).chain_der[0], b"junk"],
        [b"\x30" * 16_385],
    ],
    ids=["none", "empty", "truncated", "trailing byte", "junk intermediate", "huge"],
)
def test_bytes_that_are_no_chain_are_refused(chain: Sequence[bytes]) -> None:
    with pytest.raises(ChainInvalidError):
        verify_chain(chain, [ROOT.certificate], NOW)


def test_the_size_of_a_certificate_is_bounded() -> None:
    with pytest.raises(ChainInvalidError, match="a certificate is larger than 16384 bytes"):
        parse_chain([b"\x30" * 16_385])
    with pytest.raises(ChainInvalidError, match="cannot be read"):
        parse_chain([b"\x30" * 16_384])


def test_what_a_library_says_about_a_hostile_certificate_is_one_short_line() -> None:
    assert _brief(ValueError("a\n" + "b" * 300)) == "a\\n" + "b" * 198


def test_each_flipped_byte_of_a_leaf_is_refused_and_never_leaks_another_error() -> None:
    leaf = bytearray(ROOT.issue(AGENT).chain_der[0])
    for position in range(0, len(leaf), 7):
        leaf[position] ^= 0x55
        with pytest.raises(ChainInvalidError):
            verify_chain([bytes(leaf)], [ROOT.certificate], NOW)
        leaf[position] ^= 0x55
    verify_chain([bytes(leaf)], [ROOT.certificate], NOW)


def test_a_foreign_authority_is_refused_even_for_our_names() -> None:
    foreign = authority()
    chain = foreign.issue(AGENT).chain_der
    with pytest.raises(ChainInvalidError, match="no path"):
        verify_chain(chain, [ROOT.certificate], NOW)
    verify_chain(chain, [ROOT.certificate, foreign.certificate], NOW)


@pytest.mark.parametrize("depth", [0, 2])
def test_an_authority_that_left_the_bundle_is_named_by_its_key(depth: int) -> None:
    gone = authority()
    [key] = authorities_of([gone.certificate])
    found = f"the authority that signed it is not in the trust bundle \\(key id {key.hex()}\\)"
    with pytest.raises(ChainInvalidError, match=found):
        verify_chain(below(gone, depth).issue(AGENT).chain_der, [ROOT.certificate], NOW)


def test_a_bad_signature_below_a_known_authority_is_another_cause() -> None:
    """The key id is a claim: it says where to look, the signature decides."""
    leaf = bytearray(ROOT.issue(AGENT).chain_der[0])
    leaf[-1] ^= 0x01
    with pytest.raises(ChainInvalidError, match="no path to a root: validation failed"):
        verify_chain([bytes(leaf)], [ROOT.certificate], NOW)


def test_the_signing_authority_is_the_one_above_the_last_certificate() -> None:
    [key] = authorities_of([ROOT.certificate])
    assert signing_authority(ROOT.issue(AGENT).chain) == key
    assert signing_authority(below(ROOT, 3).issue(AGENT).chain) == key
    assert authorities_of([ROOT.certificate, authority().certificate]) > {key}


def test_key_ids_that_are_absent_or_unreadable_are_none() -> None:
    bare = _certificate_with()
    assert signing_authority([bare]) == b""
    assert signing_authority([_certificate_with(x509.AuthorityKeyIdentifier(None, [], 7))]) == b""
    assert authorities_of([bare]) == frozenset()
    broken = x509.load_der_x509_certificate(
        ROOT.issue(AGENT).chain_der[0].replace(AGENT.encode(), b"\xff" * len(AGENT))
    )
    assert signing_authority([broken]) == b""
    assert authorities_of([broken]) == frozenset()


def _certificate_with(*extensions: x509.ExtensionType) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, SHA256())


def test_no_roots_accept_nothing() -> None:
    with pytest.raises(ChainInvalidError, match="no roots"):
        verify_chain(ROOT.issue(AGENT).chain_der, [], NOW)


def test_a_leaf_cannot_vouch_for_another() -> None:
    above = ROOT.issue(AGENT)
    forged = authority(key=above.private_key).issue("spiffe://example.org/gpuwarden/controller")
    with pytest.raises(ChainInvalidError):
        verify_chain((*forged.chain_der, *above.chain_der), [ROOT.certificate], NOW)


def test_dates_are_distinguished_from_each_other_and_from_a_bad_chain() -> None:
    chain = ROOT.issue(AGENT, ttl=timedelta(hours=1), not_before=NOW).chain_der
    end = NOW + timedelta(hours=1)
    roots = [ROOT.certificate]
    verify_chain(chain, roots, NOW)
    verify_chain(chain, roots, end)
    with pytest.raises(SvidExpiredError, match="2026-05-01T13:00:00Z"):
        verify_chain(chain, roots, end + timedelta(milliseconds=1))
    with pytest.raises(SvidNotYetValidError, match="2026-05-01T12:00:00Z"):
        verify_chain(chain, roots, NOW - timedelta(milliseconds=1))


@pytest.mark.parametrize("at", [NOW - timedelta(days=400), NOW + timedelta(days=400)])
def test_an_invalid_chain_is_invalid_whatever_its_dates_are(at: datetime) -> None:
    with pytest.raises(ChainInvalidError):
        verify_chain(ROOT.issue(AGENT).chain_der, [authority().certificate], at)


def test_the_earliest_end_in_the_chain_counts() -> None:
    short = authority(issuer=ROOT, ttl=timedelta(minutes=5))
    chain = short.issue(AGENT).chain_der
    verify_chain(chain, [ROOT.certificate], NOW + timedelta(minutes=5))
    with pytest.raises(SvidExpiredError):
        verify_chain(chain, [ROOT.certificate], NOW + timedelta(minutes=5) + SECOND)


def test_certificates_that_are_never_valid_together_are_invalid() -> None:
    short = authority(issuer=ROOT, ttl=timedelta(minutes=5))
    chain = short.issue(AGENT, not_before=NOW + timedelta(minutes=10)).chain_der
    with pytest.raises(ChainInvalidError, match="never valid together"):
        verify_chain(chain, [ROOT.certificate], NOW)
    moment = NOW + timedelta(minutes=5)
    touching = short.issue(AGENT, not_before=moment).chain_der
    verify_chain(touching, [ROOT.certificate], moment)


def test_an_expired_root_vouches_for_nothing() -> None:
    root = authority(ttl=timedelta(minutes=5))
    with pytest.raises(ChainInvalidError):
        verify_chain(root.issue(AGENT).chain_der, [root.certificate], NOW + timedelta(minutes=10))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ChainInvalidError, ReasonCode.CHAIN_INVALID),
        (SvidExpiredError, ReasonCode.SVID_EXPIRED),
        (SvidNotYetValidError, ReasonCode.SVID_NOT_YET_VALID),
    ],
)
def test_each_error_carries_its_reason_code(error: type[ChainError], code: ReasonCode) -> None:
    assert error.code is code


def test_the_identity_is_the_only_uri_name() -> None:
    assert spiffe_id_of(ROOT.issue(AGENT).chain[0]) == SpiffeId(
        "example.org", "/gpuwarden/agent/node-a"
    )


@pytest.mark.parametrize(
    "uris",
    [(), (AGENT, AGENT), (AGENT, "https://example.org/"), ("https://example.org/",)],
    ids=["none", "twice the same", "a second one", "no SPIFFE ID"],
)
def test_no_identity_unless_exactly_one_spiffe_id(uris: tuple[str, ...]) -> None:
    leaf = ROOT.issue(*uris).chain[0]
    assert uri_sans(leaf) == uris
    with pytest.raises(SpiffeIdError):
        spiffe_id_of(leaf)


def test_names_that_cannot_be_read_are_an_error_and_not_an_absence() -> None:
    der = ROOT.issue(AGENT).chain[0].public_bytes(Encoding.DER)
    broken = x509.load_der_x509_certificate(der.replace(AGENT.encode(), b"\xff" * len(AGENT)))
    with pytest.raises(SpiffeIdError, match="cannot be read"):
        uri_sans(broken)


def test_a_proof_covers_the_same_question_until_something_ends() -> None:
    root, other = authority(ttl=timedelta(hours=2)), authority(ttl=timedelta(minutes=30))
    chain = root.issue(AGENT, ttl=timedelta(hours=1)).chain_der
    both = (root.certificate, other.certificate)
    proof = verify_chain(chain, both, NOW)
    half_hour = NOW + timedelta(minutes=30)
    assert proof.covers(chain, list(both), NOW)
    assert proof.covers(list(chain), both, half_hour - timedelta(seconds=1))
    assert not proof.covers(chain, both, half_hour), "a root of the bundle ends"
    assert verify_chain(chain, both, half_hour).until == half_hour
    assert not proof.covers(chain, both, NOW - timedelta(seconds=1)), "nobody looked at that"
    assert not proof.covers(chain, both[:1], NOW), "other roots"
    assert not proof.covers(root.issue(AGENT).chain_der, both, NOW), "another chain"


def test_a_proof_ends_with_the_chain_and_not_with_roots_that_had_ended_before() -> None:
    root, gone = authority(ttl=timedelta(hours=2)), authority(ttl=timedelta(minutes=5))
    chain = root.issue(AGENT, ttl=timedelta(hours=1)).chain_der
    later = NOW + timedelta(minutes=10)
    proof = verify_chain(chain, [root.certificate, gone.certificate], later)
    assert proof.until == NOW + timedelta(hours=1)
