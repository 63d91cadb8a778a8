"""Rewrites a log as somebody would who has the volume and the key: whole, chained, signed."""

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id, unverified_checkpoint
from gpuwarden.audit.files import log_files
from gpuwarden.audit.merkle import Frontier, leaf_hash
from gpuwarden.audit.note import Signer
from gpuwarden.evidence.canonical import canonical_json, sha256_hex


def fork(folder: Path, *, at: int) -> None:
    """Change record `at` and make everything behind it fit, in a log of one file."""
    (path,) = log_files(folder)
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    records[at - 1]["subject"] = "node/somebody-else"
    tree, lines = Frontier(), list[bytes]()
    for record in records:
        if lines:
            record["prev"] = sha256_hex(lines[-1])
        if record["kind"] == "checkpoint":
            record["refs"]["checkpoint"] = _signed(folder, tree, record, lines)
        lines.append(canonical_json(record))
        tree.append(leaf_hash(lines[-1]))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / "tree").unlink()


def _signed(folder: Path, tree: Frontier, record: dict[str, Any], lines: list[bytes]) -> str:
    origin = unverified_checkpoint(record["refs"]["checkpoint"]).origin
    private = load_pem_private_key((folder / "log-key.pem").read_bytes(), None)
    assert isinstance(private, Ed25519PrivateKey)
    head = TreeHead(tree.size, tree.root())
    return Checkpoint(origin, log_id(leaf_hash(lines[0])), head).signed(Signer(origin, private))
