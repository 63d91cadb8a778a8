"""Builds audit logs line by line, independent of the controller's writer."""

import hashlib
import json
from typing import Any

GENESIS = "0" * 64


def line(seq: int, prev: str, /, **changes: Any) -> bytes:
    """One record with its LF; `changes` replace fields."""
    record = {
        "v": "gpuwarden.dev/audit/v1",
        "seq": seq,
        "ts": "2026-03-01T12:00:00.000Z",
        "boot": "b",
        "origin": "lab/controller-0",
        "instance": "i",
        "kind": "node.state",
        "actor": "controller",
        "subject": f"node/n{seq}",
        "decision": "eligible",
        "codes": [],
        "refs": {},
        "prev": prev,
    } | changes
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def digest(one_line: bytes) -> str:
    """What the next record's `prev` holds."""
    return hashlib.sha256(one_line.removesuffix(b"\n")).hexdigest()


def log(count: int, *, first: int = 1, prev: str = GENESIS, **changes: Any) -> list[bytes]:
    """A chain of `count` records."""
    lines: list[bytes] = []
    for seq in range(first, first + count):
        lines.append(line(seq, prev, **changes))
        prev = digest(lines[-1])
    return lines
