"""Whoever trusts a published bundle can verify every certificate that is served, at any moment.

Two leaders read and write at the same time, in any order, are killed between any two writes, and
have clocks that are wrong by up to half an hour. Replicas and clients read late. A scheduler reads
its bundle when it starts and never again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from cryptography import x509
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.certificates.issuing import CertificateMaker
from controller.certificates.leaves import leaf_specs
from controller.certificates.plan import (
    Bundles,
    Found,
    Held,
    PutAuthorities,
    PutBundle,
    PutLeaf,
    Target,
    TargetKind,
    Terms,
    Write,
    plan,
)

SPECS = {spec.name: spec for spec in leaf_specs("gpuwarden-system")}
WEBHOOKS = Target(TargetKind.MUTATING, "gpuwarden-pods")
PEOPLE = Target(TargetKind.CONFIG_MAP, "gpuwarden-ca")
TARGETS = (WEBHOOKS, PEOPLE)
TERMS = Terms(timedelta(hours=60), timedelta(hours=20), timedelta(hours=5))
"""Settling takes 2 hours."""
BEGIN = datetime(2026, 11, 29, tzinfo=UTC)
TICK = timedelta(minutes=30)
LATEST = timedelta(hours=1)
"""How late replicas and clients read what was written."""
LONGEST_OUTAGE = timedelta(hours=8)
"""Of all controllers; longer than a leaf lasts that should have been renewed."""
SCHEDULER_RUNS = TERMS.authority - TERMS.last_of_authority - LONGEST_OUTAGE - LATEST - TICK
"""How long a scheduler runs with the bundle that it read."""

Store = dict[Any, Found[Any]]


@cache
def subjects(bundle: bytes) -> dict[x509.Name, datetime]:
    """Names of the authorities, each of which has its own, and their ends."""
    found = x509.load_pem_x509_certificates(bundle)
    return {one.subject: one.not_valid_after_utc for one in found}


@dataclass
class Reader:
    """Somebody who has an old copy of what is stored."""

    read_at: datetime
    copy: Store = field(default_factory=dict)

    def read(self, store: Store, now: datetime) -> None:
        self.copy, self.read_at = dict(store), now


def bundle_of(store: Store, key: Any) -> bytes:
    """Empty before there is one."""
    found = store.get(key)
    if found is None:
        return b""
    bundle: bytes = found.value.texts[0] if isinstance(found.value, Bundles) else found.value.bundle
    return bundle


class Rotating(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.versions = count(1)
        # Webhooks are registered before anybody knows their authority.
        self.store: Store = {WEBHOOKS: Found("0", Bundles((b"", b"")))}
        self.replicas = [Reader(BEGIN), Reader(BEGIN - TICK)]
        self.api_server, self.kubelet = Reader(BEGIN - TICK), Reader(BEGIN)
        self.person, self.scheduler = Reader(BEGIN), Reader(BEGIN)
        self.maker = CertificateMaker()
        self.skew = [timedelta(), timedelta()]
        self.leaders = [self.lead(0), self.lead(1)]
        self.attended_at = BEGIN

    # --- what a leader does, one call of the API after the other ---

    def lead(self, number: int) -> Iterator[None]:
        while True:
            targets = {}
            for target in TARGETS:
                targets[target] = self.store.get(target)
                yield
            leaves = {}
            for spec in SPECS.values():
                leaves[spec] = self.store.get(spec)
                yield
            held = Held(targets, leaves, self.store.get("authorities"))
            yield
            for write in plan(held, self.now + self.skew[number], TERMS, self.maker).writes:
                self.write(write)
                yield

    def write(self, write: Write) -> None:
        """Taken if the object still has the version that it was made from."""
        key, value = stored(write)
        found = self.store.get(key)
        if (None if found is None else found.version) == write.version:
            self.store[key] = Found(str(next(self.versions)), value)
            self.check()

    def settle(self) -> None:
        """One leader, undisturbed, until nothing is left to do."""
        for _ in range(20):
            held = Held(
                {x: self.store.get(x) for x in TARGETS},
                {x: self.store.get(x) for x in SPECS.values()},
                self.store.get("authorities"),
            )
            writes = plan(held, self.now, TERMS, self.maker).writes
            for write in writes:
                self.write(write)
            if not writes:
                self.attended_at = self.now
                return
        raise AssertionError("there is always something left to write")

    # --- what happens ---

    @rule(
        ticks=st.integers(1, 60),
        calls=st.lists(st.sampled_from([0, 1]), max_size=6) | st.sampled_from([[0] * 12, [1] * 12]),
    )
    def time_passes(self, ticks: int, calls: list[int]) -> None:
        """The leaders make these calls in each tick; with none, all controllers are down."""
        for _ in range(ticks):
            self.now += TICK
            for number in calls:
                next(self.leaders[number])
            if self.now - self.attended_at >= LONGEST_OUTAGE:
                self.settle()
            for reader in self.readers():
                if self.now - reader.read_at >= LATEST:
                    reader.read(self.store, self.now)
            if self.now - self.scheduler.read_at >= SCHEDULER_RUNS:
                self.scheduler.read(self.store, self.now)
            self.check()

    @rule(number=st.sampled_from([0, 1]), calls=st.integers(1, 12))
    def leader_calls(self, number: int, calls: int) -> None:
        for _ in range(calls):
            next(self.leaders[number])

    @rule(number=st.sampled_from([0, 1]))
    def leader_is_killed(self, number: int) -> None:
        self.leaders[number] = self.lead(number)

    @rule(number=st.sampled_from([0, 1]), minutes=st.integers(-30, 30))
    def clock_jumps(self, number: int, minutes: int) -> None:
        self.skew[number] = timedelta(minutes=minutes)

    @rule(number=st.integers(0, 4))
    def somebody_reads(self, number: int) -> None:
        self.readers()[number].read(self.store, self.now)

    @rule()
    def scheduler_starts(self) -> None:
        self.kubelet.read(self.store, self.now)
        self.scheduler.read(self.store, self.now)

    @rule()
    def all_is_healed(self) -> None:
        """A leader heals whatever was left, and then nothing is left to write."""
        self.settle()
        for spec in SPECS.values():
            leaf = self.store[spec].value
            assert leaf.ends - self.now > TERMS.renew_before
            assert any(leaf.is_issued_by(one) for one in leaf.trusted)

    def readers(self) -> list[Reader]:
        return [*self.replicas, self.api_server, self.person, self.kubelet]

    # --- what always holds ---

    @invariant()
    def check(self) -> None:
        for replica in self.replicas:
            self.verified(replica, "admission", bundle_of(self.api_server.copy, WEBHOOKS))
            self.verified(replica, "api", bundle_of(self.person.copy, PEOPLE))
            scheduler = bundle_of(self.scheduler.copy, SPECS["scheduler"])
            self.verified(replica, "extender", scheduler)
            self.verified(self.kubelet, "scheduler", bundle_of(replica.copy, SPECS["extender"]))
            for target, name in ((WEBHOOKS, "admission"), (PEOPLE, "access")):
                bundle = bundle_of(self.store, target)
                self.verified(replica, name, bundle)
                assert bundle or SPECS[name] not in replica.copy, "served before it is published"

    def verified(self, server: Reader, name: str, bundle: bytes) -> None:
        found = server.copy.get(SPECS[name])
        if found is None or not bundle or found.value.ends <= self.now:
            return  # nobody is there who could have renewed it; `all_is_healed` looks at that
        assert subjects(bundle)[found.value.certificate.issuer] > self.now, name

    @invariant()
    def bundles_stay_small(self) -> None:
        if "authorities" in self.store:
            assert len(self.store["authorities"].value.trusted) <= 3


def stored(write: Write) -> tuple[Any, Any]:
    match write:
        case PutAuthorities():
            return "authorities", write.authorities
        case PutBundle():
            return write.target, Bundles((write.bundle,) * write.count)
        case PutLeaf():
            return write.spec, write.leaf


@pytest.mark.parametrize("calls", [2, 8])
def test_a_leader_that_slept_through_a_rotation_undoes_nothing(calls: int) -> None:
    world = Rotating()
    world.time_passes(60, [1] * 12)
    before = world.store["authorities"].value.current
    for _ in range(calls):
        next(world.leaders[0])
    world.time_passes(110, [1] * 12)
    assert world.store["authorities"].value.current != before, "there was no rotation"
    for _ in range(30):
        next(world.leaders[0])
        world.check()
    world.time_passes(8, [1] * 12)


TestRotating = Rotating.TestCase
TestRotating.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
