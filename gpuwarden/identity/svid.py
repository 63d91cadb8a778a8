"""This process's X509-SVID as an immutable snapshot, who supplies it, and which offers become one.

A snapshot is coherent: key, leaf, intermediates and trust bundle were current together. It never
leaves the process; nothing here writes a key anywhere.

The `spiffe` library checks neither that key and leaf belong together, nor dates, nor the chain
against the bundle. `appraise` does, before anybody signs or dials with an SVID. Pure: takes `now`,
returns a value or raises.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.identity.chain import ChainError, spiffe_id_of, verify_chain
from gpuwarden.identity.spiffe_id import SpiffeId, SpiffeIdError, parse_spiffe_id

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


# --- offers of the Workload API

Wanted = Callable[[SpiffeId], bool]
"""Whether an identity is the one this process is configured to have."""

_SHOWN_IDS = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """One coherent answer of the Workload API, reduced to one of its SVIDs.

    `chain` is leaf first, `roots` the bundle of that SVID's own trust domain,
    `offered` all SPIFFE IDs that the answer had.
    """

    spiffe_id: str
    private_key: object = field(repr=False)
    chain: tuple[x509.Certificate, ...]
    roots: tuple[x509.Certificate, ...]
    offered: tuple[str, ...]


class OfferRefusedError(Exception):
    """This offer cannot be used; an earlier one stays good until it expires."""


class IdentityWithdrawnError(OfferRefusedError):
    """The identity is no longer offered at all, so an earlier SVID must not be used either."""


def exactly(spiffe_id: SpiffeId) -> Wanted:
    """The matcher for one configured identity."""
    return lambda offered: offered == spiffe_id


def choose(offered: Sequence[str], wanted: Wanted) -> int:
    """Index of the SVID to take; 0 if none is wanted (`appraise` then reports it). Never raises.

    Of several SVIDs with the wanted identity it is the first, of several wanted
    identities the first in the order of their names: what counts is never the
    order in which an agent happens to send different identities.
    """
    matches = [(text, index) for index, text in enumerate(offered) if _is_wanted(text, wanted)]
    return min(matches)[1] if matches else 0


def appraise(
    offer: Offer, wanted: Wanted, now: datetime, max_lifetime: timedelta, generation: int
) -> Svid:
    """The offer as an SVID of that generation, or OfferRefusedError with the reason."""
    if not _is_wanted(offer.spiffe_id, wanted):
        raise IdentityWithdrawnError(f"configured identity not offered, only {_shown(offer)}")
    leaf = offer.chain[0]
    key = _matching_key(offer)
    lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    if lifetime > max_lifetime:
        raise OfferRefusedError(f"SVID lives {lifetime}, at most {max_lifetime} is accepted")
    try:
        verify_chain([c.public_bytes(Encoding.DER) for c in offer.chain], offer.roots, now)
        spiffe_id = spiffe_id_of(leaf)
    except (ChainError, SpiffeIdError) as error:
        raise OfferRefusedError(f"SVID refused: {error}") from error
    if str(spiffe_id) != offer.spiffe_id:
        raise OfferRefusedError(f"leaf carries {spiffe_id}, offered as {offer.spiffe_id}")
    return Svid(spiffe_id, key, offer.chain, offer.roots, generation)


def is_same(svid: Svid, offer: Offer) -> bool:
    """Whether `svid` was made from what `offer` holds (a new leaf always has a new serial)."""
    return svid.chain == offer.chain and svid.roots == offer.roots


def is_behind(seen: Offer, fresh: Offer) -> bool:
    """Whether a watch that still reports `seen` has missed what a fetch just answered.

    A leaf that is a little newer proves nothing (some agents issue one per call);
    one that began a quarter of its lifetime later does, as do another bundle or
    another identity.
    """
    if seen.roots != fresh.roots or seen.spiffe_id != fresh.spiffe_id:
        return True
    leaf = fresh.chain[0]
    lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return leaf.not_valid_before_utc - seen.chain[0].not_valid_before_utc >= lifetime / 4


def is_stale(svid: Svid, now: datetime) -> bool:
    """Whether a renewal is overdue: SPIRE renews at half of the lifetime, this is at 3/4."""
    leaf = svid.leaf
    return leaf.not_valid_after_utc - now < lifetime_of(svid) / 4


def lifetime_of(svid: Svid) -> timedelta:
    """From the begin of the leaf to its end."""
    return svid.leaf.not_valid_after_utc - svid.leaf.not_valid_before_utc


def end_of(svid: Svid) -> datetime:
    """When the first certificate of the chain ends; the SVID is not served from then on."""
    return min(certificate.not_valid_after_utc for certificate in svid.chain)


def _is_wanted(text: str, wanted: Wanted) -> bool:
    try:
        return wanted(parse_spiffe_id(text))
    except SpiffeIdError:
        return False


def _shown(offer: Offer) -> str:
    rest = len(offer.offered) - _SHOWN_IDS
    return ", ".join(offer.offered[:_SHOWN_IDS]) + (f" and {rest} more" if rest > 0 else "")


def _matching_key(offer: Offer) -> EllipticCurvePrivateKey | RSAPrivateKey:
    key = offer.private_key
    if not isinstance(key, EllipticCurvePrivateKey | RSAPrivateKey):
        raise OfferRefusedError(f"key is {type(key).__name__}, expected EC or RSA")
    if key.public_key() != offer.chain[0].public_key():
        raise OfferRefusedError("private key does not belong to the leaf")
    return key
