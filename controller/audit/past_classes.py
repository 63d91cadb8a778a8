"""Attestation classes that nodes had earlier, from the audit log and the evidence archived with it.

The log says when a node got which class. The document comes from the archived evidence of that
record and counts only if it has the hash of the record. Bounded by what the log's end and the
archive still hold. Reads files; call it on a thread.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from gpuwarden.audit.archive import archived_inventory
from gpuwarden.audit.reading import TAIL_BYTES, recent_records
from gpuwarden.audit.record import LogRecord, RecordKind
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import (
    ClassDocument,
    NoDocumentError,
    attestation_hash,
    class_document,
)
from gpuwarden.policy.document import ATTESTORS

MOST_CHANGES: Final = 4
"""Changes of one node that are told."""
_PREFIX: Final = "v1:sha256:"


@dataclass(frozen=True, slots=True)
class PastClass:
    """A class, as a node once had it."""

    attestation_hash: str
    level: str
    document: ClassDocument | None
    """None where the evidence is not kept any more."""

    @property
    def text(self) -> str:
        """RFC 8785 JSON of the document; empty for none."""
        return "" if self.document is None else canonical_json(self.document).decode()


@dataclass(frozen=True, slots=True)
class ClassChange:
    """A node's evidence began to have another class."""

    at: str
    """RFC 3339."""
    before: PastClass
    after: PastClass


class PastClasses:
    """The classes of one log."""

    def __init__(self, folder: Path, trust_domain: str, *, limit_bytes: int = TAIL_BYTES) -> None:
        self._folder = folder
        self._trust_domain = trust_domain
        self._limit_bytes = limit_bytes

    def beginning(self, reference: str) -> tuple[PastClass, ...]:
        """Those whose hash, or its hex digits, begin so; sorted by hash. Raises OSError."""
        start = _PREFIX + reference.removeprefix(_PREFIX)
        newest: dict[str, LogRecord] = {}
        for record in self._acceptances():
            if _ref(record, "hash").startswith(start):
                newest[_ref(record, "hash")] = record
        return tuple(self._class(newest[x]) for x in sorted(newest))

    def changes_of(self, node: str) -> tuple[ClassChange, ...]:
        """The last changes of a node's class, newest first. Raises OSError."""
        records = [x for x in self._acceptances() if x.subject == f"node/{node}"]
        pairs = [x for x in pairwise(records) if _differ(*x)]
        return tuple(self._change(*pair) for pair in pairs[: -MOST_CHANGES - 1 : -1])

    def last_changes(self, nodes: Collection[str]) -> tuple[tuple[str, ClassChange], ...]:
        """The last change of each of several nodes, sorted by node. Raises OSError."""
        subjects = {f"node/{node}": node for node in nodes}
        newest: dict[str, LogRecord] = {}
        last: dict[str, tuple[LogRecord, LogRecord]] = {}
        for record in self._acceptances():
            node = subjects.get(record.subject)
            if node is None:
                continue
            before = newest.get(node)
            if before is not None and _differ(before, record):
                last[node] = (before, record)
            newest[node] = record
        return tuple((node, self._change(*last[node])) for node in sorted(last))

    def _change(self, old: LogRecord, new: LogRecord) -> ClassChange:
        return ClassChange(new.ts, self._class(old), self._class(new))

    def _acceptances(self) -> Iterator[LogRecord]:
        return recent_records(self._folder, (RecordKind.EVIDENCE_ACCEPTED,), self._limit_bytes)

    def _class(self, record: LogRecord) -> PastClass:
        level, wanted = _ref(record, "level"), _ref(record, "hash")
        return PastClass(wanted, level, self._document(_ref(record, "evidence"), level, wanted))

    def _document(self, digest: str, level: str, wanted: str) -> ClassDocument | None:
        """The record does not say how the SPIRE agent attested; the hash tells."""
        inventory = archived_inventory(self._folder, digest)
        if inventory is None:
            return None
        try:
            documents = (
                class_document(
                    inventory, level=level, trust_domain=self._trust_domain, attestor=attestor
                )
                for attestor in (None, *ATTESTORS)
            )
            return next((x for x in documents if attestation_hash(x) == wanted), None)
        except NoDocumentError:
            return None


def _differ(old: LogRecord, new: LogRecord) -> bool:
    return _ref(old, "hash") != _ref(new, "hash")


def _ref(record: LogRecord, name: str) -> str:
    return str(record.refs.get(name, ""))
