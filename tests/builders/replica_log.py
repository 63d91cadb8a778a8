"""The log of a replica on disk, with what happens to one GPU, and its archived evidence."""

from functools import cache
from pathlib import Path

from controller.audit.sealing import LogIdentity, Sealer
from controller.record import Json, Record
from gpuwarden.audit.archived_evidence import FOLDER, ArchivedEvidence
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.files import file_name
from gpuwarden.audit.record import RecordKind
from tests.builders.archived_evidence import archived_evidence
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, inventory

CARD = gpu(2)
S = 1_000_000_000


@cache
def evidence() -> ArchivedEvidence:
    return archived_evidence(Scene(evidence={"inventory": inventory(CARD)}))


class ReplicaLog:
    """The log of one replica."""

    def __init__(self, folder: Path, replica: str = "a") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._sealer, self._head = Sealer(LogIdentity(f"lab/{replica}", "boot", "me")), BEFORE_FIRST
        self._path = folder / file_name(1)

    def note(self, record: Record, at_s: int = 0) -> None:
        sealed = self._sealer.seal(record, at_s * S, self._head)
        self._head = sealed.head
        with self._path.open("ab") as file:
            file.write(sealed.line + b"\n")

    def rotate(self) -> None:
        self._path = self.folder / file_name(self._head.seq + 1)

    def state(self, node: str, at_s: int = 0, kind: RecordKind = RecordKind.NODE_STATE) -> None:
        self.note(Record(kind, "controller", f"node/{node}", "stale", ("NODE_STALE",)), at_s)

    def accept(self, node: str, at_s: int, *, keeps: bool = True) -> None:
        kept = evidence()
        refs: dict[str, Json] = {"gpus": [CARD.uuid], "lost": [], "evidence": kept.digest}
        self.note(
            Record(RecordKind.EVIDENCE_ACCEPTED, "x", f"node/{node}", "accepted", refs=refs), at_s
        )
        if keeps:
            place = self.folder / FOLDER / "20261128"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{kept.digest}.json").write_bytes(kept.encoded())

    def reserve(self, at_s: int, kind: RecordKind) -> None:
        refs: dict[str, Json] = {
            "uid": "u",
            "node": "gpu-2",
            "reservation": "v1.k.u",
            "gpus": [CARD.uuid],
        }
        self.note(Record(kind, "c", "pod/team-a/train-0", "x", refs=refs), at_s)
