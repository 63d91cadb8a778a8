"""An in-memory SPIFFE authority for tests: one call gives a key and a chain.

A thin front of the sandbox's throwaway CA; use that one directly for certificates
that a real authority would refuse to make.
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from gpuwarden.identity.spiffe_id import SpiffeId, parse_spiffe_id
from gpuwarden.identity.svid import PrivateKey, Svid
from sandbox.spiffe.ca import InsecureCa, LeafShape, new_key, utc_now

TRUST_DOMAIN = "example.org"
HOUR = timedelta(hours=1)


class SpiffeCa:
    """Root (and, if wanted, one intermediate) of one trust domain, with the time standing still.

    `at` is the moment of issuance; certificates begin 10 s earlier.
    """

    def __init__(
        self,
        trust_domain: str = TRUST_DOMAIN,
        *,
        intermediate: bool = False,
        at: datetime | None = None,
    ) -> None:
        self.trust_domain = trust_domain
        self._at = at or utc_now()
        self.root = InsecureCa(trust_domain, now=self._now)
        self._issuer = (
            InsecureCa(trust_domain, issuer=self.root, now=self._now) if intermediate else self.root
        )
        self._generation = 0

    @property
    def roots(self) -> tuple[x509.Certificate, ...]:
        """The trust bundle."""
        return (self.root.certificate,)

    def issue(
        self,
        spiffe_id: str | SpiffeId,
        lifetime: timedelta = HOUR,
        *,
        uris: tuple[str, ...] | None = None,
        not_before: datetime | None = None,
        key: PrivateKey | None = None,
        shape: LeafShape | None = None,
    ) -> tuple[PrivateKey, tuple[x509.Certificate, ...]]:
        """Key and chain (leaf first) for `spiffe_id`; `uris` replaces it as the leaf's names."""
        issued = self._issuer.issue(
            *((str(spiffe_id),) if uris is None else uris),
            ttl=lifetime,
            not_before=not_before,
            key=key or new_key(),
            shape=shape,
        )
        return issued.private_key, issued.chain

    def svid(self, spiffe_id: str | SpiffeId, lifetime: timedelta = HOUR) -> Svid:
        """A coherent SVID snapshot; each call is a new generation."""
        key, chain = self.issue(spiffe_id, lifetime)
        self._generation += 1
        return Svid(parse_spiffe_id(str(spiffe_id)), key, chain, self.roots, self._generation)

    def _now(self) -> datetime:
        return self._at


def plain_key() -> EllipticCurvePrivateKey:
    """A fresh P-256 key that belongs to nobody."""
    return new_key()
