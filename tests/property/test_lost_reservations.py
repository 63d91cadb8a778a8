"""Two logs and a ledger that is put back: what is in force is held again, whoever made it.

Each replica notes what it does, and while it runs also the ends that the other one saw to. Cards
that nobody has move between two nodes; what the copy has on the wrong one is waited for.
"""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.binding.records import ReservationChange, ended_record, reservation_record
from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.restore import Elsewhere, LoggedGrant, lost_grants, restored_as_releasing
from controller.ledger.store import Entry, LedgerSnapshot
from controller.operations.logged import open_grants
from controller.record import Record
from tests.builders.ledger import CALL, holder
from tests.builders.logged import logged

GPUS = tuple(f"GPU-{x}" for x in "abc")


@dataclass
class World:
    ledger: dict[str, GpuRecord] = field(default_factory=dict)
    copies: list[dict[str, GpuRecord]] = field(default_factory=list)
    """Of the ledger, as it was once."""
    logs: tuple[list[Record], list[Record]] = field(default_factory=lambda: ([], []))
    up: list[bool] = field(default_factory=lambda: [True, True])
    made: int = 0
    unseen: set[str] = field(default_factory=set)
    """Reservations that ended while their maker was down."""
    moved: set[str] = field(default_factory=set)
    """Keys of the cards that are in the second node now."""

    def reserve(self, who: int, gpu: str) -> None:
        if not self.up[who] or gpu.lower() in self.ledger:
            return
        self.made += 1
        pod = PodRef("team-a", f"p-{self.made}", f"uid-{self.made}")
        part = holder(gpu, pod=pod)
        node = "gpu-2" if gpu.lower() in self.moved else "gpu-1"
        self.ledger[gpu.lower()] = GpuRecord(gpu, node, (part,))
        self.note(who, pod, part.reservation, gpu, HolderState.PROPOSED)

    def move(self, gpu: str) -> None:
        if gpu.lower() not in self.ledger:
            self.moved ^= {gpu.lower()}

    def end(self, who: int, gpu: str) -> None:
        record = self.ledger.get(gpu.lower())
        if not self.up[who] or record is None:
            return
        del self.ledger[record.key]
        for part in record.holders:
            self.note(who, part.pod, part.reservation, gpu, HolderState.RELEASED)
            other = self.logs[1 - who]
            grant = LoggedGrant(gpu, record.node, part.reservation, part.pod, part.gpus)
            if not self.up[1 - who]:
                self.unseen.add(part.reservation)
            elif (gpu.lower(), part.reservation) in open_grants(logged(*other)):
                other.append(ended_record(grant))

    def note(self, who: int, pod: PodRef, reservation: str, gpu: str, state: HolderState) -> None:
        node = "gpu-2" if gpu.lower() in self.moved else "gpu-1"
        change = ReservationChange(pod, reservation, node, (gpu,), state, "why")
        self.logs[who].append(reservation_record(change))

    def put_back(self, copy: dict[str, GpuRecord]) -> None:
        """Everybody restarts on an older ledger, one after the other."""
        truth = self.held()
        self.ledger, self.up = dict(copy), [True, True]
        before = self.held()
        waiting = self.restored_as_releasing()
        assert truth <= self.held() | {(x.node, x.reservation) for x in waiting}
        unseen = self.held() - truth - before
        assert {reservation for _, reservation in unseen} <= self.unseen
        while truth - self.held():
            self.ended({x.gpu.lower() for x in waiting}, truth)
            waiting = self.restored_as_releasing()
        while self.ledger:
            self.ended({*self.ledger}, set())
            self.restored_as_releasing()
        assert [open_grants(logged(*log)) for log in self.logs] == [{}, {}]

    def restored_as_releasing(self) -> list[LoggedGrant]:
        """Those that wait for a record of another node, after each log was gone through."""
        waiting = []
        for log in self.logs:
            for grant in lost_grants(open_grants(logged(*log)), self.snapshot(), ()):
                record = restored_as_releasing(self.ledger.get(grant.gpu.lower()), grant, CALL)
                assert record is not None
                if isinstance(record, Elsewhere):
                    assert self.ledger[grant.gpu.lower()].node == record.node != grant.node
                    waiting.append(grant)
                else:
                    self.ledger[record.key] = record
        return waiting

    def ended(self, keys: set[str], but: set[tuple[str, str]]) -> None:
        """Records without any of `but` come to their end, and every log notes it."""
        for key in keys:
            record = self.ledger[key]
            if {(record.node, x.reservation) for x in record.holders} & but:
                continue
            del self.ledger[key]
            for part in record.holders:
                grant = LoggedGrant(record.gpu, record.node, part.reservation, part.pod, part.gpus)
                for log in self.logs:
                    log.append(ended_record(grant))

    def held(self) -> set[tuple[str, str]]:
        return {(y.node, x.reservation) for y in self.ledger.values() for x in y.holders}

    def snapshot(self) -> LedgerSnapshot:
        return LedgerSnapshot.of(Entry(x, "1") for x in self.ledger.values())


WHO = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("reserve"), WHO, st.sampled_from(GPUS)),
    st.tuples(st.just("end"), WHO, st.sampled_from(GPUS)),
    st.tuples(st.just("move"), WHO, st.sampled_from(GPUS)),
    st.tuples(st.just("switch"), WHO, st.just("")),
    st.tuples(st.just("copy"), WHO, st.just("")),
)


MOVED = [
    ("reserve", 0, "GPU-a"),
    ("copy", 0, ""),
    ("end", 0, "GPU-a"),
    ("move", 0, "GPU-a"),
    ("reserve", 1, "GPU-a"),
]
"""The copy has the card in the node that it was moved from."""


@example(MOVED, 1)
@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30), st.integers(0, 30))
def test_nothing_in_force_is_lost(steps: list[tuple[str, int, str]], which: int) -> None:
    world = World()
    for what, who, gpu in steps:
        match what:
            case "reserve":
                world.reserve(who, gpu)
            case "end":
                world.end(who, gpu)
            case "move":
                world.move(gpu)
            case "switch":
                world.up[who] = not world.up[who]
            case _:
                world.copies.append(dict(world.ledger))
    copies = [{}, *world.copies]
    world.put_back(copies[which % len(copies)])
