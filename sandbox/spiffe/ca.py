"""A throwaway certificate authority that issues X509-SVIDs shaped like SPIRE's.

Keys are made when it is constructed, live in memory only and are gone with it.
Tests also use it to make certificates that a real authority would refuse to make
(see `LeafShape`). It protects nothing: never use it outside a laptop or a test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey | RSAPrivateKey
_BACKDATE = timedelta(seconds=10)
_BOTH_SIDES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def utc_now() -> datetime:
    """This machine's wall time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class LeafShape:
    """How a leaf is shaped; the default is what SPIRE issues, the rest is for hostile tests."""

    ca: bool = False
    basic_constraints: bool = True
    key_usage: bool = True
    key_usage_critical: bool = True
    digital_signature: bool = True
    key_cert_sign: bool = False
    crl_sign: bool = False
    extended: Sequence[x509.ObjectIdentifier] | None = _BOTH_SIDES
    dns: Sequence[str] = ()
    """Names of an entry's `dns_names`, beside the SPIFFE ID."""


@dataclass(frozen=True, slots=True)
class IssuedSvid:
    """A leaf with its intermediates (leaf first) and the private key."""

    private_key: PrivateKey = field(repr=False)
    chain: tuple[x509.Certificate, ...]

    @property
    def chain_der(self) -> tuple[bytes, ...]:
        """Each certificate in DER, leaf first."""
        return tuple(certificate.public_bytes(Encoding.DER) for certificate in self.chain)

    @property
    def chain_pem(self) -> bytes:
        """All certificates in PEM, leaf first."""
        return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.chain)

    @property
    def key_pkcs8(self) -> bytes:
        """The private key as the Workload API sends it: PKCS#8, DER, not encrypted."""
        return self.private_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())

    @property
    def key_pem(self) -> bytes:
        """The private key in PEM, not encrypted."""
        return self.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class InsecureCa:
    """A CA of one trust domain: a root, or an intermediate below another `InsecureCa`."""

    def __init__(
        self,
        trust_domain: str,
        *,
        issuer: "InsecureCa | None" = None,
        now: Callable[[], datetime] = utc_now,
        ttl: timedelta = timedelta(days=1),
        key: PrivateKey | None = None,
    ) -> None:
        self.trust_domain = trust_domain
        self._now = now
        self._key = key or new_key()
        self.above: tuple[x509.Certificate, ...] = (
            () if issuer is None else (issuer.certificate, *issuer.above)
        )
        self.certificate: x509.Certificate = self._certify_itself(issuer, ttl)

    @property
    def intermediates(self) -> tuple[x509.Certificate, ...]:
        """The CAs above this one without the root, nearest first."""
        return self.above[:-1]

    def issue(
        self,
        *uris: str,
        ttl: timedelta = timedelta(hours=1),
        not_before: datetime | None = None,
        key: PrivateKey | None = None,
        shape: LeafShape | None = None,
    ) -> IssuedSvid:
        """A new leaf with `uris` and the shape's DNS names; it ends `ttl` from now."""
        shape = shape or LeafShape()
        key = key or new_key()
        now = self._now()
        builder = (
            _builder("gpuwarden sandbox workload", self.certificate.subject)
            .public_key(key.public_key())
            .not_valid_before(not_before or min(now, now + ttl) - _BACKDATE)
            .not_valid_after(now + ttl)
        )
        builder = self._identifiers(builder, key, self._key)
        builder = _shaped(builder, shape)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        if names := [*names, *map(x509.DNSName, shape.dns)]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        leaf = builder.sign(self._key, _hash_for(self._key))
        above = () if not self.above else (self.certificate, *self.intermediates)
        return IssuedSvid(key, (leaf, *above))

    def _certify_itself(self, issuer: "InsecureCa | None", ttl: timedelta) -> x509.Certificate:
        name = f"gpuwarden sandbox CA {x509.random_serial_number():x}"[:60]
        signer = self._key if issuer is None else issuer._key  # noqa: SLF001 - another of our own
        now = self._now()
        builder = (
            _builder(name, None if issuer is None else issuer.certificate.subject)
            .public_key(self._key.public_key())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + ttl)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.UniformResourceIdentifier(f"spiffe://{self.trust_domain}")]
                ),
                critical=False,
            )
        )
        return self._identifiers(builder, self._key, signer).sign(signer, _hash_for(signer))

    @staticmethod
    def _identifiers(
        builder: x509.CertificateBuilder, subject: PrivateKey, signer: PrivateKey
    ) -> x509.CertificateBuilder:
        return builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(subject.public_key()), critical=False
        ).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )


def _builder(common_name: str, issuer: x509.Name | None) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .serial_number(x509.random_serial_number())
    )


def _shaped(builder: x509.CertificateBuilder, shape: LeafShape) -> x509.CertificateBuilder:
    if shape.basic_constraints:
        constraints = x509.BasicConstraints(ca=shape.ca, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
    if shape.key_usage:
        usage = _usage(
            digital_signature=shape.digital_signature,
            key_cert_sign=shape.key_cert_sign,
            crl_sign=shape.crl_sign,
        )
        builder = builder.add_extension(usage, critical=shape.key_usage_critical)
    if shape.extended is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(shape.extended), critical=False)
    return builder


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=True,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _hash_for(signer: PrivateKey) -> hashes.SHA256 | hashes.SHA384:
    wide = isinstance(signer, ec.EllipticCurvePrivateKey) and signer.curve.key_size > 256  # noqa: PLR2004 - P-384 goes with SHA-384
    return hashes.SHA384() if wide else hashes.SHA256()
