"""When the checkpoint signer signs, what it shows and for how long, over a tree in memory."""

from base64 import b64decode, b64encode
from collections import deque

import pytest

from controller.audit.checkpoints import CheckpointSigner, Draft, Published, Signed, key_record
from controller.audit.tree import LogState, NoNodeError, TreeFile
from controller.record import Json, Record
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


class Workbench:
    """A checkpoint signer with everything around it."""

    def __init__(self, state: LogState | None = None, tree: MemoryTree | None = None) -> None:
        self.clock = FakeClock()
        self.tree = tree or MemoryTree()
        self.state = state or LogState(Frontier())
        self.checkpoint_signer = CheckpointSigner(
            self.state, self.tree, ONE, ("change",), self.clock
        )
        self.lines: list[bytes] = []

    def grow(self, records: int) -> Draft:
        draft = self.checkpoint_signer.draft()
        for _ in range(records):
            self.lines.append(b"line %d" % len(self.lines))
            draft.take(self.lines[-1])
        self.checkpoint_signer.commit(draft)
        return draft

    def publish(self) -> Signed:
        signed = self.checkpoint_signer.sign()
        self.checkpoint_signer.publish(signed)
        return signed

    @property
    def shown(self) -> Published:
        assert self.checkpoint_signer.published is not None
        return self.checkpoint_signer.published


def test_a_draft_changes_nothing_until_it_is_committed() -> None:
    workbench = Workbench()
    draft = workbench.checkpoint_signer.draft()
    draft.take(b"a")
    draft.take(b"b")
    assert (draft.records, draft.log) == (2, log_id(leaf_hash(b"a")))
    assert draft.frontier.root() == naive_root([b"a", b"b"])
    assert (workbench.state.frontier.size, workbench.state.log, workbench.tree.hashes) == (
        0,
        "",
        b"",
    )
    workbench.checkpoint_signer.commit(draft)
    assert (workbench.state.frontier.root(), workbench.state.log) == (
        draft.frontier.root(),
        draft.log,
    )
    assert workbench.tree.hashes == bytes(draft.hashes)


def test_the_first_record_is_certified_at_once_and_nothing_never() -> None:
    workbench = Workbench()
    workbench.checkpoint_signer.demand()
    assert not workbench.checkpoint_signer.due()
    workbench = Workbench()
    workbench.grow(1)
    assert workbench.checkpoint_signer.due()
    workbench.publish()
    assert not workbench.checkpoint_signer.due()


def test_a_checkpoint_is_due_after_ten_seconds_or_a_thousand_records() -> None:
    workbench = Workbench()
    workbench.grow(1)
    workbench.publish()
    workbench.clock.advance(10)
    assert not workbench.checkpoint_signer.due()
    workbench.grow(999)
    workbench.publish()
    workbench.grow(1)
    workbench.clock.boottime += 9_999_999_999
    assert not workbench.checkpoint_signer.due()
    workbench.clock.boottime += 1
    assert workbench.checkpoint_signer.due()
    workbench.publish()
    workbench.grow(999)
    assert not workbench.checkpoint_signer.due()
    workbench.grow(1)
    assert workbench.checkpoint_signer.due()


def test_a_demand_counts_once_and_waits_for_something_to_sign() -> None:
    workbench = Workbench()
    workbench.grow(1)
    workbench.publish()
    workbench.checkpoint_signer.demand()
    assert not workbench.checkpoint_signer.due()
    workbench.grow(1)
    assert workbench.checkpoint_signer.due()
    workbench.publish()
    workbench.grow(1)
    assert not workbench.checkpoint_signer.due()


def test_what_is_signed_is_the_whole_tree() -> None:
    workbench = Workbench(LogState(Frontier(), prev=TreeHead(7, b"p" * 32)))
    workbench.grow(5)
    signed = workbench.publish()
    head = TreeHead(5, naive_root(workbench.lines))
    log = log_id(leaf_hash(workbench.lines[0]))
    assert signed.head == head
    assert open_checkpoint(signed.note, ONE.key) == Checkpoint(
        ONE.key.name, log, head, TreeHead(7, b"p" * 32)
    )
    refs: dict[str, Json] = {"checkpoint": signed.note, "age": 77}
    assert signed.record(77) == Record(
        RecordKind.CHECKPOINT, "controller", "log", "signed", refs=refs
    )
    assert workbench.shown == Published(
        signed.note, head, log, str(ONE.key), ("change",), {5: ()}, frozenset()
    )


def test_what_a_further_file_carries() -> None:
    workbench = Workbench()
    workbench.grow(3)
    signed = workbench.checkpoint_signer.sign()
    peaks = tuple(b64encode(x).decode() for x in workbench.state.frontier.peaks)
    assert workbench.checkpoint_signer.carried(signed) == {
        "checkpoint": signed.note,
        "frontier": peaks,
        "key": str(ONE.key),
    }


def test_a_change_of_key_is_a_record() -> None:
    refs = {"key": str(ONE.key), "statement": "text"}
    expected = Record(RecordKind.LOG_KEY, "controller", "log", "changed", refs=refs)
    assert key_record("text", ONE) == expected


def test_checkpoints_are_shown_a_second_apart() -> None:
    workbench = Workbench()
    workbench.grow(1)
    first = workbench.publish()
    workbench.grow(1)
    workbench.clock.advance(0.5)
    second = workbench.publish()
    assert workbench.shown.note == first.note
    workbench.clock.boottime += 499_999_999
    workbench.checkpoint_signer.tick()
    assert workbench.shown.note == first.note
    workbench.clock.boottime += 1
    workbench.checkpoint_signer.tick()
    assert workbench.shown.note == second.note
    assert list(workbench.shown.proofs) == [1, 2]
    verify_consistency(
        1,
        naive_root(workbench.lines[:1]),
        2,
        naive_root(workbench.lines),
        [b64decode(x) for x in workbench.shown.proofs[1]],
    )
    flushes = len(workbench.tree.flushes)
    workbench.clock.advance(100)
    workbench.checkpoint_signer.tick()
    assert len(workbench.tree.flushes) == flushes, "nothing waits, so nothing is made"


def test_the_first_checkpoint_is_shown_at_once_even_right_after_the_boot() -> None:
    workbench = Workbench()
    workbench.clock.boottime = 0
    workbench.grow(1)
    assert workbench.publish().note == workbench.shown.note


def test_a_proof_that_was_asked_for_comes_with_the_next_tick() -> None:
    workbench = Workbench()
    workbench.grow(9)
    workbench.publish()
    workbench.checkpoint_signer.want(4)
    workbench.clock.advance(1)
    workbench.checkpoint_signer.tick()
    assert sorted(workbench.shown.proofs) == [4, 9]
    workbench.clock.advance(1)
    shown = workbench.shown
    workbench.checkpoint_signer.tick()
    assert workbench.shown is shown


def test_nothing_is_shown_before_the_first_checkpoint() -> None:
    workbench = Workbench()
    workbench.checkpoint_signer.want(4)
    workbench.checkpoint_signer.tick()
    assert workbench.checkpoint_signer.published is None


@pytest.mark.parametrize(("later", "kept"), [(119_999_999_999, [4, 9]), (120_000_000_000, [9])])
def test_proofs_are_kept_ready_for_two_minutes(later: int, kept: list[int]) -> None:
    workbench = Workbench()
    workbench.grow(9)
    workbench.publish()
    workbench.checkpoint_signer.want(4)
    workbench.clock.advance(1)
    workbench.checkpoint_signer.tick()
    workbench.clock.boottime += later
    workbench.publish()
    assert sorted(workbench.shown.proofs) == kept


def test_what_cannot_be_proven_is_said_and_what_is_to_come_is_not() -> None:
    workbench = Workbench()
    workbench.grow(9)
    workbench.tree.gone.add((2, 0))
    for size in (4, 8, 9, 10):
        workbench.checkpoint_signer.want(size)
    workbench.publish()
    assert (sorted(workbench.shown.proofs), workbench.shown.unprovable) == ([8, 9], frozenset({4}))


def test_a_damaged_tree_does_not_accuse_the_log() -> None:
    workbench = Workbench()
    workbench.grow(9)
    workbench.tree.hashes = b"?" * 32 + workbench.tree.hashes[32:]
    workbench.checkpoint_signer.want(1)
    workbench.publish()
    assert workbench.shown.unprovable == frozenset({1})


def test_no_more_than_256_sizes_are_asked_for_or_kept() -> None:
    workbench = Workbench()
    workbench.grow(400)
    for size in range(1, 301):
        workbench.checkpoint_signer.want(size)
    workbench.publish()
    assert sorted(workbench.shown.proofs) == [*range(46, 301), 400]
    for size in range(1, 11):
        workbench.checkpoint_signer.want(size)
    workbench.clock.advance(1)
    workbench.publish()
    assert len(workbench.shown.proofs) == 256
    assert set(range(1, 11)) <= set(workbench.shown.proofs)


def test_what_an_earlier_process_had_shown_is_shown_again() -> None:
    before = Workbench()
    before.grow(3)
    first = before.publish()
    before.grow(2)
    last = before.publish()
    heads = deque([first.head, last.head])
    state = LogState(before.state.frontier, before.state.log, None, ONE.key, heads, last.note)
    workbench = Workbench(state, before.tree)
    assert (workbench.shown.note, workbench.shown.head, workbench.shown.log) == (
        last.note,
        last.head,
        before.state.log,
    )
    assert sorted(workbench.shown.proofs) == [3, 5]
    assert not workbench.checkpoint_signer.due()
    workbench.grow(1)
    assert workbench.checkpoint_signer.due()
    again = workbench.publish()
    assert workbench.shown.note == again.note


def test_the_tree_is_saved_as_it_is_asked_for() -> None:
    workbench = Workbench()
    workbench.checkpoint_signer.save(durable=True)
    workbench.checkpoint_signer.save(durable=False)
    assert workbench.tree.flushes == [True, False]
