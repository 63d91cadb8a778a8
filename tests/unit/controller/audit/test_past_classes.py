"""Classes that nodes had earlier: found in the log, with the document of the archived evidence."""

from pathlib import Path

import pytest

from controller.audit.past_classes import PastClasses
from controller.audit.sealing import LogIdentity, Sealer
from controller.record import Record
from gpuwarden.audit.archived_evidence import CITED_FOLDER, FOLDER, ArchivedEvidence
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.files import file_name
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.class_document import (
    attestation_hash,
    class_document,
    decode_class_document,
)
from gpuwarden.evidence.model import Inventory
from tests.builders.archived_evidence import archived_evidence
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, inventory

OLD = inventory(gpu(vbios="96.00.74.00.11"))
NEW = inventory(gpu(vbios="96.00.74.00.99"))


def hash_of(found: Inventory, level: str = "L0") -> str:
    return attestation_hash(
        class_document(found, level=level, trust_domain=TRUST_DOMAIN, attestor=None)
    )


def evidence_of(found: Inventory) -> ArchivedEvidence:
    return archived_evidence(Scene(evidence={"inventory": found}))


class Log:
    """A log of acceptances, with the evidence of each kept or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sealer, self._head = Sealer(LogIdentity("lab/a", "boot", "me")), BEFORE_FIRST

    def accept(
        self,
        node: str,
        found: Inventory,
        *,
        folder: str = FOLDER,
        kind: RecordKind = RecordKind.EVIDENCE_ACCEPTED,
        level: str = "L0",
        wrong_hash: str = "",
        wrong_evidence: str = "",
    ) -> str:
        kept = evidence_of(found)
        refs = {
            "hash": wrong_hash or hash_of(found, level),
            "level": level,
            "evidence": wrong_evidence or kept.digest,
        }
        record = Record(kind, "agent", f"node/{node}", "accepted", refs=dict(refs))
        sealed = self._sealer.seal(record, 0, self._head)
        self._head = sealed.head
        with (self.folder / file_name(1)).open("ab") as file:
            file.write(sealed.line + b"\n")
        if folder:
            place = self.folder / folder / "20261128"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{kept.digest}.json").write_bytes(kept.encoded())
        return kept.digest

    @property
    def classes(self) -> PastClasses:
        return PastClasses(self.folder, TRUST_DOMAIN)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.mark.parametrize("folder", [FOLDER, CITED_FOLDER])
def test_a_class_that_no_node_has_any_more_has_its_document(log: Log, folder: str) -> None:
    log.accept("a", OLD, folder=folder)
    log.accept("a", NEW)
    wanted = hash_of(OLD)
    for reference in (wanted, wanted.removeprefix("v1:sha256:")[:8]):
        (found,) = log.classes.beginning(reference)
        assert (found.attestation_hash, found.level) == (wanted, "L0")
        assert attestation_hash(decode_class_document(found.text.encode())) == wanted


def test_the_beginning_of_several_hashes_gives_them_all_once(log: Log) -> None:
    for found in (OLD, NEW, OLD):
        log.accept("a", found)
    assert [x.attestation_hash for x in log.classes.beginning("")] == sorted(
        (hash_of(OLD), hash_of(NEW))
    )
    assert log.classes.beginning("0" * 64) == ()


def test_without_its_evidence_a_class_is_known_by_hash_and_level_alone(log: Log) -> None:
    log.accept("a", OLD, folder="", level="L1")
    (found,) = log.classes.beginning(hash_of(OLD, "L1"))
    assert (found.level, found.document, found.text) == ("L1", None, "")


def test_a_document_counts_only_if_it_has_the_hash_of_its_record(log: Log) -> None:
    log.accept("a", OLD, wrong_hash=hash_of(NEW))
    (found,) = log.classes.beginning(hash_of(NEW))
    assert found.document is None


@pytest.mark.parametrize("reference", ["none", "*", "../*", "A" * 64])
def test_a_record_that_names_no_digest_of_evidence_finds_none(log: Log, reference: str) -> None:
    log.accept("a", OLD, wrong_evidence=reference)
    (found,) = log.classes.beginning(hash_of(OLD))
    assert found.document is None


def test_evidence_that_cannot_be_read_gives_no_document(log: Log) -> None:
    digest = log.accept("a", OLD)
    (path,) = log.folder.glob(f"{FOLDER}/*/{digest}.json")
    path.write_bytes(b"junk")
    assert [x.document for x in log.classes.beginning(hash_of(OLD))] == [None]


def test_other_evidence_under_its_name_gives_no_document(log: Log) -> None:
    digest = log.accept("a", OLD, wrong_hash=hash_of(NEW))
    (path,) = log.folder.glob(f"{FOLDER}/*/{digest}.json")
    path.write_bytes(evidence_of(NEW).encoded())
    assert [x.document for x in log.classes.beginning(hash_of(NEW))] == [None]


def test_an_inventory_without_a_pci_identity_gives_no_document(log: Log) -> None:
    log.accept("a", inventory(gpu(pci=None)), wrong_hash=hash_of(OLD))
    assert [x.document for x in log.classes.beginning(hash_of(OLD))] == [None]


def test_only_acceptances_count(log: Log) -> None:
    log.accept("a", OLD, kind=RecordKind.EVIDENCE_REFUSED)
    assert log.classes.beginning(hash_of(OLD)) == ()


def test_when_and_what_changed_about_one_node(log: Log) -> None:
    for node, found in (("a", OLD), ("b", NEW), ("a", OLD), ("a", NEW), ("b", OLD)):
        log.accept(node, found)
    (change,) = log.classes.changes_of("a")
    assert (change.before.attestation_hash, change.after.attestation_hash) == (
        hash_of(OLD),
        hash_of(NEW),
    )
    assert change.at.startswith("1970-01-01T00:00:00")
    assert change.before.document is not None
    assert change.before.document.gpus[0].vbios == "96.00.74.00.11"
    assert log.classes.changes_of("c") == ()


def test_the_last_changes_come_newest_first(log: Log) -> None:
    versions = [inventory(gpu(vbios=f"{n}")) for n in range(7)]
    for found in versions:
        log.accept("a", found, folder="")
    changes = log.classes.changes_of("a")
    assert [x.after.attestation_hash for x in changes] == [hash_of(x) for x in versions[:-5:-1]]


def test_the_last_change_of_each_of_several_nodes(log: Log) -> None:
    oldest = inventory(gpu(vbios="1"))
    for node, found in (
        ("b", OLD),
        ("a", oldest),
        ("a", OLD),
        ("c", OLD),
        ("a", NEW),
        ("b", NEW),
        ("c", NEW),
        ("a", NEW),
        ("d", OLD),
    ):
        log.accept(node, found)
    changes = log.classes.last_changes(["d", "b", "a"])
    assert changes == tuple((node, log.classes.changes_of(node)[0]) for node in ("a", "b"))
    assert changes[0][1].before.attestation_hash == hash_of(OLD)
    assert log.classes.last_changes([]) == ()


def test_a_folder_without_a_log_has_no_classes(tmp_path: Path) -> None:
    assert PastClasses(tmp_path / "none", TRUST_DOMAIN).beginning("") == ()


@pytest.mark.parametrize("attestor", ["k8s_psat", "x509pop"])
def test_a_class_of_a_node_that_spire_confirmed_has_its_document(
    tmp_path: Path, attestor: str
) -> None:
    document = class_document(OLD, level="L1", trust_domain=TRUST_DOMAIN, attestor=attestor)
    log = Log(tmp_path)
    log.accept("gpu-1", OLD, level="L1", wrong_hash=attestation_hash(document))
    (found,) = log.classes.beginning(attestation_hash(document))
    assert found.document == document


def test_evidence_that_names_pods_has_a_document_too(tmp_path: Path) -> None:
    log = Log(tmp_path)
    kept = archived_evidence(Scene(wants_pods=True, evidence={"inventory": OLD, "pods": ()}))
    digest = log.accept("gpu-1", OLD, wrong_evidence=kept.digest)
    path = next(tmp_path.glob(f"{FOLDER}/*/{digest}.json"))
    path.with_name(f"{kept.digest}.json").write_bytes(kept.encoded())
    (found,) = log.classes.beginning(hash_of(OLD))
    assert found.document is not None
