"""Reads archived evidence from the folder of a log, and the inventory that it shows.

Reading only. Verifies neither signature nor chain: `gpuwarden audit reverify` does. What is read
has the digest that was asked for.
"""

import re
from pathlib import Path
from typing import Final

from gpuwarden.audit.archived_evidence import (
    CITED_FOLDER,
    FOLDER,
    MAX_ARCHIVED_EVIDENCE_BYTES,
    ArchivedEvidence,
    ArchivedEvidenceError,
    read_archived_evidence,
)
from gpuwarden.audit.gpu_history import Shown, shown_by
from gpuwarden.evidence.model import (
    TYPE_EVIDENCE_WITH_PODS,
    Evidence,
    EvidenceWithPods,
    Inventory,
)
from gpuwarden.evidence.strict_json import DecodeError, decode
from gpuwarden.regular_file import open_to_read

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def archived_inventory(folder: Path, digest: str) -> Inventory | None:
    """The inventory of the evidence of that digest; None where it is not kept or unreadable."""
    if not _DIGEST.fullmatch(digest):
        return None
    for path in archived_files(folder, digest):
        try:
            return _inventory(archived_in(path), digest)
        except (OSError, ArchivedEvidenceError, DecodeError):
            return None
    return None


def archived_shown(folder: Path, digest: str) -> Shown | None:
    """What that evidence shows, as far as histories of GPUs need it; None likewise."""
    return shown_by(archived_inventory(folder, digest))


def archived_files(folder: Path, beginning: str) -> list[Path]:
    """Files of the evidence whose digests begin so, sorted."""
    folders = (folder / FOLDER, folder / CITED_FOLDER)
    return sorted(path for x in folders for path in x.glob(f"*/{beginning}*.json"))


def archived_in(path: Path) -> ArchivedEvidence:
    """What is in one of them; raises OSError and ArchivedEvidenceError."""
    with open_to_read(path) as file:
        return read_archived_evidence(file.read(MAX_ARCHIVED_EVIDENCE_BYTES + 1))


def _inventory(kept: ArchivedEvidence, digest: str) -> Inventory:
    if kept.digest != digest:
        raise ArchivedEvidenceError(f"the evidence has the digest {kept.digest}")
    with_pods = kept.payload_type == TYPE_EVIDENCE_WITH_PODS
    kind = EvidenceWithPods if with_pods else Evidence
    return decode(kept.payload, kind, max_bytes=MAX_ARCHIVED_EVIDENCE_BYTES).inventory
