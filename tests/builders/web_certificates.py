"""Web-style certificates for listeners that speak to kube-scheduler: DNS names, PEM files."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)
_CLIENT_LIFETIME = timedelta(days=90)
"""Beyond the time from which the end of a client's certificate is a warning."""


class WebCa:
    """A CA that issues server and client certificates into files."""

    def __init__(
        self,
        folder: Path,
        name: str,
        issuer: "WebCa | None" = None,
        *,
        begins: datetime | None = None,
        ends: datetime | None = None,
    ) -> None:
        """A root, or a CA below `issuer`; valid for a day unless `begins` and `ends` say so."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        above = issuer or self
        self._certificate = (
            _builder(self._name, above._name, self._key.public_key(), begins, ends)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(above._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        server: bool = False,
        names: tuple[str, ...] = ("localhost", "127.0.0.1"),
        begins: datetime | None = None,
        ends: datetime | None = None,
    ) -> tuple[Path, Path]:
        """Files of a certificate and its key."""
        if not server:
            ends = ends or datetime.now(UTC) + _CLIENT_LIFETIME
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        certificate = (
            _builder(_name(name), self._name, key.public_key(), begins, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_general(one) for one in names]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        cert_file, key_file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_file, key_file


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime | None,
    ends: datetime | None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or now - _DAY)
        .not_valid_after(ends or now + _DAY)
    )


def _general(name: str) -> x509.GeneralName:
    if name[:1].isdigit():
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
