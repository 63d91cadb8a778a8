"""What to write next, from the time and from what the Kubernetes API holds. Pure.

Three rules keep every client able to verify every certificate that is served, whatever is
interrupted or done twice:

1. A leaf of another authority is made only when every bundle holds that authority.
2. The authority that will issue next is made, and put into every bundle, when its predecessor
   begins to issue: whoever reads a bundle only at its start has it years before it is needed.
3. A former authority leaves the bundles when it has ended, and every leaf of it with it.
4. While controllers of two revisions run, one may still show a certificate that others made. What
   webhooks trust stays trusted then, and the scheduler, whose authority not all of them know, gets
   no certificate.

Each write is conditional on the version that was read, and the authorities are read last. So who
writes a bundle or a leaf knows authorities that are no older than what is replaced: two leaders do
not undo each other's work.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from cryptography import x509

from controller.certificates.leaves import AUTHORITY_SECRET, LeafSpec, is_for
from controller.certificates.material import (
    MOST_AUTHORITIES,
    Authorities,
    Issuer,
    Leaf,
    pem_of,
)

T = TypeVar("T")

LONGEST_SETTLING: Final = timedelta(days=1)
_SETTLING_SHARE: Final = 10
_AHEAD: Final = timedelta(hours=1)
"""A time that another replica wrote is not further ahead of this one's clock."""
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_LATE: Final = 2
"""A renewal is late when this part of `renew_before` has passed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long certificates live. `authority` is at least twice `leaf` and `renew_before`."""

    authority: timedelta
    """Time for which an authority issues."""
    leaf: timedelta
    renew_before: timedelta
    """How long before the end of a leaf another one is made; shorter than `leaf`."""

    @property
    def settling(self) -> timedelta:
        """How long an authority has to be in every bundle before it issues: clients read late."""
        return min(self.leaf / _SETTLING_SHARE, LONGEST_SETTLING)

    @property
    def last_of_authority(self) -> timedelta:
        """An authority that has no more left issues no leaf of full length, so the next does."""
        return self.leaf + self.renew_before


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """An object as it was read."""

    version: str
    value: T


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that is there, or may be, and cannot be used; `text` names it and says why."""

    text: str


Read = Found[T] | Unreadable | None
"""None: there is no such object."""


class TargetKind(StrEnum):
    """Where bundles are published, beside the leaves' Secrets."""

    MUTATING = "mutatingwebhookconfigurations"
    VALIDATING = "validatingwebhookconfigurations"
    CONFIG_MAP = "configmaps"


@dataclass(frozen=True, slots=True)
class Target:
    """One object with bundles in it."""

    kind: TargetKind
    name: str

    @property
    def is_ours(self) -> bool:
        """Whether it is made where it is missing."""
        return self.kind is TargetKind.CONFIG_MAP


@dataclass(frozen=True, slots=True)
class Bundles:
    """The bundles of one object; a webhook configuration has one for each webhook."""

    texts: tuple[bytes, ...]

    def hold(self, certificate: x509.Certificate) -> bool:
        """Whether each of them has this authority."""
        block = pem_of((certificate,))
        return all(block in text for text in self.texts)

    def beside(self, bundle: bytes) -> bytes:
        """What they hold that `bundle` does not, as it is written there, each once."""
        found = dict.fromkeys(x for text in self.texts for x in _BLOCK.findall(text))
        return b"".join(x + b"\n" for x in found if x not in bundle)


@dataclass(frozen=True, slots=True)
class Held:
    """What the API holds. The authorities have been read last."""

    targets: Mapping[Target, Read[Bundles]]
    leaves: Mapping[LeafSpec, Read[Leaf]]
    authorities: Read[Authorities]
    is_mixed: bool = False
    """Whether controllers of more than one revision run, or may."""

    def publish(self, certificate: x509.Certificate) -> bool:
        """Whether every client that reads a bundle finds this authority in it."""
        read = (x.value.bundle for x in self.leaves.values() if isinstance(x, Found))
        return _is_in(self.targets, certificate) and Bundles(tuple(read)).hold(certificate)


class Change(StrEnum):
    """What a write to the authorities does."""

    CREATED = "created"
    """The first, or after all had ended."""
    ANNOUNCED = "announced"
    """The one that will issue next was made."""
    PUBLISHED = "published"
    """It is in every bundle."""
    ROTATED = "rotated"
    """It issues from now on."""
    FORGOTTEN = "forgotten"
    """A former one has ended."""


@dataclass(frozen=True, slots=True)
class PutAuthorities:
    """Write the authorities; `version` None: create."""

    version: str | None
    authorities: Authorities
    change: Change


@dataclass(frozen=True, slots=True)
class PutBundle:
    """Write one bundle everywhere in an object, `count` times."""

    target: Target
    version: str | None
    bundle: bytes
    count: int


@dataclass(frozen=True, slots=True)
class PutLeaf:
    """Write a leaf; `is_new`: the certificate is another one, not its bundle alone."""

    spec: LeafSpec
    version: str | None
    leaf: Leaf
    is_new: bool


Write = PutAuthorities | PutBundle | PutLeaf


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that may be made in any order, and what somebody should know."""

    writes: tuple[Write, ...] = ()
    faults: tuple[str, ...] = ()


class Maker(Protocol):
    """Draws keys; a Protocol, because what draws is not pure."""

    def authority(self, now: datetime, ends: datetime) -> Issuer:
        """An authority."""

    def leaf(
        self, spec: LeafSpec, issuer: Issuer, bundle: bytes, now: datetime, ends: datetime
    ) -> Leaf:
        """A leaf."""


def is_trusted(leaf: Leaf, targets: Mapping[Target, Read[Bundles]]) -> bool:
    """Whether each of these bundles verifies the leaf."""
    return any(leaf.is_issued_by(x) and _is_in(targets, x) for x in leaf.trusted)


def plan(held: Held, now: datetime, terms: Terms, maker: Maker) -> Plan:
    """The next writes; none where everything is as it should be. `now` has whole seconds."""
    others = (*held.targets.values(), *held.leaves.values())
    faults = [one.text for one in others if isinstance(one, Unreadable)]
    if isinstance(held.authorities, Unreadable):
        return Plan((), (held.authorities.text, *faults))
    if held.authorities is None:
        first = _first(now, terms, maker, _issuers(held, now))
        return Plan((PutAuthorities(None, first, Change.CREATED),), tuple(faults))
    version, authorities = held.authorities.version, held.authorities.value
    faults += _late(held, authorities, now, terms)
    turned = _turned(authorities, held, now, terms, maker)
    if turned is not None:
        return Plan((PutAuthorities(version, *turned),), tuple(faults))
    writes = (*_publishing(held, authorities), *_leaves(held, authorities, now, terms, maker))
    return Plan(writes, tuple(faults))


# --- authorities


def _first(
    now: datetime, terms: Terms, maker: Maker, former: tuple[x509.Certificate, ...]
) -> Authorities:
    ends = now + terms.authority
    following = maker.authority(now, ends + terms.authority)
    return Authorities(maker.authority(now, ends), following, former)


def _issuers(held: Held, now: datetime) -> tuple[x509.Certificate, ...]:
    """Authorities of the leaves that are served, where somebody deleted their Secret."""
    found = {
        one
        for leaf in held.leaves.values()
        if isinstance(leaf, Found)
        for one in leaf.value.trusted
        if one.not_valid_after_utc > now and leaf.value.is_issued_by(one)
    }
    return tuple(found)[: MOST_AUTHORITIES - 2]


def _turned(
    authorities: Authorities, held: Held, now: datetime, terms: Terms, maker: Maker
) -> tuple[Authorities, Change] | None:
    """The authorities after their next change, and which it is; None where nothing changes."""
    current, following = authorities.current, authorities.next
    former = tuple(x for x in authorities.former if x.not_valid_after_utc > now)
    if former != authorities.former:
        return replace(authorities, former=former), Change.FORGOTTEN
    has_ended = current.ends <= now
    if following is not None and following.ends > now:
        if has_ended or (
            current.ends - now <= terms.last_of_authority
            and _has_settled(authorities, now, terms)
            and held.publish(following.certificate)
        ):
            return _rotated(authorities, following, now), Change.ROTATED
    elif has_ended:
        return _first(now, terms, maker, former), Change.CREATED
    else:
        following = maker.authority(now, current.ends + terms.authority)
        return Authorities(current, following, former), Change.ANNOUNCED
    is_known = authorities.published is not None and authorities.published <= now + _AHEAD
    if not is_known and held.publish(following.certificate):
        return replace(authorities, published=now), Change.PUBLISHED
    return None


def _has_settled(authorities: Authorities, now: datetime, terms: Terms) -> bool:
    published = authorities.published
    return published is not None and published + terms.settling <= now


def _rotated(authorities: Authorities, following: Issuer, now: datetime) -> Authorities:
    """The following one issues; of the one before it the certificate alone stays."""
    before = authorities.current.certificate
    former = authorities.former
    if before.not_valid_after_utc > now:
        former = (*former, before)[-(MOST_AUTHORITIES - 2) :]
    return Authorities(following, None, former)


# --- bundles


def _is_in(targets: Mapping[Target, Read[Bundles]], certificate: x509.Certificate) -> bool:
    for target, found in targets.items():
        match found:
            case None if not target.is_ours:
                continue  # no webhooks are registered
            case Found(_, bundles) if bundles.hold(certificate):
                continue
        return False
    return True


def _publishing(held: Held, authorities: Authorities) -> Iterator[Write]:
    bundle = authorities.bundle
    for target, found in held.targets.items():
        match found:
            case None if target.is_ours:
                yield PutBundle(target, None, bundle, 1)
            case Found(version, bundles):
                is_kept = held.is_mixed and not target.is_ours
                wanted = bundle + bundles.beside(bundle) if is_kept else bundle
                if set(bundles.texts) - {wanted}:
                    yield PutBundle(target, version, wanted, len(bundles.texts))
    for spec, leaf in held.leaves.items():
        match leaf:
            case Found(version, value) if value.bundle != bundle:
                yield PutLeaf(spec, version, replace(value, bundle=bundle), is_new=False)


# --- leaves


def _leaves(
    held: Held, authorities: Authorities, now: datetime, terms: Terms, maker: Maker
) -> Iterator[Write]:
    issuer, bundle = authorities.current, authorities.bundle
    is_known = held.publish(issuer.certificate)
    ends = min(now + terms.leaf, issuer.ends)
    for spec, read in held.leaves.items():
        match read:
            case None if is_known and not (spec.is_client and held.is_mixed):
                leaf = maker.leaf(spec, issuer, bundle, now, ends)
                yield PutLeaf(spec, None, leaf, is_new=True)
            case Found(version, value) if value.bundle == bundle:
                is_same = value.is_issued_by(issuer.certificate)
                is_due = value.ends - now <= terms.renew_before and ends > value.ends
                is_wanted = is_due or not is_same or not is_for(spec, value.certificate)
                if is_wanted and (is_known or is_same):
                    leaf = maker.leaf(spec, issuer, bundle, now, ends)
                    yield PutLeaf(spec, version, leaf, is_new=True)


def _late(held: Held, authorities: Authorities, now: datetime, terms: Terms) -> list[str]:
    """What should have been renewed by now."""
    limit = terms.renew_before / _LATE
    ends = {AUTHORITY_SECRET: authorities.current.ends}
    for spec, leaf in held.leaves.items():
        match leaf:
            case Found(_, value):
                ends[spec.secret] = value.ends
    return [
        f"Secret {secret}: the certificate ends at {end:%Y-%m-%dT%H:%M:%SZ} and was not renewed"
        for secret, end in ends.items()
        if end - now < limit
    ]
