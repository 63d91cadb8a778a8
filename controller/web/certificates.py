"""Whether a certificate chain can serve now, and whether it may replace the one in use. Pure.

Nobody here knows which CA the clients trust. So a chain is compared with the one that they accept
already: it must have all its names, and must not end sooner below the same CA.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

LATE: Final = 4
"""A renewal is late when less than one part in so many of the lifetime is left."""
LATE_AT_MOST: Final = timedelta(days=14)


class ChainUnreadableError(Exception):
    """The bytes hold no certificates."""


@dataclass(frozen=True, slots=True)
class ServingChain:
    """What a listener shows: its certificate, then those that lead to the CA."""

    certificates: tuple[x509.Certificate, ...]

    @property
    def leaf(self) -> x509.Certificate:
        """The listener's own."""
        return self.certificates[0]

    @property
    def ends(self) -> datetime:
        """When the first of them ends."""
        return min(one.not_valid_after_utc for one in self.certificates)

    @property
    def begins(self) -> datetime:
        """When the last of them begins."""
        return max(one.not_valid_before_utc for one in self.certificates)

    @property
    def names(self) -> frozenset[str]:
        """DNS names in lower case, and addresses."""
        try:
            found = self.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return frozenset()
        dns = {name.lower() for name in found.get_values_for_type(x509.DNSName)}
        return frozenset(dns | {str(x) for x in found.get_values_for_type(x509.IPAddress)})

    @property
    def above(self) -> x509.Name:
        """The CA that the chain leads to and that clients have to know."""
        return self.certificates[-1].issuer

    def is_late(self, now: datetime) -> bool:
        """Whether it should have been renewed by now."""
        left = self.ends - now
        return left < min((self.ends - self.begins) / LATE, LATE_AT_MOST)


def read_serving_chain(pem: bytes) -> ServingChain:
    """The chain of a PEM file; raises ChainUnreadableError."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ChainUnreadableError("no PEM certificates") from error
    return ServingChain(tuple(found))


def fault_of(chain: ServingChain, now: datetime) -> str | None:
    """Why no client would accept the chain now; None where nothing is known against it."""
    return next(_faults(chain, now), None)


def fault_against(
    chain: ServingChain, in_use: ServingChain, known_cas: Sequence[x509.Certificate]
) -> str | None:
    """Why clients that accept the chain in use might not accept this one.

    `known_cas` are CAs that this listener was given, for its clients: often the same that issued
    its own certificate.
    """
    missing = sorted(name for name in in_use.names if not _covers(chain.names, name))
    if missing:
        return f"is not for {', '.join(missing)}, which the one in use is for"
    if len(chain.certificates) >= len(in_use.certificates):
        return None
    roots = {one.subject for one in known_cas if one.subject == one.issuer}
    if chain.above == in_use.above or chain.above in roots:
        return None
    above, before = chain.above.rfc4514_string(), in_use.above.rfc4514_string()
    return f"comes without its chain: it ends below {above!r}, the one in use below {before!r}"


def fault_of_client_cas(cas: Sequence[x509.Certificate], now: datetime) -> str | None:
    """Why no client could connect."""
    if any(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in cas):
        return None
    return "no client CA is valid now"


def _faults(chain: ServingChain, now: datetime) -> Iterator[str]:
    if now >= chain.ends:
        yield f"has ended at {_shown(chain.ends)}"
    if now < chain.begins:
        yield f"is not valid before {_shown(chain.begins)}"
    if not _is_for_servers(chain.leaf):
        yield "is not for servers (extended key usage)"
    for number, (one, issuer) in enumerate(
        zip(chain.certificates, chain.certificates[1:], strict=False), start=2
    ):
        if not _issued(one, issuer):
            yield f"comes with a wrong chain: certificate {number} did not issue the one before it"


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_for_servers(leaf: x509.Certificate) -> bool:
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except ValueError:
        return False
    wanted = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    return bool(wanted & set(usages))


def _covers(names: frozenset[str], wanted: str) -> bool:
    _, _, parent = wanted.partition(".")
    return wanted in names or (bool(parent) and f"*.{parent}" in names)


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
