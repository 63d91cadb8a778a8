"""The tree's hashes on disk: written in large pieces, found again, given up when they cannot be."""

from pathlib import Path

import pytest

from controller.audit.tree import NoNodeError, TreeFile
from gpuwarden.audit.merkle import Frontier
from tests.fakes.disk import FaultyDisk

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
