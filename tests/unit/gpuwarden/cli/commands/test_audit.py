"""`audit …`: logs, their checkpoints and keys, and the evidence beside them."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpuwarden.audit.files import file_name
from gpuwarden.audit.note import VerifierKey
from gpuwarden.audit.record import FORMAT
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from tests.builders.audit_log import GENESIS
from tests.builders.certified_log import CertifiedLog, rechained
from tests.builders.log_keys import ORIGIN, checkpoint, signer
from tests.unit.gpuwarden.cli.conftest import Cli


def plain_log(count: int) -> bytes:
    """A whole log of `count` records."""
    lines, prev = [], GENESIS
    for seq in range(1, count + 1):
        line = canonical_json(
            {
                "v": FORMAT,
                "seq": seq,
                "ts": "2026-11-27T20:00:00.000Z",
                "boot": "b",
                "origin": "prod/0",
                "instance": "i",
                "kind": "log.start" if seq == 1 else "config.change",
                "actor": "a",
                "subject": "s",
                "decision": "allowed",
                "codes": [],
                "refs": {},
                "prev": prev,
            }
        )
        prev = sha256_hex(line)
        lines.append(line + b"\n")
    return b"".join(lines)


@pytest.fixture
def plain_folder(tmp_path: Path) -> Path:
    (tmp_path / "audit-00000000000000000001.jsonl").write_bytes(plain_log(3))
    return tmp_path


def test_a_whole_log_is_verified(cli: Cli, plain_folder: Path) -> None:
    ran = cli("audit", "verify", str(plain_folder))
    assert ran.code == 0
    assert "Log:          prod/0\nResult:       verified\nRecords:      3\n" in ran.out
    [found] = json.loads(cli("audit", "verify", str(plain_folder), "-o", "json").out)
    assert found["records"] == 3
    assert found["torn"] is None
    head = cli("audit", "verify", str(plain_folder), "-o", "name").out.strip()
    assert head == found["head"]
    assert cli("audit", "verify", str(plain_folder), "--expect", head).code == 0


def test_a_flipped_byte_is_found(cli: Cli, plain_folder: Path) -> None:
    [path] = plain_folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"actor":"a"', b'"actor":"b"', 1))
    ran = cli("audit", "verify", str(path))
    assert ran.code == 3
    assert "Result:  broken\nRecord:  1\n" in ran.out
    assert ["Where:", f"{path}:1"] == ran.out.split()[4:6]


def test_a_cut_log_does_not_have_the_expected_head(cli: Cli, plain_folder: Path) -> None:
    [path] = plain_folder.iterdir()
    head = cli("audit", "verify", str(path), "-o", "name").out.strip()
    path.write_bytes(plain_log(2))
    assert cli("audit", "verify", str(path)).code == 0
    assert cli("audit", "verify", str(path), "--expect", head).code == 3


def test_an_unfinished_line_at_the_end_is_reported(cli: Cli, plain_folder: Path) -> None:
    [path] = plain_folder.iterdir()
    path.write_bytes(plain_log(2) + b'{"v":')
    ran = cli("audit", "verify", str(path))
    assert ran.code == 0
    assert "Torn:         5 bytes of an unfinished line at the end" in ran.out


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "holds no record"),
        (b"\0" * 4096, "holds no record, but 4096 bytes without a line end"),
        (plain_log(1)[:-1], "bytes without a line end"),
        (b"\n", "not a record"),
    ],
)
def test_the_verification_of_nothing_is_a_finding(
    cli: Cli, tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "audit-00000000000000000001.jsonl"
    path.write_bytes(content)
    for place in (path, tmp_path):
        ran = cli("audit", "verify", str(place))
        assert (ran.code, "Result:  broken\nRecord:  1\n" in ran.out) == (3, True)
        assert what in ran.out
        assert cli("audit", "prove", "1", str(place)).code == 3
        assert cli("audit", "consistency", "0", "0", str(place)).code == 3
    ran = cli("audit", "verify", str(path), "--expect", f"0:{GENESIS}")
    assert ran.code == 3


@pytest.mark.parametrize("command", ["verify", "verify --collected", "prove 1", "consistency 0 1"])
def test_a_pipe_in_the_folder_holds_nobody_up(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "audit-00000000000000000001.jsonl").write_bytes(plain_log(3))
    pipe = tmp_path / "audit-00000000000000000004.jsonl"
    os.mkfifo(pipe)
    for place in (tmp_path, pipe):
        ran = cli("audit", *command.split(), str(place))
        hint = ", or - for standard input" if place == pipe and "verify" in command else ""
        says = f"gpuwarden: {pipe} is a named pipe; expected a regular file{hint}\n"
        assert (ran.code, ran.err) == (2, says)


class Input(io.TextIOWrapper):
    """Standard input."""

    def __init__(self, content: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content))
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_a_log_is_verified_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Input(plain_log(3)))
    [found] = json.loads(cli("audit", "verify", "-", "-o", "json").out)
    assert (found["result"], found["records"]) == ("verified", 3)
    monkeypatch.setattr("sys.stdin", Input(b"noise\n" + plain_log(2)))
    [found] = json.loads(cli("audit", "verify", "--collected", "-", "-o", "json").out)
    assert (found["result"], found["records"]) == ("verified", 2)
    monkeypatch.setattr("sys.stdin", Input(plain_log(3)[:-200]))
    ran = cli("audit", "verify", "-", "--expect", f"3:{GENESIS}")
    assert ran.code == 3
    monkeypatch.setattr("sys.stdin", Input(plain_log(3)))
    assert cli("audit", "verify", "/dev/stdin").code == 0


def test_standard_input_goes_on_from_files(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *more = plain_log(3).splitlines(keepends=True)
    path = tmp_path / "old"
    path.write_bytes(first)
    monkeypatch.setattr("sys.stdin", Input(b"".join(more)))
    ran = cli("audit", "verify", str(path), "-")
    assert (ran.code, "Records:      3\n" in ran.out) == (0, True)
    monkeypatch.setattr("sys.stdin", Input(b"x" * 40_000))
    ran = cli("audit", "verify", str(path), "-")
    assert (ran.code, "Where:   /dev/stdin:1\n" in ran.out) == (3, True), ran.out


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("verify - -", "can be read once"),
        ("verify -", "is a terminal"),
        ("prove 1 /dev/stdin", "audit prove reads the log twice"),
        ("consistency 0 1 /dev/stdin", "audit consistency reads the log twice"),
    ],
)
def test_where_standard_input_cannot_serve_the_error_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, text: str
) -> None:
    monkeypatch.setattr("sys.stdin", Input(plain_log(1), terminal=True))
    ran = cli("audit", *command.split())
    assert (ran.code, text in ran.err) == (2, True), ran.err


def appended(content: bytes, **changes: Any) -> bytes:
    """The log and one more record that fits."""
    last = json.loads(content.splitlines()[-1])
    seq, prev = last["seq"] + 1, sha256_hex(content.splitlines()[-1])
    return content + canonical_json(last | {"seq": seq, "prev": prev} | changes) + b"\n"


def test_a_record_behind_the_end_of_a_closed_log_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "log"
    closed = appended(plain_log(2), kind="log.stop")
    path.write_bytes(closed)
    [found] = json.loads(cli("audit", "verify", str(path), "-o", "json").out)
    assert (found["result"], found["appended"]) == ("verified", None)
    path.write_bytes(appended(closed, kind="node.operator"))
    for option in ((), ("--collected",)):
        ran = cli("audit", "verify", str(path), *option)
        assert ran.code == 3
        assert "Result:       appended to\n" in ran.out
        assert "Appended:     record 4: node.operator behind the end of a closed log" in ran.out


def test_times_that_go_backwards_and_unsigned_records_are_flagged(cli: Cli, tmp_path: Path) -> None:
    """Neither is a fault of the log: a clock may be set, a controller may crash."""
    path = tmp_path / "log"
    content = appended(plain_log(2), ts="2026-11-27T19:00:00.000Z")
    refs = {"unsigned": {"first": 1, "last": 3, "appended": False}}
    path.write_bytes(appended(content, kind="log.start", refs=refs))
    ran = cli("audit", "verify", str(path))
    assert ran.code == 0
    assert "Backwards:    record 3: 2026-11-27T19:00:00.000Z is 3600 s before record 2" in ran.out
    assert "Unsigned:     record 4: the log was opened with records that no check" in ran.out


def test_records_of_another_version_are_named_and_break_nothing(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "log"
    former = appended(plain_log(2), kind="evidence.round")
    path.write_bytes(former)
    [found] = json.loads(cli("audit", "verify", str(path), "-o", "json").out)
    assert (found["result"], found["records"], found["unknown"]) == ("verified", 3, None)
    path.write_bytes(appended(former, kind="node.painted"))
    for option in ((), ("--collected",)):
        ran = cli("audit", "verify", str(path), *option)
        assert ran.code == 0
        assert "Result:       verified\n" in ran.out
        assert "Unknown:      record 4: node.painted is a kind of another version\n" in ran.out


def test_records_among_other_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "collected.log"
    path.write_bytes(b"starting\n" + plain_log(2) + b"{}\n")
    ran = cli("audit", "verify", "--collected", str(path))
    assert ran.code == 0
    assert "Log:          prod/0\n" in ran.out
    path.write_bytes(b"nothing here\n")
    ran = cli("audit", "verify", "--collected", str(path))
    assert (ran.code, ran.err) == (3, "gpuwarden: no audit records found\n")


KEY = signer(1).key


def certified() -> CertifiedLog:
    return CertifiedLog().records(3).checkpoint().records(4).checkpoint().records(1)


LOG = certified()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "audit"
    made.mkdir()
    (made / file_name(1)).write_bytes(b"".join(LOG.lines))
    return made


def found(cli: Cli, *arguments: str | Path) -> Any:
    ran = cli("audit", *map(str, arguments), "-o", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def pem_of(key: VerifierKey) -> bytes:
    public = Ed25519PublicKey.from_public_bytes(key.public)
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_verify_tells_what_certifies_a_log(cli: Cli, folder: Path) -> None:
    [plain] = found(cli, "verify", folder)
    assert (plain["checkpoints"], plain["certified"]) == (2, 9)
    assert (plain["key"], plain["pin"]) == (str(KEY), KEY.digest)
    assert plain["root"] == LOG.note(LOG.head()).split("\n")[2]
    assert "Certified:    9\n" in cli("audit", "verify", str(folder)).out


def test_verify_finds_a_log_that_was_rewritten(cli: Cli, folder: Path) -> None:
    def change(records: list[Any]) -> None:
        records[6]["actor"] = "somebody"

    (folder / file_name(1)).write_bytes(b"".join(rechained(LOG.lines, change)))
    ran = cli("audit", "verify", str(folder))
    assert ran.code == 3
    assert "Record:  10\n" in ran.out
    assert "at least one behind record 4 is not what was signed" in " ".join(ran.out.split())


def test_verify_compares_with_a_pinned_key(cli: Cli, folder: Path, tmp_path: Path) -> None:
    other = signer(2).key
    for key, code in ((KEY, 0), (other, 3)):
        pem, text = tmp_path / "key.pem", tmp_path / "key.txt"
        pem.write_bytes(pem_of(key))
        text.write_text(f"{key}\n")
        for arguments in (
            ("--pin", key.digest),
            ("--pin", str(key)),
            ("--key", str(pem)),
            ("--key", str(text)),
        ):
            assert cli("audit", "verify", str(folder), *arguments).code == code
    assert (
        "the pinned key is none of this log's keys"
        in cli("audit", "verify", str(folder), "--pin", other.digest).out
    )


def test_verify_compares_with_a_checkpoint_from_elsewhere(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.write_text(LOG.note())
    assert cli("audit", "verify", str(folder), "--checkpoint", str(kept)).code == 0
    (folder / file_name(1)).write_bytes(b"".join(LOG.lines[:-1]))
    ran = cli("audit", "verify", str(folder), "--checkpoint", str(kept))
    assert ran.code == 3
    assert "log ends at 10, but the expected checkpoint has 11 records" in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("verify {folder} --pin x", 2, "--pin: expected 64 lower-case hex digits"),
        ("verify {folder} --pin x --key {junk}", 2, "give either --key or --pin"),
        ("verify {folder} --key {junk}", 2, "expected an Ed25519 public key in PEM"),
        ("verify {folder} --key {ec}", 2, "expected an Ed25519 public key in PEM"),
        ("verify {folder} --key {bad}", 2, "expected an Ed25519 public key in PEM"),
        ("verify {folder} --key /nowhere", 2, "/nowhere"),
        ("verify {folder} --checkpoint {junk}", 2, "--checkpoint: not a signed note"),
        ("verify {folder} --checkpoint /nowhere", 2, "/nowhere"),
        ("prove 3", 2, "audit prove needs a file or folder"),
        ("prove 3 /nowhere", 2, "/nowhere: no such file or folder"),
        ("prove 11 {folder}", 3, "record 11 is not among those"),
        ("prove 1 {broken}", 3, "the log is broken at record 2"),
        ("consistency 1 2", 2, "audit consistency needs a file or folder"),
        ("consistency 3 12 {folder}", 3, "the last record"),
        ("consistency {junk} 4 {folder}", 3, "no checkpoint signed by a key of this log"),
        ("consistency /nowhere 4 {folder}", 2, "/nowhere"),
        ("consistency {other} 9 {folder}", 3, "its root differs"),
        ("consistency 4 {other} {folder}", 3, "its root differs"),
    ],
)
def test_what_cannot_be_done_is_said(
    cli: Cli, folder: Path, *, arguments: str, code: int, text: str
) -> None:
    tmp_path = folder.parent
    public = ec.derive_private_key(7, ec.SECP256R1()).public_key()
    files = {
        "junk": b"junk",
        "ec": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "bad": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        "other": checkpoint().signed(signer(1)).encode(),
        "broken": LOG.lines[0] + LOG.lines[2] + LOG.lines[3],
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    places = {name: tmp_path / name for name in files}
    ran = cli("audit", *arguments.format(folder=folder, **places).split())
    assert (ran.code, text in ran.err) == (code, True), ran.err


def test_a_record_is_proven(cli: Cli, folder: Path) -> None:
    plain = found(cli, "prove", "3", folder)
    assert (plain["log"], plain["record"], plain["leafIndex"]) == (ORIGIN, 3, 2)
    assert len(plain["proof"]) == 4
    assert plain["checkpoint"].startswith(f"{ORIGIN}\n9\n")
    people = cli("audit", "prove", "3", str(folder)).out
    assert "Proof:       4 hashes, verified" in people


def test_growth_is_proven(cli: Cli, folder: Path, tmp_path: Path) -> None:
    plain = found(cli, "consistency", "4", "9", folder)
    assert (plain["old"]["size"], plain["new"]["size"]) == (4, 9)
    (tmp_path / "old").write_text(json.loads(LOG.lines[4])["refs"]["checkpoint"])
    (tmp_path / "new").write_text(LOG.note())
    again = found(cli, "consistency", tmp_path / "old", tmp_path / "new", folder)
    assert (again["old"], again["new"]["size"]) == (plain["old"], 11)
    people = cli("audit", "consistency", "4", "9", str(folder)).out
    assert f"Old:    4 records, root {plain['old']['root']}\n" in people


# --- begin-new


def test_a_new_log_says_where_the_old_one_is_and_what_it_names(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    (folder / file_name(1)).write_bytes(b"".join(CertifiedLog().records(2).checkpoint().lines))
    ran = cli("audit", "begin-new", str(folder))
    assert (ran.code, ran.err) == (0, "")
    kept, named = " ".join(ran.out.split()).split(" Names: ")
    assert kept == f"Kept: {folder}.old"
    assert named.startswith(f"3 records of {ORIGIN}")


def test_a_new_log_of_which_the_old_one_was_taken_away_says_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "audit.new").mkdir()
    ran = cli("audit", "begin-new", str(tmp_path / "audit"))
    assert (ran.code, ran.err) == (0, "")
    assert "no folder of an old log is here" in ran.out


def test_a_new_log_that_names_nothing_says_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / file_name(1)).write_bytes(plain_log(2))
    ran = cli("audit", "begin-new", str(tmp_path / "audit"))
    assert ran.code == 0
    assert "nothing: no checkpoint can be read, so agents raise LOG_RESET" in ran.out
