"""Signatures over (payload type, payload) as in DSSE v1.

Source: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md (PAE).
The algorithm follows from the certificate's key and from nothing that the sender
can choose. Of an ECDSA signature (r, s), (r, n-s) verifies as well, so
a signature is never an identifier: the evidence digest is taken over what is signed.
This module does not check chains, validity times or who the signer is.
"""

from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.evidence.strict_json import EvidenceError

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
MAX_SIGNATURE_BYTES: Final = MAX_RSA_BITS // 8

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
VerifyingKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_EC_SIGNATURES: Final[dict[str, ec.ECDSA]] = {
    "secp256r1": ec.ECDSA(hashes.SHA256()),
    "secp384r1": ec.ECDSA(hashes.SHA384()),
}


class AlgorithmDeniedError(EvidenceError):
    """The key is of a type, curve or size that may not sign evidence."""


class SignatureInvalidError(EvidenceError):
    """The signature does not verify over the received bytes."""


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE pre-authentication encoding: the bytes that are signed and digested."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def evidence_digest(payload_type: str, payload: bytes) -> str:
    """SHA-256 of the signed bytes, 64 lower-case hex digits; goes into audit and `prev`."""
    return sha256_hex(pae(payload_type, payload))


def sign(private_key: SigningKey, payload_type: str, payload: bytes) -> bytes:
    """Sign as `verify` expects it: ECDSA in DER, or RSA-PSS; raises AlgorithmDeniedError."""
    message = pae(payload_type, payload)
    if isinstance(private_key, rsa.RSAPrivateKey):
        _demand_rsa_size(private_key.key_size)
        return private_key.sign(message, _pss(), hashes.SHA256())
    return private_key.sign(message, _ec_signature(private_key.curve))


def verify(
    certificate: x509.Certificate, payload_type: str, payload: bytes, signature: bytes
) -> None:
    """Verify `signature` with the key of `certificate` over exactly these bytes.

    Raises AlgorithmDeniedError for a key that may not sign evidence and
    SignatureInvalidError for a signature that does not hold.
    """
    key = verifying_key(certificate)
    message = pae(payload_type, payload)
    if len(signature) > MAX_SIGNATURE_BYTES:
        raise SignatureInvalidError(f"signature is longer than {MAX_SIGNATURE_BYTES} bytes")
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _pss(), hashes.SHA256())
        else:
            key.verify(signature, message, _ec_signature(key.curve))
    except InvalidSignature:
        raise SignatureInvalidError("signature does not verify over the received bytes") from None


def verifying_key(certificate: x509.Certificate) -> VerifyingKey:
    """The key of `certificate` if evidence may be signed with it, else AlgorithmDeniedError."""
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        raise AlgorithmDeniedError("the certificate's key cannot be read") from None
    if isinstance(key, rsa.RSAPublicKey):
        _demand_rsa_size(key.key_size)
        return key
    if isinstance(key, ec.EllipticCurvePublicKey):
        _ec_signature(key.curve)
        return key
    raise AlgorithmDeniedError(f"a {type(key).__name__} may not sign; ECDSA or RSA is expected")


def _ec_signature(curve: ec.EllipticCurve) -> ec.ECDSA:
    algorithm = _EC_SIGNATURES.get(curve.name)
    if algorithm is None:
        raise AlgorithmDeniedError(f"curve {curve.name} may not sign; P-256 or P-384 is expected")
    return algorithm


def _demand_rsa_size(bits: int) -> None:
    if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
        raise AlgorithmDeniedError(
            f"RSA key has {bits} bits; {MIN_RSA_BITS} to {MAX_RSA_BITS} are expected"
        )


def _pss() -> padding.PSS:
    digest = hashes.SHA256()
    return padding.PSS(mgf=padding.MGF1(digest), salt_length=digest.digest_size)
