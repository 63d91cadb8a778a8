"""Writes the golden vectors: `python -m tests.golden.generate` (`make golden`).

Plain JSON for anybody who implements another agent or verifier. A change of a
vector is a new version of the format, never an edit; a test makes them again and compares.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden.admission import admission_patches
from tests.golden.documents import canonical_texts, class_documents, node_identities
from tests.golden.envelopes import envelopes
from tests.golden.merkle import merkle
from tests.golden.reservation_ids import reservation_ids
from tests.golden.transcript import transcript

FOLDER = Path(__file__).resolve().parent

VECTORS: dict[str, Callable[[], Any]] = {
    "admission_patches.json": admission_patches,
    "canonical.json": canonical_texts,
    "class_documents.json": class_documents,
    "envelopes.json": envelopes,
    "merkle.json": merkle,
    "node_identities.json": node_identities,
    "reservation_ids.json": reservation_ids,
    "transcript.json": transcript,
}


def text(vectors: Any) -> str:
    """The file's text: indented ASCII JSON in the order of making."""
    return f"{json.dumps(vectors, indent=1)}\n"


def main() -> None:
    for name, make in VECTORS.items():
        (FOLDER / name).write_text(text(make()))


if __name__ == "__main__":
    main()
