"""Fixed keys and certificates, the same in every run: ECDSA keys come from small numbers.

Worthless on purpose; signatures are deterministic (RFC 6979), so that the vectors
can be made again bit for bit.
"""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

_FROM = datetime(2026, 1, 1, tzinfo=UTC)
_UNTIL = datetime(2036, 1, 1, tzinfo=UTC)


def fixed_key(number: int, curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
    """The private key whose secret is `number` repeated over the width of the curve."""
    width = (curve.key_size + 7) // 8
    return ec.derive_private_key(int.from_bytes(bytes([number]) * width, "big"), curve)


def certificate(key: ec.EllipticCurvePrivateKey, spiffe_id: str, serial: int) -> x509.Certificate:
    """A self-signed certificate that names `spiffe_id`."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "golden vector")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(spiffe_id)]), critical=False
        )
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )


def sign_again(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """The one RFC 6979 signature of `message` with the hash of the key's curve."""
    digest = hashes.SHA256() if key.curve.key_size == 256 else hashes.SHA384()
    return key.sign(message, ec.ECDSA(digest, deterministic_signing=True))


def pem(certificate_: x509.Certificate) -> str:
    return certificate_.public_bytes(Encoding.PEM).decode()
