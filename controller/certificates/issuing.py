"""Makes authorities and leaves: ECDSA on P-256, random serial numbers. Reads no clock."""

from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller.certificates.leaves import LeafSpec, purpose_of
from controller.certificates.material import Issuer, Leaf, key_pem

BACKDATED: Final = timedelta(hours=1)
"""For peers whose clock is behind."""
_SHOWN_DIGITS: Final = 16


class CertificateMaker:
    """Draws keys and serial numbers; the keys leave in what is returned alone."""

    def authority(self, now: datetime, ends: datetime) -> Issuer:
        """An authority that signs leaves and no other authority."""
        key, serial = _new_key(), x509.random_serial_number()
        # A name of its own: clients look the issuer of a certificate up by its name.
        name = _name(f"gpuwarden authority {f'{serial:040x}'[:_SHOWN_DIGITS]}")
        certificate = (
            _builder(name, key.public_key(), serial, now, ends)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return Issuer(certificate, key)

    def leaf(
        self, spec: LeafSpec, issuer: Issuer, bundle: bytes, now: datetime, ends: datetime
    ) -> Leaf:
        """A certificate for one purpose."""
        key, above = _new_key(), issuer.certificate
        builder = (
            _builder(
                _name(spec.common_name), key.public_key(), x509.random_serial_number(), now, ends
            )
            .issuer_name(above.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose_of(spec)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()),
                critical=False,
            )
        )
        if spec.names:
            names = x509.SubjectAlternativeName([x509.DNSName(one) for one in spec.names])
            builder = builder.add_extension(names, critical=False)
        return Leaf(builder.sign(issuer.key, hashes.SHA256()), key_pem(key), bundle)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


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
