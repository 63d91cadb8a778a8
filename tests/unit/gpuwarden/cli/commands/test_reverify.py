"""`audit reverify`: archived evidence as of when it came."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.audit.archived_evidence import ArchivedEvidence
from gpuwarden.audit.files import file_name
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.moment import rfc3339
from tests.builders.archived_evidence import archived_evidence
from tests.builders.audit_log import GENESIS, digest, line
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import Scene, agent_uri
from tests.unit.gpuwarden.cli.conftest import Cli

SCENE = Scene()
EVIDENCE = archived_evidence(SCENE)
DIGEST = EVIDENCE.digest


def found(cli: Cli, digest: str, store: Path) -> Any:
    ran = cli("audit", "reverify", digest, "--store", str(store), "-o", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def keep(store: Path, one: ArchivedEvidence, **refs: object) -> None:
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
            ts=rfc3339(one.received_ms * 1_000_000),
            refs=known | refs,
        )
        (store / file_name(1)).write_bytes(first + second)


def test_archived_evidence_is_verified_as_of_its_arrival(cli: Cli, tmp_path: Path) -> None:
    keep(tmp_path, EVIDENCE, level="L0")
    plain = found(cli, DIGEST, tmp_path)
    assert (plain["result"], plain["signer"]) == ("valid then", agent_uri())
    assert (plain["record"], plain["kind"], plain["codes"]) == (
        2,
        "evidence.accepted",
        ["ACCEPTED"],
    )
    assert plain["at"] == rfc3339(EVIDENCE.received_ms * 1_000_000)
    people = cli("audit", "reverify", DIGEST, "--store", str(tmp_path)).out
    assert "Record:       2, evidence.accepted: accepted ACCEPTED\n" in people
    assert cli("audit", "reverify", DIGEST, "--store", str(tmp_path), "-o", "name").out == (
        f"{DIGEST}\n"
    )


def test_evidence_without_a_record_is_verified_as_of_the_archived_time(
    cli: Cli, tmp_path: Path
) -> None:
    keep(tmp_path, EVIDENCE)
    assert found(cli, DIGEST, tmp_path)["record"] is None
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
def test_archived_evidence_that_contradicts_its_record_is_a_finding(
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
def test_what_cannot_be_reverified_is_an_error(
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
