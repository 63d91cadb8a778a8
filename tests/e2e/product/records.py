"""The audit log of a controller that runs beside the lab, as it is on disk."""

import json

from tests.e2e.lab.api import Document
from tests.e2e.product.controller import Controller


def audit_records(controller: Controller) -> list[Document]:
    """All records, oldest first; the last line may be half written."""
    files = sorted((controller.data / "audit").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
