"""This process's X509-SVID as an immutable snapshot, and the seam to whoever supplies it.

A snapshot is coherent: key, leaf, intermediates and trust bundle were current
together. It never leaves the process; nothing here writes a key anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from gpuwarden.identity.spiffe_id import SpiffeId

PrivateKey = EllipticCurvePrivateKey | RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Svid:
    """One generation of this process's identity.

    `chain` is the leaf followed by its intermediates, `roots` is the bundle of the
    own trust domain only: a foreign domain's roots could vouch for gpuwarden's names.
    """

    spiffe_id: SpiffeId
    private_key: PrivateKey = field(repr=False)
    chain: tuple[x509.Certificate, ...]
    roots: tuple[x509.Certificate, ...]
    generation: int
    """Counts from 1; differs whenever key, chain or roots differ."""

    @property
    def leaf(self) -> x509.Certificate:
        """The certificate that carries the SPIFFE ID."""
        return self.chain[0]

    @property
    def not_after(self) -> datetime:
        """End of validity of the leaf, UTC."""
        return self.leaf.not_valid_after_utc


class SvidSource(Protocol):
    """Supplies the current SVID. Thread-safe: gRPC asks from its own threads."""

    def current(self) -> Svid | None:
        """The current SVID, or None while there is none that is valid now."""

    def state(self) -> str:
        """One line for readiness and logs: why there is none, or which one there is."""

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` (from any thread) after each change; returns the way to stop that."""
