"""Builds logs with keys and checkpoints line by line, independent of the controller's writer."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id, sign_change
from gpuwarden.audit.merkle import Frontier, leaf_hash
from gpuwarden.audit.note import Signer
from tests.builders.audit_log import GENESIS, digest, line
from tests.builders.log_keys import signer


class CertifiedLog:
    """Grows by records of any kind; lines have their LF."""

    def __init__(self, first: Signer | None = None) -> None:
        self.signer = first or signer()
        self.lines: list[bytes] = []
        self.tree = Frontier()
        self.start()

    @property
    def log(self) -> str:
        return log_id(leaf_hash(self.lines[0][:-1]))

    def head(self) -> TreeHead:
        return TreeHead(self.tree.size, self.tree.root())

    def note(self, head: TreeHead | None = None, by: Signer | None = None) -> str:
        signer_ = by or self.signer
        return Checkpoint(self.signer.key.name, self.log, head or self.head()).signed(signer_)

    def add(self, kind: str = "node.state", **refs: Any) -> "CertifiedLog":
        prev = digest(self.lines[-1]) if self.lines else GENESIS
        self.lines.append(line(len(self.lines) + 1, prev, kind=kind, refs=refs))
        self.tree.append(leaf_hash(self.lines[-1][:-1]))
        return self

    def records(self, count: int) -> "CertifiedLog":
        for _ in range(count):
            self.add()
        return self

    def start(self) -> "CertifiedLog":
        return self.add("log.start", key=str(self.signer.key))

    def checkpoint(self, **changes: Any) -> "CertifiedLog":
        return self.add("checkpoint", checkpoint=self.note(**changes))

    def rotate(self, **changes: Any) -> "CertifiedLog":
        peaks = [b64encode(peak).decode() for peak in self.tree.peaks]
        refs = {"checkpoint": self.note(), "frontier": peaks, "key": str(self.signer.key)}
        return self.add("log.rotate", **(refs | changes))

    def change_key(self, new: Signer, statement: str | None = None) -> "CertifiedLog":
        statement = statement or sign_change(self.signer, new)
        self.signer = new
        return self.add("log.key", key=str(new.key), statement=statement)


def rechained(lines: list[bytes], change: Callable[[list[dict[str, Any]]], None]) -> list[bytes]:
    """The lines after `change` of their records, numbered and chained again, nothing signed."""
    records = [json.loads(text) for text in lines]
    change(records)
    made: list[bytes] = []
    for seq, record in enumerate(records, start=1):
        rest = {key: record[key] for key in record if key not in {"seq", "prev"}}
        made.append(line(seq, digest(made[-1]) if made else GENESIS, **rest))
    return made
