"""Envelopes: what may sign, over which bytes, and that nothing else verifies."""

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from gpuwarden.evidence.envelope import (
    AlgorithmDeniedError,
    SignatureInvalidError,
    SigningKey,
    evidence_digest,
    pae,
    sign,
    verify,
    verifying_key,
)
from tests.golden.envelopes import twin

TYPE = "application/vnd.gpuwarden.evidence.v1+json"
PAYLOAD = b'{"a":1}'


def certify(key: SigningKey | ed25519.Ed25519PrivateKey) -> x509.Certificate:
    """A certificate for any key, signed by an unrelated one: chains are not looked at here."""
    return holding(key.public_key())


def holding(
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey,
) -> x509.Certificate:
    issuer = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key)
        .serial_number(1)
        .not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2036, 1, 1, tzinfo=UTC))
        .sign(issuer, hashes.SHA256())
    )


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1()])
def test_ecdsa_signs_and_verifies(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve)
    verify(certify(key), TYPE, PAYLOAD, sign(key, TYPE, PAYLOAD))


def test_rsa_pss_signs_and_verifies(rsa_key: rsa.RSAPrivateKey) -> None:
    verify(certify(rsa_key), TYPE, PAYLOAD, sign(rsa_key, TYPE, PAYLOAD))


@pytest.mark.parametrize(
    ("scheme", "digest"),
    [
        (padding.PKCS1v15(), hashes.SHA256()),
        (padding.PSS(padding.MGF1(hashes.SHA256()), 20), hashes.SHA256()),
        (padding.PSS(padding.MGF1(hashes.SHA512()), 64), hashes.SHA512()),
    ],
)
def test_rsa_with_another_scheme_does_not_verify(
    rsa_key: rsa.RSAPrivateKey,
    scheme: padding.PKCS1v15 | padding.PSS,
    digest: hashes.HashAlgorithm,
) -> None:
    signature = rsa_key.sign(pae(TYPE, PAYLOAD), scheme, digest)
    with pytest.raises(SignatureInvalidError):
        verify(certify(rsa_key), TYPE, PAYLOAD, signature)


def test_p384_with_the_hash_of_p256_does_not_verify() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    signature = key.sign(pae(TYPE, PAYLOAD), ec.ECDSA(hashes.SHA256()))
    with pytest.raises(SignatureInvalidError):
        verify(certify(key), TYPE, PAYLOAD, signature)


@pytest.mark.parametrize("signature", [b"", b"\x30", b"x" * 64, b"x" * 1025])
def test_garbage_does_not_verify(signature: bytes) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(SignatureInvalidError):
        verify(certify(key), TYPE, PAYLOAD, signature)


def test_the_size_of_a_signature_is_bounded() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(SignatureInvalidError, match="longer than 1024 bytes"):
        verify(certify(key), TYPE, PAYLOAD, b"x" * 1025)
    with pytest.raises(SignatureInvalidError, match="does not verify"):
        verify(certify(key), TYPE, PAYLOAD, b"x" * 1024)


def test_a_signature_and_its_other_encoding_are_the_same_evidence() -> None:
    # Both verify, so an identifier made from a signature would count one evidence twice.
    key = ec.generate_private_key(ec.SECP256R1())
    signature = sign(key, TYPE, PAYLOAD)
    assert twin(signature) != signature
    verify(certify(key), TYPE, PAYLOAD, signature)
    verify(certify(key), TYPE, PAYLOAD, twin(signature))
    assert evidence_digest(TYPE, PAYLOAD) == evidence_digest(TYPE, bytes(PAYLOAD))


@pytest.mark.parametrize("curve", [ec.SECP256K1(), ec.SECP521R1(), ec.SECP224R1()])
def test_other_curves_may_not_sign(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve)
    with pytest.raises(AlgorithmDeniedError, match=curve.name):
        sign(key, TYPE, PAYLOAD)
    with pytest.raises(AlgorithmDeniedError, match="P-256 or P-384 is expected"):
        verify(certify(key), TYPE, PAYLOAD, b"")
    with pytest.raises(AlgorithmDeniedError, match=curve.name):
        verifying_key(certify(key))


def test_small_rsa_keys_may_not_sign() -> None:
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505 - too small on purpose
    with pytest.raises(AlgorithmDeniedError, match="1024 bits; 2048 to 8192 are expected"):
        sign(key, TYPE, PAYLOAD)
    with pytest.raises(AlgorithmDeniedError, match="1024 bits"):
        verify(certify(key), TYPE, PAYLOAD, b"")


@pytest.mark.parametrize(
    ("bits", "allowed"), [(2047, False), (2048, True), (8192, True), (8193, False)]
)
def test_sizes_of_rsa_keys_are_exact(bits: int, allowed: bool) -> None:
    # Public numbers are enough: any odd modulus of the size will do.
    key = rsa.RSAPublicNumbers(65537, (1 << bits - 1) | 1).public_key()
    if allowed:
        assert verifying_key(holding(key)) == key
    else:
        with pytest.raises(AlgorithmDeniedError, match=f"{bits} bits"):
            verify(holding(key), TYPE, PAYLOAD, b"")


def test_ed25519_may_not_sign() -> None:
    with pytest.raises(AlgorithmDeniedError, match="Ed25519PublicKey may not sign"):
        verify(certify(ed25519.Ed25519PrivateKey.generate()), TYPE, PAYLOAD, b"")


def test_a_key_that_cannot_be_read_may_not_sign() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    point = key.public_key().public_numbers().x.to_bytes(32, "big")
    broken = certify(key).public_bytes(Encoding.DER).replace(point, b"\x01" * 32)
    with pytest.raises(AlgorithmDeniedError, match="cannot be read"):
        verifying_key(x509.load_der_x509_certificate(broken))


def test_errors_do_not_chain_the_library_errors() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(SignatureInvalidError) as caught:
        verify(certify(key), TYPE, PAYLOAD, b"")
    assert not isinstance(caught.value.__cause__, InvalidSignature)
