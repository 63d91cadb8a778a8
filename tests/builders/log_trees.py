"""What a log's files say about its tree, found out independently of the code under test."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuwarden.audit.files import log_files


def naive_root(lines: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 section 2.1, as written there; lines without LF."""
    if not lines:
        return sha256().digest()
    if len(lines) == 1:
        return sha256(b"\x00" + lines[0]).digest()
    k = 1
    while k * 2 < len(lines):
        k *= 2
    return sha256(b"\x01" + naive_root(lines[:k]) + naive_root(lines[k:])).digest()


def lines_in(folder: Path) -> list[bytes]:
    """All lines of the log, without LF."""
    return [line for path in log_files(folder) for line in path.read_bytes().splitlines()]


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_in(folder)]


def notes_in(folder: Path) -> list[tuple[int, str]]:
    """Number of each record that carries a checkpoint, and the checkpoint."""
    return [
        (record["seq"], record["refs"]["checkpoint"])
        for record in records_in(folder)
        if record["kind"] in {"checkpoint", "log.rotate"}
    ]


def head_lines(lines: Sequence[bytes]) -> list[str]:
    """The size and root lines that a checkpoint over these records must have."""
    return [str(len(lines)), b64encode(naive_root(lines)).decode()]
