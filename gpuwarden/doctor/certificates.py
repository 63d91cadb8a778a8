"""Certificate chains: whether a bundle verifies a leaf, and when the first of them ends. Pure.

As the API server does it: names, dates and signatures; no policies.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

SOON: Final = timedelta(days=14)
_PART: Final = 4
"""A renewal is late when less than one part in so many of the lifetime is left."""
_LONGEST: Final = 8


def certificates_in(pem: bytes) -> tuple[x509.Certificate, ...]:
    """All of a PEM text; none where it holds none."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()


def bundle_in(text: str) -> tuple[x509.Certificate, ...]:
    """Of a `caBundle`: PEM in base64."""
    try:
        return certificates_in(base64.b64decode(text, validate=True))
    except binascii.Error:
        return ()


def fault_of_chain(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], name: str, now: datetime
) -> str | None:
    """Why a client that trusts `roots` and asks for `name` refuses this chain now."""
    leaf, *above = chain
    if not _is_for(leaf, name):
        return f"it is not for {name}"
    current = leaf
    for _ in range(_LONGEST):
        if not _is_valid(current, now):
            begins, ends = current.not_valid_before_utc, current.not_valid_after_utc
            return f"{_subject(current)} is valid from {_day(begins)} to {_day(ends)}"
        if any(current == one or _issued(current, one) for one in roots if _is_valid(one, now)):
            return None
        issuer = next((one for one in above if one != current and _issued(current, one)), None)
        if issuer is None:
            break
        current = issuer
    return f"no certificate of the bundle has issued {_subject(current)}"


def first_end(certificates: Iterable[x509.Certificate]) -> datetime:
    """When the first of them ends."""
    return min(one.not_valid_after_utc for one in certificates)


def is_late(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether it should have been renewed by now."""
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    return ends - now < min((ends - begins) / _PART, SOON)


def moment_text(moment: datetime) -> str:
    """For people."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d")


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "a certificate without a subject"


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_for(leaf: x509.Certificate, name: str) -> bool:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    names = {one.lower() for one in found.get_values_for_type(x509.DNSName)}
    addresses = {str(one) for one in found.get_values_for_type(x509.IPAddress)}
    return name in names | addresses or f"*.{name.partition('.')[2]}" in names
