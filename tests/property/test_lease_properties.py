"""Never two leaders, whatever is delayed, lost, restarted or set to a wrong time.

Replicas read and write one Lease with compare-and-set; each step of each may come at any
moment, or its answer never. Wall clocks are nonsense on purpose.
"""

import json

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.kube.api.leader_election import Candidate, Create, Lease, Update

_SECOND = 1_000_000_000
REPLICAS = st.integers(0, 2)


class Electing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000 * _SECOND
        self.version = 0
        self.spec: dict[str, object] | None = None
        self.started = 3
        self.candidates = [Candidate(f"replica-{n}") for n in range(3)]
        self.read: list[tuple[Lease | None] | None] = [None] * 3
        self.sent: list[tuple[Create | Update, int] | None] = [None] * 3

    def lease(self) -> Lease | None:
        if self.spec is None:
            return None
        body = {"metadata": {"resourceVersion": str(self.version)}, "spec": self.spec}
        return Lease.read(json.dumps(body).encode())

    @rule(seconds=st.sampled_from([0.5, 2.0, 9.0, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += int(seconds * _SECOND)

    @rule(n=REPLICAS)
    def reads(self, n: int) -> None:
        self.read[n] = (self.lease(),)

    @rule(n=REPLICAS, wall=st.integers(0, 4_000_000_000))
    def decides(self, n: int, wall: int) -> None:
        read, self.read[n] = self.read[n], None
        if read is not None and self.sent[n] is None:
            decided = self.candidates[n].decide(read[0], self.now, wall * _SECOND)
            self.sent[n] = None if decided is None else (decided, self.now)

    @rule(n=REPLICAS, is_answered=st.booleans())
    def the_write_arrives(self, n: int, *, is_answered: bool) -> None:
        sent, self.sent[n] = self.sent[n], None
        if sent is None:
            return
        decided, asked = sent
        wanted = decided.version if isinstance(decided, Update) else None
        if wanted != (None if self.spec is None else str(self.version)):
            self.candidates[n].lost()
            return
        self.spec, self.version = decided.spec, self.version + 1
        if is_answered:
            self.candidates[n].wrote(asked)

    @rule(n=REPLICAS)
    def tries_undisturbed(self, n: int) -> None:
        self.reads(n)
        self.decides(n, 0)
        self.the_write_arrives(n, is_answered=True)

    @rule(n=REPLICAS)
    def restarts(self, n: int) -> None:
        self.started += 1
        self.candidates[n] = Candidate(f"replica-{self.started}")
        self.read[n] = self.sent[n] = None

    @rule(n=REPLICAS)
    def releases(self, n: int) -> None:
        lease = self.lease()
        if lease is not None and self.sent[n] is None:
            update = self.candidates[n].release(lease, 0)
            if update is not None:
                self.spec, self.version = update.spec, self.version + 1

    @invariant()
    def one_at_most(self) -> None:
        assert sum(x.is_leader(self.now) for x in self.candidates) <= 1


Electing.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestElecting = Electing.TestCase
