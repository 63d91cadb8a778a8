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
        ("abc --store {store}", 2, "expected an evidence digest"),
        (f"{'0' * 65} --store {{store}}", 2, "expected an evidence digest"),
        (f"{'g' * 64} --store {{store}}", 2, "expected an evidence digest"),
        (f"{'0' * 64} --store {{store}}", 6, "not kept: neither the log nor the archive"),
        ("{digest} --store {store} --bundle /nowhere", 2, "/nowhere"),
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


# --- evidence that was granted by, counted only, or named by its beginning

OTHER = "9" * 64


def log_of(store: Path, *records: dict[str, Any]) -> None:
    lines: list[bytes] = []
    for seq, changes in enumerate(records, 1):
        lines.append(line(seq, digest(lines[-1]) if lines else GENESIS, **changes))
    (store / file_name(1)).write_bytes(b"".join(lines))


def citing(kind: str, at_ms: int = EVIDENCE.received_ms, named: str = DIGEST) -> dict[str, Any]:
    """A record that rests on evidence."""
    refs, ts = {"evidence": named}, rfc3339(at_ms * 1_000_000)
    about = {"subject": "pod/team-a/train-0", "decision": "decided"}
    return {"kind": kind, "ts": ts, "refs": refs, **about}


def counting(decision: str, kind: str = "evidence.repeated") -> dict[str, Any]:
    last = {"evidence": DIGEST, "bundle": EVIDENCE.bundle}
    return {"kind": kind, "decision": decision, "refs": {"count": 9, "last": last}}


def keep_cited(store: Path) -> None:
    place = store / "evidence-cited" / "20260505"
    place.mkdir(parents=True)
    (place / f"{DIGEST}.json").write_bytes(EVIDENCE.encoded())


def test_evidence_that_something_was_granted_by_is_verified_as_of_the_archived_time(
    cli: Cli, tmp_path: Path
) -> None:
    keep_cited(tmp_path)
    later = EVIDENCE.received_ms + 30_000
    log_of(tmp_path, citing("bind.decision", later), citing("reservation.released", later))
    plain = found(cli, DIGEST, tmp_path)
    assert plain["at"] == rfc3339(EVIDENCE.received_ms * 1_000_000)
    assert (plain["record"], plain["kind"]) == (1, "bind.decision")
    assert plain["citedBy"] == [
        "1 bind.decision pod/team-a/train-0",
        "2 reservation.released pod/team-a/train-0",
    ]
    assert plain["source"] == "archive"
    people = " ".join(cli("audit", "reverify", DIGEST, "--store", str(tmp_path)).out.split())
    assert "1, bind.decision: decided; time and bundle are those of the archive " in people
    assert "Granted by it: 1 bind.decision pod/team-a/train-0,2 reservation.released" in people


def test_the_record_of_the_arrival_comes_before_those_that_rest_on_it(
    cli: Cli, tmp_path: Path
) -> None:
    keep(tmp_path, EVIDENCE)
    earlier = EVIDENCE.received_ms - 3000
    log_of(
        tmp_path,
        citing("bind.decision"),
        counting("accepted"),
        citing("evidence.accepted", earlier),
        citing("evidence.refused"),
    )
    plain = found(cli, DIGEST, tmp_path)
    assert (plain["record"], plain["at"]) == (3, rfc3339(earlier * 1_000_000))
    assert plain["source"] == "log"


@pytest.mark.parametrize(("early_ms", "code"), [(5000, 0), (5001, 3)])
def test_evidence_that_arrived_after_what_rests_on_it_is_a_finding(
    cli: Cli, tmp_path: Path, early_ms: int, code: int
) -> None:
    keep_cited(tmp_path)
    log_of(tmp_path, citing("bind.decision", EVIDENCE.received_ms - early_ms))
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, "it arrived after record 1" in ran.err) == (code, code == 3)


@pytest.mark.parametrize(
    "kind",
    [
        "bind.decision",
        "reservation.reserved",
        "reservation.allocated",
        "reservation.released",
        "reservation.operator",
        "node.operator",
    ],
)
def test_evidence_that_something_rests_on_and_that_is_not_there_is_a_finding(
    cli: Cli, tmp_path: Path, kind: str
) -> None:
    log_of(tmp_path, citing(kind))
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, f"record 1 ({kind}) rests on it" in ran.err) == (3, True), ran.err


def test_so_is_evidence_that_was_archived_when_it_arrived(cli: Cli, tmp_path: Path) -> None:
    arrived = citing("evidence.accepted")
    arrived["refs"] = {"evidence": DIGEST, "bundle": EVIDENCE.bundle}
    log_of(tmp_path, arrived)
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, "record 1 (evidence.accepted) rests on it" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (counting("accepted"), "record 1 counts it among those alike (accepted), and nothing"),
        (counting("refused"), "record 1 counts it among those alike (refused), and nothing"),
        (counting("failure-notice", "node.state"), "record 1 counts it among those alike"),
        (citing("node.state"), "record 1 took no trust away"),
        (citing("bind.decision", named=OTHER), "neither the log nor the archive here names it"),
    ],
)
def test_evidence_by_which_nothing_was_granted_is_not_kept(
    cli: Cli, tmp_path: Path, record: dict[str, Any], text: str
) -> None:
    log_of(tmp_path, record)
    ran = cli("audit", "reverify", DIGEST, "--store", str(tmp_path))
    assert (ran.code, f"{DIGEST}: not kept: {text}" in ran.err) == (6, True), ran.err


@pytest.mark.parametrize("length", [4, 16, 63])
def test_the_beginning_of_a_digest_is_enough(cli: Cli, tmp_path: Path, length: int) -> None:
    keep(tmp_path, EVIDENCE, level="L0")
    assert found(cli, DIGEST[:length], tmp_path)["evidence"] == DIGEST


def test_the_beginning_of_a_digest_in_the_log_alone_is_named_whole(
    cli: Cli, tmp_path: Path
) -> None:
    log_of(tmp_path, citing("bind.decision"))
    ran = cli("audit", "reverify", DIGEST[:16], "--store", str(tmp_path))
    assert (ran.code, ran.err.count(DIGEST)) == (3, 1), ran.err


def test_the_beginning_of_several_digests_is_an_error_that_lists_them(
    cli: Cli, tmp_path: Path
) -> None:
    keep_cited(tmp_path)
    others = [DIGEST[:12] + f"{number:052x}" for number in range(8)]
    log_of(tmp_path, *(citing("bind.decision", named=one) for one in others[:1]))
    ran = cli("audit", "reverify", DIGEST[:12], "--store", str(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert all(one in ran.err for one in (DIGEST, others[0])), ran.err
    assert cli("audit", "reverify", DIGEST[:13], "--store", str(tmp_path)).code == (
        2 if DIGEST[12] == "0" else 0
    )
    log_of(tmp_path, *(citing("bind.decision", named=one) for one in others))
    ran = cli("audit", "reverify", DIGEST[:12], "--store", str(tmp_path))
    assert (ran.code, " and 1 more" in ran.err) == (2, True), ran.err
