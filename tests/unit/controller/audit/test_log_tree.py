"""The tree over a real log: right at every checkpoint, across files, restarts and losses."""

# ruff: noqa: ASYNC240 -- a test may look at files while its loop stands still

import errno
import os
import shutil
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from controller.audit.checkpoints import CHECKPOINT_NS, PUBLISH_NS, CheckpointSigner, Published
from controller.audit.files import Disk, LogBrokenError
from controller.audit.key import KeyChanges, LogKeyError, log_keys
from controller.audit.log import DurableLog
from controller.audit.opening import open_files
from controller.audit.tree import MAX_WAITING, NoNodeError, TreeFile
from gpuwarden.audit.checkpoint import (
    CHECKPOINT_RECORDS,
    KeyChange,
    open_checkpoint,
    sign_change,
    successor,
    unverified_checkpoint,
)
from gpuwarden.audit.files import file_name, log_files
from gpuwarden.audit.merkle import Frontier, leaf_hash, verify_consistency
from gpuwarden.audit.note import Signer, VerifierKey, open_note
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry import names
from tests.builders.audit_bench import ACCEPTED, IDENTITY, STATE, Bench, until
from tests.builders.audit_log import digest, line, log
from tests.builders.log_keys import signer
from tests.builders.log_trees import head_lines, lines_in, naive_root, notes_in, records_in
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FaultyDisk

ORIGIN = IDENTITY.origin


def pem(*keys: Ed25519PrivateKey) -> bytes:
    blocks = (key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) for key in keys)
    return b"".join(blocks)


def private(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def key_file(path: Path, *numbers: int) -> Path:
    path.write_bytes(pem(*(private(number) for number in numbers)))
    path.chmod(0o600)
    return path


def own_key(folder: Path) -> VerifierKey:
    key = load_pem_private_key((folder / "log-key.pem").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return Signer(ORIGIN, key).key


def assert_checkpoints_are_right(folder: Path, key: VerifierKey) -> None:
    lines = lines_in(folder)
    for seq, note in notes_in(folder):
        assert open_note(note, key).split("\n")[:3] == [ORIGIN, *head_lines(lines[: seq - 1])]
    assert {note.split("\n")[3] for _, note in notes_in(folder)} == {
        f"log {naive_root(lines[:1]).hex()[:32]}"
    }


async def write(bench: Bench, records: int, **changes: int) -> None:
    async with bench.open(**changes) as audit:
        for _ in range(records):
            await audit.grant(ACCEPTED)


def published(audit: DurableLog) -> Published:
    found = audit.published
    assert found is not None
    return found


def decoded(proof: tuple[str, ...]) -> list[bytes]:
    return [b64decode(text) for text in proof]


async def until_shown(audit: DurableLog, size: int) -> None:
    """A checkpoint of more than `size` records."""
    await until(lambda: published(audit).head.size > size)


def opened(folder: Path, disk: Disk | None = None, key: Path | None = None) -> CheckpointSigner:
    """The checkpoint signer of a log that is opened and let go at once."""
    settings = AuditSettings(dir=folder, reserve=0, key=key)
    one = open_files(settings, ORIGIN, FakeClock(), disk or Disk())
    one.close()
    return one.checkpoint_signer


async def test_checkpoints_are_right_across_files_and_processes(folder: Path) -> None:
    bench = Bench(folder)
    for records in (3, 40, 0, 5):
        await write(bench, records, rotate_bytes=6000)

    kinds = [record["kind"] for record in bench.records()]
    assert kinds.count("log.rotate") >= 3
    assert kinds.count("checkpoint") >= 6
    assert_checkpoints_are_right(folder, own_key(folder))


async def test_an_orderly_end_leaves_only_the_end_itself_uncertified(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 3)

    kinds = [record["kind"] for record in bench.records()]
    assert kinds == [
        "log.start",
        "checkpoint",
        *["evidence.accepted"] * 3,
        "checkpoint",
        "log.stop",
    ]


async def test_the_key_is_made_private_and_pinned_in_the_log(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 0)
    await write(bench, 0)

    assert (folder / "log-key.pem").stat().st_mode & 0o777 == 0o600
    starts = [r["refs"]["key"] for r in bench.records() if r["kind"] == "log.start"]
    assert starts == [str(own_key(folder))] * 2


async def test_a_checkpoint_comes_with_time_only_if_something_changed(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        first = published(audit)
        await audit.grant(ACCEPTED)
        assert published(audit) is first
        bench.clock.advance(CHECKPOINT_NS / 1e9)
        await until(lambda: published(audit).head.size == 3)
        bench.clock.advance(CHECKPOINT_NS / 1e9)
        await audit.grant(ACCEPTED)
        await until(lambda: published(audit).head.size == 5)
        third = published(audit)
        bench.clock.advance(CHECKPOINT_NS / 1e9)
        audit.want_proof(2)
        await until(lambda: 2 in published(audit).proofs)
        assert published(audit).note == third.note

    assert_checkpoints_are_right(folder, own_key(folder))


async def test_a_thousand_records_do_not_wait_for_the_time(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        for number in range(CHECKPOINT_RECORDS):
            audit.note(replace(STATE, subject=f"node/{number}"))
        await audit.grant(ACCEPTED)
        first = published(audit)
        await until(lambda: bench.metric(names.AUDIT_RECORDS, kind="checkpoint") == 2)
        assert published(audit) is first
        bench.clock.advance(PUBLISH_NS / 1e9)
        await until(lambda: published(audit).head.size >= CHECKPOINT_RECORDS)


async def test_published_proofs_lead_from_earlier_checkpoints_to_the_last(folder: Path) -> None:
    bench = Bench(folder)
    for records in (1, 30, 2):
        await write(bench, records, rotate_bytes=6000)
    lines = lines_in(folder)
    async with bench.open() as audit:
        audit.want_proof(7)
        audit.want_proof(10**6)
        bench.clock.advance(1)
        await until(lambda: 7 in published(audit).proofs)
        last = published(audit)

    sizes = {seq - 1 for seq, _ in notes_in(folder) if seq - 1 <= last.head.size}
    assert set(last.proofs) >= {7, *(size for size in sizes if size > 30)}
    for size, proof in last.proofs.items():
        root = naive_root(lines_in(folder)[:size])
        verify_consistency(size, root, last.head.size, last.head.root, decoded(proof))
    assert len(lines) < last.head.size
    assert not last.unprovable
    assert last.key == str(own_key(folder))


async def test_what_was_wanted_is_forgotten_after_a_while(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 40)
    async with bench.open() as audit:
        audit.want_proof(7)
        for _ in range(14):
            size = published(audit).head.size
            await audit.grant(ACCEPTED)
            bench.clock.advance(CHECKPOINT_NS / 1e9)
            await until_shown(audit, size)
        assert 7 not in published(audit).proofs


async def test_the_last_checkpoint_is_known_before_a_new_one_is_signed(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 3)
    checkpoint_signer = opened(folder)

    assert checkpoint_signer.published is not None
    assert checkpoint_signer.published.note == notes_in(folder)[-1][1]
    assert not checkpoint_signer.due()


async def test_a_crash_at_every_boundary_leaves_a_tree_that_goes_on(folder: Path) -> None:
    """Whatever of the last file, and of the tree's, was on the disk."""
    bench = Bench(folder)
    await write(bench, 12, rotate_bytes=6000)
    await write(bench, 4, rotate_bytes=6000)
    *_, last = log_files(folder)
    data, tree = last.read_bytes(), (folder / "tree").read_bytes()
    before = len(lines_in(folder)) - data.count(b"\n")
    ends = [at + 1 for at in range(len(data)) if data[at : at + 1] == b"\n"]
    for at in sorted({*ends, *(end - 1 for end in ends), *(end - 300 for end in ends)}):
        last.write_bytes(data[:at])
        (folder / "tree").write_bytes(tree[: -at * 7 % len(tree)] if at % 2 else tree + b"x" * 99)
        checkpoint_signer = opened(folder)
        lines = lines_in(folder)
        assert len(lines) == before + data[:at].count(b"\n")
        assert checkpoint_signer.state.frontier.root() == naive_root(lines)
        if not last.exists():  # it had no whole record; the one before it is the last now
            before = len(lines)


async def test_a_lost_tree_is_made_again_from_all_files(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 30, rotate_bytes=6000)
    whole = (folder / "tree").read_bytes()
    for damage in (b"", whole[:100], b"\0" * len(whole), whole[:64] + b"?" * (len(whole) - 64)):
        (folder / "tree").write_bytes(damage)
        opened(folder)
        assert (folder / "tree").read_bytes() == whole


async def test_a_damaged_hash_that_no_start_notices_accuses_nobody(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 30, rotate_bytes=6000)
    whole = (folder / "tree").read_bytes()
    (folder / "tree").write_bytes(b"?" * 32 + whole[32:])
    async with bench.open() as audit:
        audit.want_proof(1)
        bench.clock.advance(1)
        await until(lambda: 1 in published(audit).unprovable)
        assert 1 not in published(audit).proofs


async def test_a_tree_that_is_lost_with_its_records_goes_on_without_them(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 60, rotate_bytes=6000)
    lines = lines_in(folder)
    gone, *kept = log_files(folder)
    gone.unlink()
    (folder / "tree").unlink()
    first = int(kept[0].name[6:26])
    async with bench.open() as audit:
        audit.want_proof(3)
        audit.want_proof(first - 1)
        audit.want_proof(first + 2)
        bench.clock.advance(1)
        await until(lambda: first + 2 in published(audit).proofs)
        last = published(audit)

    assert 3 in last.unprovable
    for size in (first - 1, first + 2):
        root = naive_root(lines[:size])
        verify_consistency(size, root, last.head.size, last.head.root, decoded(last.proofs[size]))


def test_a_log_whose_beginning_is_unknown_is_not_continued(folder: Path) -> None:
    """As an earlier version left it: no frontier in its `log.rotate`."""
    folder.mkdir()
    lines = [*log(2)]
    lines.append(line(3, digest(lines[1]), kind="log.rotate"))
    (folder / file_name(3)).write_bytes(lines[2])
    with pytest.raises(LogBrokenError, match="does not say what came before record 3"):
        opened(folder)

    (folder / file_name(1)).write_bytes(lines[0] + lines[1])
    assert opened(folder).state.frontier.size == 3

    (folder / file_name(1)).write_bytes(lines[0].replace(b"eligible", b"Eligible") + lines[1])
    with pytest.raises(LogBrokenError, match="broken at record 1: changed"):
        opened(folder)


async def test_a_frontier_that_contradicts_its_checkpoint_is_not_continued(folder: Path) -> None:
    bench = Bench(folder)
    await write(bench, 30, rotate_bytes=6000)
    *_, last = log_files(folder)
    record = records_in(folder)[-last.read_bytes().count(b"\n")]
    assert record["kind"] == "log.rotate"
    record["refs"]["frontier"][0] = record["refs"]["frontier"][0].swapcase()
    changed = {key: record[key] for key in record if key not in {"seq", "prev"}}
    last.write_bytes(line(record["seq"], record["prev"], **changed))
    with pytest.raises(LogBrokenError, match="contradict each other"):
        opened(folder)


@pytest.mark.parametrize("note", ["no checkpoint", 7])
def test_a_checkpoint_that_cannot_be_read_is_not_continued(folder: Path, note: object) -> None:
    folder.mkdir()
    text = line(1, "0" * 64, kind="checkpoint", refs={"checkpoint": note})
    (folder / file_name(1)).write_bytes(text)
    with pytest.raises(LogBrokenError, match="record 1: not a signed note"):
        opened(folder)


@pytest.mark.parametrize("key", ["no key", 7, None])
def test_a_log_without_a_key_gets_one(folder: Path, key: object) -> None:
    folder.mkdir()
    text = line(1, "0" * 64, kind="log.start", refs={"key": key})
    (folder / file_name(1)).write_bytes(text)
    assert opened(folder).state.key is None


class TreeDisk(FaultyDisk):
    """Fails for the tree only."""

    broken = True

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.broken and Path(f"/proc/self/fd/{descriptor}").readlink().name == "tree":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data)


async def test_a_tree_that_cannot_be_written_holds_nothing_up(folder: Path) -> None:
    bench = Bench(folder)
    bench.disk = TreeDisk()
    await write(bench, 30, rotate_bytes=6000)

    assert_checkpoints_are_right(folder, own_key(folder))
    assert (folder / "tree").stat().st_size == 0
    bench.disk = FaultyDisk()
    await write(bench, 0)
    assert_checkpoints_are_right(folder, own_key(folder))


def grown(tree: TreeFile, leaves: int) -> Frontier:
    frontier = Frontier()
    tree.begin(frontier)
    for number in range(leaves):
        tree.append(frontier.append(leaf_hash(b"%d" % number)))
    return frontier


def test_hashes_are_read_from_file_memory_and_across(tmp_path: Path) -> None:
    disk = FaultyDisk(room=40)
    tree = TreeFile(tmp_path, disk)
    frontier = grown(tree, 4)
    tree.flush()

    assert (tmp_path / "tree").stat().st_size == 40
    assert [tree.node(0, at) for at in range(4)] == [leaf_hash(b"%d" % at) for at in range(4)]
    assert tree.node(2, 0) == frontier.root()
    with pytest.raises(NoNodeError, match="no hash"):
        tree.node(0, 4)
    tree.close()
    with pytest.raises(NoNodeError, match="Bad file descriptor"):
        tree.node(0, 0)


def test_a_tree_that_waits_too_long_gives_up(tmp_path: Path) -> None:
    tree = TreeFile(tmp_path, FaultyDisk(room=0))
    grown(tree, 1)
    tree.append(b"h" * MAX_WAITING)
    tree.append(b"h" * 32)
    tree.flush()
    with pytest.raises(NoNodeError):
        tree.node(0, 0)
    tree.close()


def test_a_tree_whose_place_is_taken_gives_up(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    tree = TreeFile(tmp_path, FaultyDisk())
    grown(tree, 3)
    assert tree.lost
    with pytest.raises(NoNodeError):
        tree.node(0, 0)
    tree.close()


async def test_a_new_key_is_stated_by_the_old_one(folder: Path, tmp_path: Path) -> None:
    one, two, three = signer(1), signer(2), signer(3)
    path = key_file(tmp_path / "key.pem", 1)
    bench = Bench(folder, key=path)
    await write(bench, 2)
    key_file(path, 2, 1)
    for _ in range(2):
        await write(bench, 2)
    key_file(path, 3, 2)
    async with bench.open() as audit:
        last = published(audit)

    changes = [r["refs"] for r in bench.records() if r["kind"] == "log.key"]
    assert [KeyChange.open(change["statement"]) for change in changes] == [
        KeyChange(one.key, two.key),
        KeyChange(two.key, three.key),
    ]
    assert [change["key"] for change in changes] == [str(two.key), str(three.key)]
    assert last.key == str(three.key)
    assert successor(one.key, three.key, last.key_changes) == three.key
    kinds = [record["kind"] for record in bench.records()]
    assert kinds[kinds.index("log.key") + 1] == "log.start"
    assert not (folder / "log-key.pem").exists()
    keys = [one.key] * 2 + [two.key] * 4 + [three.key]
    for (_, note), key in zip(notes_in(folder), keys, strict=True):
        open_checkpoint(note, key)


async def test_a_log_does_not_go_on_under_a_key_that_nobody_stated(
    folder: Path, tmp_path: Path
) -> None:
    path = key_file(tmp_path / "key.pem", 1)
    await write(Bench(folder, key=path), 2)
    key_file(path, 2)
    bench = Bench(folder, key=path)
    async with bench.open() as audit:
        assert "put the former key behind the new one" in audit.condition.reason
        assert audit.published is None
        audit.want_proof(1)
        key_file(path, 2, 1)
        await until(lambda: audit.condition.available)
        await audit.grant(ACCEPTED)


def test_key_changes_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    changes = KeyChanges(tmp_path)
    for _ in range(2):
        changes.add(sign_change(signer(1), signer(2)))
    assert len(KeyChanges(tmp_path).statements) == 1
    for text in ("", "{}", "7", "[1]", '["no note"]'):
        (tmp_path / "key-changes").write_text(text)
        assert KeyChanges(tmp_path).statements == ()


def test_key_changes_are_private_and_the_latest_sixteen(tmp_path: Path) -> None:
    changes = KeyChanges(tmp_path)
    statements = [sign_change(signer(x), signer(x + 1)) for x in range(1, 19)]
    for statement in statements:
        changes.add(statement)
    assert list(changes.statements) == statements[2:]
    assert KeyChanges(tmp_path).statements == changes.statements
    assert (tmp_path / "key-changes").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("size", "read"), [(65_536, 1), (65_537, 0)])
def test_key_changes_are_read_up_to_a_bound(tmp_path: Path, size: int, read: int) -> None:
    KeyChanges(tmp_path).add(sign_change(signer(1), signer(2)))
    path = tmp_path / "key-changes"
    path.write_text(path.read_text().rjust(size))
    assert len(KeyChanges(tmp_path).statements) == read


def test_a_key_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = key_file(tmp_path / "key.pem", 1)
    text = path.read_bytes().rstrip(b"\n")
    path.write_bytes(text.rjust(65_536, b"#"))
    assert log_keys(path, tmp_path, ORIGIN).current.key == signer(1).key
    path.write_bytes(text.rjust(65_537, b"#"))
    with pytest.raises(LogKeyError, match="expected 1 to 8"):
        log_keys(path, tmp_path, ORIGIN)


def test_key_changes_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "key-changes.new").symlink_to(tmp_path / "target")
    statement = sign_change(signer(1), signer(2))
    KeyChanges(tmp_path).add(statement)
    assert KeyChanges(tmp_path).statements == (statement,)
    assert not (tmp_path / "target").exists()


def test_up_to_eight_keys_are_read(tmp_path: Path) -> None:
    keys = log_keys(key_file(tmp_path / "key.pem", *range(1, 9)), tmp_path, ORIGIN)
    assert len(keys.former) == 7


def encrypted(path: Path) -> bytes:
    del path
    return private(1).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )


def elliptic(path: Path) -> bytes:
    del path
    key = ec.derive_private_key(7, ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda _path: b"", "expected 1 to 8 private keys"),
        (lambda _path: pem(private(1)) * 9, "expected 1 to 8 private keys"),
        (encrypted, "expected unencrypted Ed25519 keys"),
        (elliptic, "expected unencrypted Ed25519 keys"),
        (
            lambda _path: b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "expected unencrypted Ed25519 keys",
        ),
    ],
)
def test_a_key_that_cannot_be_used_is_refused(
    tmp_path: Path, make: Callable[[Path], bytes], expected: str
) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(make(path))
    path.chmod(0o600)
    with pytest.raises(LogKeyError, match=expected) as caught:
        log_keys(path, tmp_path, ORIGIN)
    assert "BEGIN" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601])
def test_a_key_that_is_open_to_everybody_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path / "key.pem", 1)
    path.chmod(mode)
    with pytest.raises(LogKeyError, match="open to everybody"):
        log_keys(path, tmp_path, ORIGIN)


def test_a_configured_key_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(LogKeyError, match="No such file"):
        log_keys(tmp_path / "key.pem", tmp_path, ORIGIN)
    assert list(tmp_path.iterdir()) == []


def test_a_key_half_made_by_a_crash_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "log-key.new").write_bytes(b"half")
    keys = log_keys(None, tmp_path, ORIGIN)
    assert log_keys(None, tmp_path, ORIGIN).current.key == keys.current.key
    assert [path.name for path in tmp_path.iterdir()] == ["log-key.pem"]


async def test_a_log_in_place_of_a_lost_one_says_where_that_had_ended(
    folder: Path, tmp_path: Path
) -> None:
    path = key_file(tmp_path / "key.pem", 1)
    await write(Bench(folder, key=path), 5)
    old = notes_in(folder)[-1][1]
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "prev-log").write_text(old)
    bench = Bench(folder, key=key_file(path, 2, 1))
    for _ in range(3):
        await write(bench, 12, rotate_bytes=6000)

    heads = {unverified_checkpoint(note).prev for _, note in notes_in(folder)}
    assert heads == {unverified_checkpoint(old).head}
    assert bench.records()[0]["refs"]["prevLog"] == old
    assert "prevLog" not in bench.uncertified()[-2]["refs"]


@pytest.mark.parametrize("text", ["", "junk", "\udcff"])
async def test_a_lost_log_that_is_not_ours_is_not_named(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "prev-log").write_bytes(text.encode("utf-8", "surrogateescape"))
    async with Bench(folder).open() as audit:
        assert "no checkpoint that this log's key has signed" in audit.condition.reason
