"""Audit commands on logs with checkpoints, and on evidence beside them."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gpuwarden.audit.exhibit import Exhibit
from gpuwarden.audit.files import file_name
from gpuwarden.audit.note import VerifierKey
from gpuwarden.audit.record import format_timestamp
from gpuwarden.evidence.canonical import sha256_hex
from tests.builders.audit_log import GENESIS, digest, line
from tests.builders.ca import SpiffeCa
from tests.builders.certified_log import CertifiedLog, rechained
from tests.builders.evidence import Scene, agent_uri
from tests.builders.exhibits import exhibit
from tests.builders.log_keys import ORIGIN, checkpoint, signer
from tests.unit.cli.conftest import Cli

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
    assert "at least one behind record 4 is not what was signed" in ran.out


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


def test_verify_compares_with_a_checkpoint_kept_elsewhere(
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
        ("verify {folder} --key /nowhere", 1, "/nowhere"),
        ("verify {folder} --checkpoint {junk}", 2, "--checkpoint: not a signed note"),
        ("verify {folder} --checkpoint /nowhere", 1, "/nowhere"),
        ("prove 3", 2, "audit prove needs a file or folder"),
        ("prove 3 /nowhere", 1, "/nowhere: no such file or folder"),
        ("prove 11 {folder}", 3, "record 11 is not among those"),
        ("prove 1 {broken}", 3, "the log is broken at record 2"),
        ("consistency 1 2", 2, "audit consistency needs a file or folder"),
        ("consistency 3 12 {folder}", 3, "the last record"),
        ("consistency {junk} 4 {folder}", 3, "no checkpoint signed by a key of this log"),
        ("consistency /nowhere 4 {folder}", 1, "/nowhere"),
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


SCENE = Scene()
EVIDENCE = exhibit(SCENE)
DIGEST = EVIDENCE.digest


def keep(store: Path, one: Exhibit, **refs: object) -> None:
    """Evidence in a store, with a record about it where `refs` are given."""
    place = store / "evidence" / "20260505"
    place.mkdir(parents=True)
    (place / f"{DIGEST}.json").write_bytes(one.encoded())
    if refs:
        known = {"evidence": DIGEST, "leaf": sha256_hex(one.chain[0]), "bundle": one.bundle}
        first = line(1, GENESIS, refs={"note": f'"evidence":"{DIGEST}"'})
        second = line(
            2,
            digest(first),
            kind="evidence.accepted",
            decision="accepted",
            codes=["ACCEPTED"],
            ts=format_timestamp(one.received_ms * 1_000_000),
            refs=known | refs,
        )
        (store / file_name(1)).write_bytes(first + second)


def test_kept_evidence_was_valid_then(cli: Cli, tmp_path: Path) -> None:
    keep(tmp_path, EVIDENCE, level="L0")
    plain = found(cli, "reverify", DIGEST, "--store", tmp_path)
    assert (plain["result"], plain["signer"]) == ("valid then", agent_uri())
    assert (plain["record"], plain["kind"], plain["codes"]) == (
        2,
        "evidence.accepted",
        ["ACCEPTED"],
    )
    assert plain["at"] == format_timestamp(EVIDENCE.received_ms * 1_000_000)
    people = cli("audit", "reverify", DIGEST, "--store", str(tmp_path)).out
    assert "Record:       2, evidence.accepted: accepted ACCEPTED\n" in people
    assert cli("audit", "reverify", DIGEST, "--store", str(tmp_path), "-o", "name").out == (
        f"{DIGEST}\n"
    )


def test_evidence_whose_record_is_gone_speaks_for_itself(cli: Cli, tmp_path: Path) -> None:
    keep(tmp_path, EVIDENCE)
    assert found(cli, "reverify", DIGEST, "--store", tmp_path)["record"] is None
    (tmp_path / file_name(1)).write_bytes(line(1, GENESIS))
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, "Record:       none in the log" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("refs", "text"),
    [
        ({"leaf": "0" * 64}, "the record names another certificate"),
        ({"bundle": "0" * 64}, "the record names another trust bundle"),
    ],
)
def test_the_record_holds_the_store_to_its_word(
    cli: Cli, tmp_path: Path, refs: dict[str, object], text: str
) -> None:
    keep(tmp_path, EVIDENCE, **refs)
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, text in ran.err) == (3, True)


def test_roots_from_elsewhere_count_instead(cli: Cli, tmp_path: Path) -> None:
    keep(tmp_path, EVIDENCE, bundle="0" * 64)
    good, other = tmp_path / "good.pem", tmp_path / "other.pem"
    good.write_bytes(b"".join(root.public_bytes(Encoding.PEM) for root in SCENE.roots))
    roots = SpiffeCa(at=SCENE.wall).roots
    other.write_bytes(b"".join(root.public_bytes(Encoding.PEM) for root in roots))
    command = ("audit", "reverify", DIGEST, "--store", str(tmp_path), "--bundle")
    assert cli(*command, str(good)).code == 0
    ran = cli(*command, str(other))
    assert (ran.code, "CHAIN_INVALID" in ran.err) == (3, True)


def test_evidence_that_does_not_hold_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    keep(tmp_path, EVIDENCE, level="L0")
    path = tmp_path / "evidence" / "20260505" / f"{DIGEST}.json"
    stored = json.loads(path.read_bytes())
    for changes, text in (
        ({"signature": "AAAA"}, "signature does not verify"),
        ({"payload": "AAAA"}, "the evidence has the digest"),
        ({"v": "x"}, "v must be"),
    ):
        changed = {**stored, **changes}
        path.write_text(json.dumps(changed, sort_keys=True, separators=(",", ":")))
        ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
        assert (ran.code, text in ran.err) == (3, True), ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("short --store {store}", 2, "expected an evidence digest"),
        (f"{'g' * 64} --store {{store}}", 2, "expected an evidence digest"),
        (f"{'0' * 64} --store {{store}}", 3, "holds no evidence"),
        ("{digest} --store {store} --bundle /nowhere", 1, "/nowhere"),
        ("{digest} --store {store} --bundle {junk}", 2, "expected certificates in PEM"),
    ],
)
def test_what_cannot_be_reverified_is_said(
    cli: Cli, tmp_path: Path, arguments: str, code: int, text: str
) -> None:
    keep(tmp_path, EVIDENCE)
    (tmp_path / "junk").write_text("junk")
    line_ = arguments.format(digest=DIGEST, store=tmp_path, junk=tmp_path / "junk")
    ran = cli("audit", "reverify", *line_.split())
    assert (ran.code, text in ran.err) == (code, True), ran.err


def test_a_record_that_cannot_be_read_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    keep(tmp_path, EVIDENCE)
    (tmp_path / file_name(1)).write_text(f'{{"evidence":"{DIGEST}"}}\n')
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, "its record cannot be read" in ran.err) == (3, True)
