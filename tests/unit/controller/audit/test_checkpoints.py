"""When the notary signs, what it shows and for how long, over a tree in memory."""

from base64 import b64decode, b64encode
from collections import deque

import pytest

from controller.audit.checkpoints import Draft, Notary, Published, Signed, key_record
from controller.audit.tree import LogState, NoNodeError, TreeFile
from controller.record import Record
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id, open_checkpoint
from gpuwarden.audit.merkle import Frontier, leaf_hash, stored_index, verify_consistency
from gpuwarden.audit.record import RecordKind
from tests.builders.log_keys import signer
from tests.builders.log_trees import naive_root
from tests.fakes.clock import FakeClock

ONE = signer(1)


class MemoryTree(TreeFile):
    """Keeps all hashes; `gone` are those that nobody can read."""

    def __init__(self) -> None:
        self.hashes = b""
        self.gone: set[tuple[int, int]] = set()
        self.flushes: list[bool] = []

    def begin(self, frontier: Frontier) -> None:
        del frontier

    def append(self, hashes: bytes) -> None:
        self.hashes += hashes

    def flush(self, *, durable: bool = False) -> None:
        self.flushes.append(durable)

    def node(self, level: int, offset: int) -> bytes:
        at = stored_index(level, offset) * 32
        if (level, offset) in self.gone or at >= len(self.hashes):
            raise NoNodeError(f"{level}, {offset}")
        return self.hashes[at : at + 32]


class Desk:
    """A notary with everything around it."""

    def __init__(self, state: LogState | None = None, tree: MemoryTree | None = None) -> None:
        self.clock = FakeClock()
        self.tree = tree or MemoryTree()
        self.state = state or LogState(Frontier())
        self.notary = Notary(self.state, self.tree, ONE, ("change",), self.clock)
        self.lines: list[bytes] = []

    def grow(self, records: int) -> Draft:
        draft = self.notary.draft()
        for _ in range(records):
            self.lines.append(b"line %d" % len(self.lines))
            draft.take(self.lines[-1])
        self.notary.commit(draft)
        return draft

    def publish(self) -> Signed:
        signed = self.notary.sign()
        self.notary.publish(signed)
        return signed

    @property
    def shown(self) -> Published:
        assert self.notary.published is not None
        return self.notary.published


def test_a_draft_changes_nothing_until_it_is_committed() -> None:
    desk = Desk()
    draft = desk.notary.draft()
    draft.take(b"a")
    draft.take(b"b")
    assert (draft.records, draft.log) == (2, log_id(leaf_hash(b"a")))
    assert draft.frontier.root() == naive_root([b"a", b"b"])
    assert (desk.state.frontier.size, desk.state.log, desk.tree.hashes) == (0, "", b"")
    desk.notary.commit(draft)
    assert (desk.state.frontier.root(), desk.state.log) == (draft.frontier.root(), draft.log)
    assert desk.tree.hashes == bytes(draft.hashes)


def test_the_first_record_is_certified_at_once_and_nothing_never() -> None:
    desk = Desk()
    desk.notary.demand()
    assert not desk.notary.due()
    desk = Desk()
    desk.grow(1)
    assert desk.notary.due()
    desk.publish()
    assert not desk.notary.due()


def test_a_checkpoint_is_due_after_ten_seconds_or_a_thousand_records() -> None:
    desk = Desk()
    desk.grow(1)
    desk.publish()
    desk.clock.advance(10)
    assert not desk.notary.due()
    desk.grow(999)
    desk.publish()
    desk.grow(1)
    desk.clock.boottime += 9_999_999_999
    assert not desk.notary.due()
    desk.clock.boottime += 1
    assert desk.notary.due()
    desk.publish()
    desk.grow(999)
    assert not desk.notary.due()
    desk.grow(1)
    assert desk.notary.due()


def test_a_demand_counts_once_and_waits_for_something_to_sign() -> None:
    desk = Desk()
    desk.grow(1)
    desk.publish()
    desk.notary.demand()
    assert not desk.notary.due()
    desk.grow(1)
    assert desk.notary.due()
    desk.publish()
    desk.grow(1)
    assert not desk.notary.due()


def test_what_is_signed_is_the_whole_tree() -> None:
    desk = Desk(LogState(Frontier(), prev=TreeHead(7, b"p" * 32)))
    desk.grow(5)
    signed = desk.publish()
    head = TreeHead(5, naive_root(desk.lines))
    log = log_id(leaf_hash(desk.lines[0]))
    assert signed.head == head
    assert open_checkpoint(signed.note, ONE.key) == Checkpoint(
        ONE.key.name, log, head, TreeHead(7, b"p" * 32)
    )
    assert signed.record() == Record(
        RecordKind.CHECKPOINT, "controller", "log", "signed", refs={"checkpoint": signed.note}
    )
    assert desk.shown == Published(
        signed.note, head, log, str(ONE.key), ("change",), {5: ()}, frozenset()
    )


def test_what_a_further_file_carries() -> None:
    desk = Desk()
    desk.grow(3)
    signed = desk.notary.sign()
    peaks = tuple(b64encode(x).decode() for x in desk.state.frontier.peaks)
    assert desk.notary.carried(signed) == {
        "checkpoint": signed.note,
        "frontier": peaks,
        "key": str(ONE.key),
    }


def test_a_change_of_key_is_a_record() -> None:
    refs = {"key": str(ONE.key), "statement": "text"}
    expected = Record(RecordKind.LOG_KEY, "controller", "log", "changed", refs=refs)
    assert key_record("text", ONE) == expected


def test_checkpoints_are_shown_a_second_apart() -> None:
    desk = Desk()
    desk.grow(1)
    first = desk.publish()
    desk.grow(1)
    desk.clock.advance(0.5)
    second = desk.publish()
    assert desk.shown.note == first.note
    desk.clock.boottime += 499_999_999
    desk.notary.tick()
    assert desk.shown.note == first.note
    desk.clock.boottime += 1
    desk.notary.tick()
    assert desk.shown.note == second.note
    assert list(desk.shown.proofs) == [1, 2]
    verify_consistency(
        1,
        naive_root(desk.lines[:1]),
        2,
        naive_root(desk.lines),
        [b64decode(x) for x in desk.shown.proofs[1]],
    )
    flushes = len(desk.tree.flushes)
    desk.clock.advance(100)
    desk.notary.tick()
    assert len(desk.tree.flushes) == flushes, "nothing waits, so nothing is made"


def test_the_first_checkpoint_is_shown_at_once_even_right_after_the_boot() -> None:
    desk = Desk()
    desk.clock.boottime = 0
    desk.grow(1)
    assert desk.publish().note == desk.shown.note


def test_a_proof_that_was_asked_for_comes_with_the_next_tick() -> None:
    desk = Desk()
    desk.grow(9)
    desk.publish()
    desk.notary.want(4)
    desk.clock.advance(1)
    desk.notary.tick()
    assert sorted(desk.shown.proofs) == [4, 9]
    desk.clock.advance(1)
    shown = desk.shown
    desk.notary.tick()
    assert desk.shown is shown


def test_nothing_is_shown_before_the_first_checkpoint() -> None:
    desk = Desk()
    desk.notary.want(4)
    desk.notary.tick()
    assert desk.notary.published is None


@pytest.mark.parametrize(("later", "kept"), [(119_999_999_999, [4, 9]), (120_000_000_000, [9])])
def test_proofs_are_kept_ready_for_two_minutes(later: int, kept: list[int]) -> None:
    desk = Desk()
    desk.grow(9)
    desk.publish()
    desk.notary.want(4)
    desk.clock.advance(1)
    desk.notary.tick()
    desk.clock.boottime += later
    desk.publish()
    assert sorted(desk.shown.proofs) == kept


def test_what_cannot_be_proven_is_said_and_what_is_to_come_is_not() -> None:
    desk = Desk()
    desk.grow(9)
    desk.tree.gone.add((2, 0))
    for size in (4, 8, 9, 10):
        desk.notary.want(size)
    desk.publish()
    assert (sorted(desk.shown.proofs), desk.shown.unprovable) == ([8, 9], frozenset({4}))


def test_a_damaged_tree_does_not_accuse_the_log() -> None:
    desk = Desk()
    desk.grow(9)
    desk.tree.hashes = b"?" * 32 + desk.tree.hashes[32:]
    desk.notary.want(1)
    desk.publish()
    assert desk.shown.unprovable == frozenset({1})


def test_no_more_than_256_sizes_are_asked_for_or_kept() -> None:
    desk = Desk()
    desk.grow(400)
    for size in range(1, 301):
        desk.notary.want(size)
    desk.publish()
    assert sorted(desk.shown.proofs) == [*range(46, 301), 400]
    for size in range(1, 11):
        desk.notary.want(size)
    desk.clock.advance(1)
    desk.publish()
    assert len(desk.shown.proofs) == 256
    assert set(range(1, 11)) <= set(desk.shown.proofs)


def test_what_an_earlier_process_had_shown_is_shown_again() -> None:
    before = Desk()
    before.grow(3)
    first = before.publish()
    before.grow(2)
    last = before.publish()
    heads = deque([first.head, last.head])
    state = LogState(before.state.frontier, before.state.log, None, ONE.key, heads, last.note)
    desk = Desk(state, before.tree)
    assert (desk.shown.note, desk.shown.head, desk.shown.log) == (
        last.note,
        last.head,
        before.state.log,
    )
    assert sorted(desk.shown.proofs) == [3, 5]
    assert not desk.notary.due()
    desk.grow(1)
    assert desk.notary.due()
    again = desk.publish()
    assert desk.shown.note == again.note


def test_the_tree_is_saved_as_it_is_asked_for() -> None:
    desk = Desk()
    desk.notary.save(durable=True)
    desk.notary.save(durable=False)
    assert desk.tree.flushes == [True, False]
