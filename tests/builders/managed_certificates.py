"""Managed certificates at a moment of a test: authorities, leaves, and what the API holds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from controller.certificates.issuing import CertificateMaker
from controller.certificates.leaves import LeafSpec, leaf_specs
from controller.certificates.material import Authorities, Leaf
from controller.certificates.plan import (
    Bundles,
    Found,
    Held,
    Plan,
    PutAuthorities,
    PutBundle,
    PutLeaf,
    Target,
    TargetKind,
    Terms,
    Write,
    plan,
)

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
DAY = timedelta(days=1)
TERMS = Terms(authority=400 * DAY, leaf=90 * DAY, renew_before=30 * DAY)
"""Settling takes a day."""
SPECS = {spec.name: spec for spec in leaf_specs("gpuwarden-system")}
WEBHOOKS = Target(TargetKind.MUTATING, "gpuwarden-pods")
PEOPLE = Target(TargetKind.CONFIG_MAP, "gpuwarden-ca")
MAKER = CertificateMaker()


def authorities(
    now: datetime = NOW, *, published: datetime | None = NOW, lifetime: timedelta = 400 * DAY
) -> Authorities:
    """As they are made at `now`."""
    ends = now + lifetime
    following = MAKER.authority(now, ends + lifetime)
    return Authorities(MAKER.authority(now, ends), following, (), published)


def leaf(name: str, held: Authorities, now: datetime = NOW) -> Leaf:
    """As it is issued at `now`."""
    return MAKER.leaf(SPECS[name], held.current, held.bundle, now, now + TERMS.leaf)


def installed(held: Authorities, now: datetime = NOW) -> Held:
    """Everything as it should be, at version `1`."""
    bundle = held.bundle
    return Held(
        {WEBHOOKS: Found("1", Bundles((bundle, bundle))), PEOPLE: Found("1", Bundles((bundle,)))},
        {spec: Found("1", leaf(name, held, now)) for name, spec in SPECS.items()},
        Found("1", held),
    )


def after(held: Held, writes: tuple[Write, ...]) -> Held:
    """What the API holds after these writes, each of which is taken."""
    targets, leaves, kept = dict(held.targets), dict(held.leaves), held.authorities
    for write in writes:
        match write:
            case PutAuthorities():
                kept = Found("2", write.authorities)
            case PutBundle():
                targets[write.target] = Found("2", Bundles((write.bundle,) * write.count))
            case PutLeaf():
                leaves[write.spec] = Found("2", write.leaf)
    return replace(held, targets=targets, leaves=leaves, authorities=kept)


def next_step(held: Held, now: datetime = NOW, terms: Terms = TERMS) -> Plan:
    return plan(held, now, terms, MAKER)


def until_done(held: Held, now: datetime = NOW) -> tuple[Held, list[str]]:
    """What is held when nothing is left to write, and what was done, pass by pass."""
    done: list[str] = []
    while writes := next_step(held, now).writes:
        done.append(", ".join(dict.fromkeys(named(x) for x in writes)))
        held = after(held, writes)
        assert len(done) < 10, done
    return held, done


def named(write: Write) -> str:
    match write:
        case PutAuthorities():
            return write.change.value
        case PutBundle():
            return "bundle"
        case PutLeaf():
            return "leaf" if write.is_new else "bundle of a leaf"


def with_leaf(held: Held, spec: LeafSpec, found: Leaf) -> Held:
    return replace(held, leaves={**held.leaves, spec: Found("1", found)})


def value(found: object) -> Authorities:
    assert isinstance(found, Found)
    assert isinstance(found.value, Authorities)
    return found.value


def texts(held: Held, target: Target) -> set[bytes]:
    """What is in its bundles."""
    found = held.targets[target]
    assert isinstance(found, Found)
    return set(found.value.texts)
