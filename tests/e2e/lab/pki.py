"""The certificates of one lab: a CA, a leaf for each component, the service account key.

Files lie in one folder of mode 0700 and are gone with the lab.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandbox.spiffe.ca import new_key, utc_now

_BACKDATE = timedelta(minutes=5)
_VALID = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path


class Pki:
    """The lab's own certificate authority."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._key = new_key()
        self._certificate = _signed(
            _name("gpuwarden lab CA", ()),
            self._key,
            issuer=_name("gpuwarden lab CA", ()),
            issuer_key=self._key,
            names=(),
        )
        self.authority = self._written("ca", self._certificate, self._key)
        self.service_accounts = self._service_accounts()

    @property
    def ca(self) -> Path:
        """The root that all clients and servers of the lab trust, PEM."""
        return self.authority.certificate

    def issue(
        self, file: str, common_name: str, *, groups: Sequence[str] = (), names: Sequence[str] = ()
    ) -> Pair:
        """A leaf for user `common_name` in `groups`, and for servers at `names` (DNS or IP)."""
        key = new_key()
        certificate = _signed(
            _name(common_name, groups),
            key,
            issuer=self._certificate.subject,
            issuer_key=self._key,
            names=names,
        )
        return self._written(file, certificate, key)

    def _written(
        self, file: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
    ) -> Pair:
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def _service_accounts(self) -> Pair:
        key = new_key()
        pair = Pair(self._folder / "service-accounts.pub", self._folder / "service-accounts.key")
        pair.certificate.write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        return pair


def _name(common_name: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _signed(
    subject: x509.Name,
    key: EllipticCurvePrivateKey,
    *,
    issuer: x509.Name,
    issuer_key: EllipticCurvePrivateKey,
    names: Sequence[str],
) -> x509.Certificate:
    is_ca = subject == issuer
    now = utc_now()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not is_ca:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
