"""Certificates and keys as Secrets hold them: read strictly, within bounds. Pure.

An error names the entry and says what was expected. It never holds any part of a key.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

MOST_CERTIFICATE_BYTES: Final = 8 << 10
MOST_KEY_BYTES: Final = 4 << 10
MOST_AUTHORITIES: Final = 8
"""In a bundle. Two are usual, three for the time after a change."""
MOST_BUNDLE_BYTES: Final = MOST_AUTHORITIES * MOST_CERTIFICATE_BYTES

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
BUNDLE: Final = "ca.crt"
"""Entries of a leaf's Secret, and names of its files."""
_CURRENT, _NEXT, _FORMER = "current", "next", "former.crt"
_CURVE: Final = "secp256r1"


class MaterialError(Exception):
    """An entry cannot be used; names the entry and says why, never what is in it."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """An authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @property
    def ends(self) -> datetime:
        """When it ends."""
        return self.certificate.not_valid_after_utc


@dataclass(frozen=True, slots=True)
class Authorities:
    """The authority that issues, the one that will follow it, and those before it."""

    current: Issuer
    next: Issuer | None
    """Trusted everywhere long before it issues anything."""
    former: tuple[x509.Certificate, ...] = ()
    """Trusted until they end; their keys are gone."""
    published: datetime | None = None
    """Since when `next` is known to be in every bundle."""

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """What clients have to trust, in an order that does not change with the parts."""
        following = () if self.next is None else (self.next.certificate,)
        found = {self.current.certificate, *following, *self.former}
        return tuple(sorted(found, key=lambda x: (x.not_valid_after_utc, fingerprint(x))))

    @property
    def bundle(self) -> bytes:
        """The same in PEM."""
        return pem_of(self.trusted)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate that a listener or client shows, its key, and what its peer's is checked by."""

    certificate: x509.Certificate
    key: bytes = field(repr=False)
    """PEM."""
    bundle: bytes
    """PEM."""

    @property
    def ends(self) -> datetime:
        """When it ends."""
        return self.certificate.not_valid_after_utc

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """The authorities of its bundle."""
        return tuple(x509.load_pem_x509_certificates(self.bundle))

    def is_issued_by(self, authority: x509.Certificate) -> bool:
        """Whether this authority signed it."""
        try:
            self.certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


Entries = Mapping[str, bytes]
"""What a Secret holds, decoded."""


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, for people and records."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def pem_of(certificates: Iterable[x509.Certificate]) -> bytes:
    """One after the other."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS 8."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_bundle(entries: Entries, name: str) -> tuple[x509.Certificate, ...]:
    """Certificates of one entry; raises MaterialError."""
    content = _entry(entries, name, MOST_BUNDLE_BYTES)
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError:
        raise MaterialError(f"{name}: expected PEM certificates") from None
    if len(found) > MOST_AUTHORITIES:
        raise MaterialError(f"{name}: {len(found)} certificates, at most {MOST_AUTHORITIES}")
    return tuple(found)


def read_leaf(entries: Entries) -> Leaf:
    """The leaf in a Secret's entries; raises MaterialError."""
    certificate, key = _pair(entries, CERTIFICATE, KEY)
    return Leaf(certificate, key_pem(key), pem_of(read_bundle(entries, BUNDLE)))


def leaf_entries(leaf: Leaf) -> dict[str, bytes]:
    """What its Secret has to hold."""
    return {CERTIFICATE: pem_of((leaf.certificate,)), KEY: leaf.key, BUNDLE: leaf.bundle}


def read_authorities(entries: Entries, published: str | None) -> Authorities:
    """The authorities in a Secret's entries and annotation; raises MaterialError."""
    current = _issuer(entries, _CURRENT)
    following = _issuer(entries, _NEXT) if f"{_NEXT}.crt" in entries else None
    former = read_bundle(entries, _FORMER) if _FORMER in entries else ()
    if published is None:
        return Authorities(current, following, former)
    try:
        moment = datetime.fromisoformat(published)
        moment.utctimetuple()
    except (ValueError, OverflowError):
        raise MaterialError("annotation: expected a time such as 2027-01-15T08:00:00Z") from None
    if moment.tzinfo is None:
        raise MaterialError("annotation: expected a time with its zone")
    return Authorities(current, following, former, moment)


def authority_entries(authorities: Authorities) -> dict[str, bytes | None]:
    """What their Secret has to hold; None for an entry that must not be there."""
    following, former = authorities.next, authorities.former
    return {
        f"{_CURRENT}.crt": pem_of((authorities.current.certificate,)),
        f"{_CURRENT}.key": key_pem(authorities.current.key),
        f"{_NEXT}.crt": None if following is None else pem_of((following.certificate,)),
        f"{_NEXT}.key": None if following is None else key_pem(following.key),
        _FORMER: pem_of(former) if former else None,
    }


def _issuer(entries: Entries, name: str) -> Issuer:
    certificate, key = _pair(entries, f"{name}.crt", f"{name}.key")
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        raise MaterialError(f"{name}.crt: expected the certificate of an authority") from None
    if not is_authority.value.ca:
        raise MaterialError(f"{name}.crt: expected the certificate of an authority")
    return Issuer(certificate, key)


def _pair(
    entries: Entries, certificate: str, key: str
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        found = x509.load_pem_x509_certificates(
            _entry(entries, certificate, MOST_CERTIFICATE_BYTES)
        )
    except ValueError:
        raise MaterialError(f"{certificate}: expected a PEM certificate") from None
    if len(found) != 1:
        raise MaterialError(f"{certificate}: {len(found)} certificates, expected one")
    private = _private_key(_entry(entries, key, MOST_KEY_BYTES), key)
    if found[0].public_key() != private.public_key():
        raise MaterialError(f"{key}: expected the key of the certificate in {certificate}")
    return found[0], private


def _private_key(content: bytes, name: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):  # not PEM, or encrypted
        raise MaterialError(f"{name}: expected a PEM private key without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE:
        raise MaterialError(f"{name}: expected an ECDSA key on P-256")
    return key


def _entry(entries: Entries, name: str, limit: int) -> bytes:
    content = entries.get(name)
    if content is None:
        raise MaterialError(f"{name}: there is none")
    if len(content) > limit:
        raise MaterialError(f"{name}: {len(content)} bytes, at most {limit}")
    return content
