from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from controller.audit.files import LogBrokenError
from controller.audit.tree import LogState, NoNodeError, Replay, TreeFile
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id
from gpuwarden.audit.merkle import Frontier, leaf_hash
from gpuwarden.audit.record import decode_record
from tests.builders.audit_log import GENESIS, line
from tests.builders.log_keys import ORIGIN, signer
from tests.fakes.disk import FaultyDisk

# --- The tree's hashes on disk: written in large pieces, found again, given up when they cannot b

MIB = 1 << 20


def leaves(count: int) -> tuple[Frontier, bytes]:
    """A tree and all its hashes."""
    tree = Frontier()
    return tree, b"".join(tree.append(bytes([number]) * 32) for number in range(1, count + 1))


def opened(folder: Path, frontier: Frontier | None = None) -> TreeFile:
    tree = TreeFile(folder, FaultyDisk())
    tree.begin(frontier or Frontier())
    return tree


def size(folder: Path) -> int:
    return (folder / "tree").stat().st_size


def test_a_mebibyte_is_gathered_before_anything_is_written(tmp_path: Path) -> None:
    tree = opened(tmp_path)
    assert not tree.lost
    tree.append(b"h" * (MIB - 1))
    assert size(tmp_path) == 0
    tree.append(b"h")
    assert size(tmp_path) == MIB
    tree.append(b"i" * 32)
    assert size(tmp_path) == MIB
    tree.flush()
    assert (tmp_path / "tree").read_bytes() == b"h" * MIB + b"i" * 32
    assert (tmp_path / "tree").stat().st_mode & 0o777 == 0o600
    tree.close()
    tree.close()


def test_what_is_written_is_synced_only_where_that_is_wanted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    tree = TreeFile(tmp_path, disk)
    tree.begin(Frontier())
    tree.append(b"h" * 32)
    tree.flush()
    assert disk.syncs == 0
    tree.flush(durable=True)
    assert disk.syncs == 1
    tree.close()


def test_eight_mebibytes_may_wait(tmp_path: Path) -> None:
    disk = FaultyDisk(room=0)
    tree = TreeFile(tmp_path, disk)
    tree.begin(Frontier())
    tree.append(b"h" * (8 * MIB))
    assert tree.node(0, 0) == b"h" * 32
    disk.room = None
    tree.flush()
    assert size(tmp_path) == 8 * MIB

    disk.room = 0
    tree.append(b"i" * (8 * MIB + 1))
    with pytest.raises(NoNodeError, match="no hash at level 0, offset 0"):
        tree.node(0, 0)
    disk.room = None
    tree.append(b"j" * MIB)
    assert len(tree._waiting) == 0
    tree.flush()
    assert size(tmp_path) == 8 * MIB, "it has given up"
    tree.begin(Frontier())
    tree.append(b"k" * 32)
    assert tree.node(0, 0) == b"k" * 32
    tree.close()


def test_what_lies_behind_the_frontier_is_forgotten(tmp_path: Path) -> None:
    frontier, hashes = leaves(3)
    (tmp_path / "tree").write_bytes(hashes + b"later" * 20)
    tree = opened(tmp_path, frontier)
    assert not tree.lost
    assert (tmp_path / "tree").read_bytes() == hashes
    tree.append(b"x" * 32)
    tree.begin(frontier)
    assert tree.node(1, 0) == frontier.peaks[0]
    with pytest.raises(NoNodeError):
        tree.node(0, 3)
    tree.append(b"y" * 32)
    tree.flush()
    assert (tmp_path / "tree").read_bytes() == hashes + b"y" * 32
    tree.close()


@pytest.mark.parametrize("damage", ["short", "none", "changed"])
def test_a_tree_that_lacks_its_peaks_gets_them_and_says_so(tmp_path: Path, damage: str) -> None:
    frontier, hashes = leaves(3)
    if damage != "none":
        found = {"short": hashes[:40], "changed": b"?" * len(hashes)}[damage]
        (tmp_path / "tree").write_bytes(found)
    tree = opened(tmp_path, frontier)
    assert tree.lost
    assert [tree.node(1, 0), tree.node(0, 2)] == list(frontier.peaks)
    tree.close()
    assert not opened(tmp_path, frontier).lost


def test_one_descriptor_is_open_however_often_a_tree_begins(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    tree = opened(tmp_path)
    tree.begin(Frontier())
    assert len(list(descriptors.iterdir())) == before + 1
    tree.close()
    assert len(list(descriptors.iterdir())) == before


def test_what_is_closed_twice_closes_nothing_else(tmp_path: Path) -> None:
    tree = opened(tmp_path)
    tree.close()
    with (tmp_path / "tree").open("rb") as other:
        tree.close()
        assert other.read() == b""


def test_a_hole_is_no_hash(tmp_path: Path) -> None:
    frontier, hashes = leaves(3)
    (tmp_path / "tree").write_bytes(bytes(64) + hashes[64:])
    tree = opened(tmp_path, frontier)
    assert not tree.lost
    for offset in (0, 1):
        with pytest.raises(NoNodeError):
            tree.node(0, offset)
    tree.close()


def test_hashes_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "tree").symlink_to(tmp_path / "target")
    tree = opened(tmp_path)
    assert tree.lost
    assert not (tmp_path / "target").exists()


# --- What a log's records say when they are read again, record by record

ONE, TWO = signer(1), signer(2)
Entry = tuple[int, str, dict[str, Any]]
"""Number, kind, refs."""


class Hashes(TreeFile):
    """Notes what a tree is told."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.hashes = b""

    def begin(self, frontier: Frontier) -> None:
        self.begun.append(frontier.size)

    def append(self, hashes: bytes) -> None:
        self.hashes += hashes


def replayed(*records: Entry) -> tuple[LogState | None, Hashes, Frontier]:
    """What the records (number, kind, refs) come to, and the tree over them."""
    hashes, tree = Hashes(), Frontier()
    replay = Replay(hashes)
    for seq, kind, refs in records:
        prev = GENESIS if seq == 1 else "a" * 64
        text = line(seq, prev, kind=kind, refs=refs)[:-1]
        replay.take(decode_record(text), text)
        tree.append(leaf_hash(text))
    return replay.state, hashes, tree


def note(size: int, root: bytes, prev: TreeHead | None = None, log: str = "1f" * 16) -> str:
    return Checkpoint(ORIGIN, log, TreeHead(size, root), prev).signed(ONE)


def state_of(*records: Entry) -> LogState:
    state, _, _ = replayed(*records)
    assert state is not None
    return state


def test_a_log_from_its_first_record() -> None:
    state, hashes, tree = replayed(
        (1, "log.start", {"key": str(ONE.key)}), (2, "node.state", {}), (3, "node.state", {})
    )
    assert state is not None
    assert state.frontier.root() == tree.root()
    assert (state.key, state.prev, list(state.heads), state.note) == (ONE.key, None, [], "")
    first = line(1, GENESIS, kind="log.start", refs={"key": str(ONE.key)})[:-1]
    assert state.log == log_id(leaf_hash(first))
    assert (hashes.begun, len(hashes.hashes)) == ([0], 4 * 32)


def test_the_last_key_that_was_named_is_in_force() -> None:
    start = (1, "log.start", {"key": str(ONE.key)})
    assert state_of(start, (2, "log.key", {"key": str(TWO.key)})).key == TWO.key
    assert state_of(start, (2, "log.key", {"key": 7})).key == ONE.key
    assert state_of(start, (2, "log.start", {"key": str(TWO.key)})).key == TWO.key
    assert state_of(start, (2, "log.start", {})).key == ONE.key
    assert state_of(start, (2, "node.state", {"key": str(TWO.key)})).key == ONE.key


def test_where_a_lost_log_had_ended_is_said_by_the_first_record_only() -> None:
    before = note(5, b"r" * 32)
    head = TreeHead(5, b"r" * 32)
    assert state_of((1, "log.start", {"prevLog": before})).prev == head
    start: Entry = (1, "log.start", {})
    assert state_of(start, (2, "log.start", {"prevLog": before})).prev is None
    with pytest.raises(LogBrokenError, match="record 1: "):
        replayed((1, "log.start", {"prevLog": 7}))


def test_checkpoints_are_remembered_and_the_last_note() -> None:
    notes = [note(size, bytes([size]) * 32) for size in range(1, 41)]
    records = [(size + 1, "checkpoint", {"checkpoint": x}) for size, x in enumerate(notes, 1)]
    state = state_of((1, "log.start", {}), *records)
    assert [head.size for head in state.heads] == list(range(9, 41))
    assert state.note == notes[-1]
    with pytest.raises(LogBrokenError, match="record 2: "):
        replayed((1, "log.start", {}), (2, "checkpoint", {"checkpoint": "no note"}))
    assert state_of((1, "log.start", {}), (2, "checkpoint", {})).note == ""


def rotated(**changes: Any) -> Entry:
    """The first record of a further file, after two records."""
    tree = Frontier()
    tree.append(b"a" * 32)
    tree.append(b"b" * 32)
    refs = {
        "checkpoint": note(2, tree.root(), TreeHead(7, b"p" * 32)),
        "frontier": [b64encode(x).decode() for x in tree.peaks],
        "key": str(ONE.key),
    }
    return 3, "log.rotate", refs | changes


def test_a_log_from_a_further_file() -> None:
    state, hashes, _ = replayed(rotated())
    assert state is not None
    assert (state.log, state.prev, state.key) == ("1f" * 16, TreeHead(7, b"p" * 32), ONE.key)
    assert [head.size for head in state.heads] == [2]
    assert (state.frontier.size, hashes.begun, len(hashes.hashes)) == (3, [2], 32)
    assert state.before == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"frontier": ["!"]},
        {"frontier": [b64encode(b"short").decode()]},
        {"frontier": []},
        {"frontier": 7},
        {"frontier": [b64encode(b"a" * 32).decode() + "\n"]},
        {"checkpoint": "no note"},
    ],
)
def test_a_further_file_that_does_not_say_what_came_before(changes: dict[str, Any]) -> None:
    state, hashes, _ = replayed(rotated(**changes), (4, "node.state", {}))
    assert (state, hashes.begun, hashes.hashes) == (None, [], b"")


def test_a_further_file_without_a_frontier_says_nothing() -> None:
    seq, kind, refs = rotated()
    state, _, _ = replayed((seq, kind, {key: refs[key] for key in ("checkpoint", "key")}))
    assert state is None


def test_a_further_file_that_contradicts_itself_is_broken() -> None:
    for other in (note(2, b"x" * 32), note(3, b"x" * 32)):
        with pytest.raises(LogBrokenError, match="record 3: frontier and checkpoint contradict"):
            replayed(rotated(checkpoint=other))


def test_of_what_records_claim_the_last_1024_are_kept() -> None:
    state = LogState(Frontier())
    state.stops.extend(range(1025))
    assert list(state.stops) == list(range(1, 1025))
    assert state.checkpoints.maxlen == 1024
