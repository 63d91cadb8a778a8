"""Proofs from files: right whatever is left of the log, and none where nothing proves it."""

from pathlib import Path

import pytest

from gpuwarden.audit.files import file_name, log_files
from gpuwarden.audit.merkle import (
    HASH_BYTES,
    Frontier,
    leaf_hash,
    verify_consistency,
    verify_inclusion,
)
from gpuwarden.audit.proofs import NoProofError, VerifiedLog
from tests.builders.audit_log import line, log
from tests.builders.certified_log import CertifiedLog, rechained
from tests.builders.log_trees import naive_root

LOG = CertifiedLog().records(3).checkpoint().records(5).rotate().records(6).checkpoint().records(2)
ROTATED = 11
LINES = [line[:-1] for line in LOG.lines]


def written(folder: Path, *, later_only: bool = False, tree: bool = False) -> VerifiedLog:
    """Two files, or the second only, with or without the stored hashes."""
    if not later_only:
        (folder / file_name(1)).write_bytes(b"".join(LOG.lines[: ROTATED - 1]))
    (folder / file_name(ROTATED)).write_bytes(b"".join(LOG.lines[ROTATED - 1 :]))
    if tree:
        (folder / "tree").write_bytes(stored())
    return VerifiedLog(log_files(folder))


def stored() -> bytes:
    tree = Frontier()
    return b"".join(tree.append(leaf_hash(line)) for line in LINES)


@pytest.mark.parametrize("later_only", [False, True])
def test_every_certified_record_is_proven(tmp_path: Path, *, later_only: bool) -> None:
    found = written(tmp_path, later_only=later_only)
    certified = found.found.tree.certified
    assert certified == 17
    root = naive_root(LINES[:certified])
    for seq in range(ROTATED if later_only else 1, certified + 1):
        proof = found.inclusion(seq)
        verify_inclusion(proof.leaf, seq - 1, certified, root, proof.proof)
        assert (proof.record, proof.note) == (seq, found.found.tree.note)
    for seq in (0, certified + 1, 10 if later_only else -1):
        with pytest.raises(NoProofError, match="that the last checkpoint covers"):
            found.inclusion(seq)


@pytest.mark.parametrize(("later_only", "tree"), [(False, False), (True, False), (True, True)])
def test_growth_is_proven_between_any_two_states(
    tmp_path: Path, *, later_only: bool, tree: bool
) -> None:
    found = written(tmp_path, later_only=later_only, tree=tree)
    for old in range(ROTATED - 1 if later_only and not tree else 0, len(LINES) + 1):
        for new in (old, 19, len(LINES)):
            if old > new:
                continue
            proof = found.consistency(old, new)
            assert (proof.old.root, proof.new.root) == tuple(
                naive_root(LINES[:size]) for size in (old, new)
            )
            verify_consistency(old, proof.old.root, new, proof.new.root, proof.proof)


def test_what_nothing_holds_is_not_proven(tmp_path: Path) -> None:
    found = written(tmp_path, later_only=True)
    with pytest.raises(NoProofError, match="neither its records nor the file 'tree'"):
        found.consistency(3, 19)
    (tmp_path / "tree").write_bytes(b"\0" * len(stored()))
    with pytest.raises(NoProofError, match="neither its records"):
        found.consistency(3, 19)
    damaged = bytearray(stored())
    damaged[: 4 * HASH_BYTES] = b"?" * 4 * HASH_BYTES
    (tmp_path / "tree").write_bytes(damaged)
    with pytest.raises(NoProofError, match="the file 'tree' is damaged"):
        found.consistency(3, 19)
    for old, new in ((5, 4), (-1, 4), (4, len(LINES) + 1)):
        with pytest.raises(NoProofError, match="the last record"):
            found.consistency(old, new)


def test_a_broken_log_proves_nothing(tmp_path: Path) -> None:
    def change(records: list) -> None:  # type: ignore[type-arg]  # any JSON
        records[1]["actor"] = "somebody"

    (tmp_path / file_name(1)).write_bytes(b"".join(rechained(LOG.lines, change)))
    with pytest.raises(NoProofError, match="broken at record 5"):
        VerifiedLog(log_files(tmp_path))


def test_part_of_a_log_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / file_name(3)).write_bytes(b"".join(log(5)[2:]))
    with pytest.raises(NoProofError, match="record 3 does not say"):
        VerifiedLog(log_files(tmp_path)).consistency(3, 4)


@pytest.mark.parametrize(
    ("kind", "refs"), [("log.rotate", {}), ("log.start", {"frontier": ["AA=="]})]
)
def test_only_a_rotation_says_what_the_tree_before_it_was(
    tmp_path: Path, kind: str, refs: dict[str, object]
) -> None:
    (tmp_path / file_name(3)).write_bytes(line(3, "a" * 64, kind=kind, refs=refs))
    with pytest.raises(NoProofError, match="record 3 does not say"):
        VerifiedLog(log_files(tmp_path)).consistency(3, 3)


def test_an_empty_log_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / file_name(1)).touch()
    with pytest.raises(NoProofError, match="broken at record 1: holds no record"):
        VerifiedLog(log_files(tmp_path))
