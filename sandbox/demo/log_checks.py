"""Checks of the audit log: it verifies, it tells what happened, and a flipped byte is found."""

import json
import shutil
from pathlib import Path

from sandbox.demo.check import Check, demand
from sandbox.demo.stage import Stage

_FINDING = 3


async def log_verifies(stage: Stage) -> str:
    """The log that is being written verifies and names every node that was accepted."""
    status, output = await stage.cli("audit", "verify", str(stage.audit_folder))
    demand(status == 0, f"`gpuwarden audit verify` ended with {status}: {output[-300:]}")
    records = [json.loads(line) for line in _lines(stage.audit_folder)]
    accepted = {
        record["subject"].removeprefix("node/")
        for record in records
        if record["kind"] == "evidence.accepted"
    }
    demand(accepted.issuperset(stage.nodes), f"accepted according to the log: {sorted(accepted)}")
    return f"{len(records)} records, {len(accepted)} nodes accepted in them"


async def flip_found(stage: Stage) -> str:
    """One flipped byte in a copy is found, with the number of its record."""
    copy = stage.laptop.folder / "audit-copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(stage.audit_folder, copy)
    path = _log_files(copy)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    number = len(lines) // 2
    seq = json.loads(lines[number])["seq"]
    at = lines[number].index(b'"subject":"') + len(b'"subject":"')
    lines[number] = lines[number][:at] + b"X" + lines[number][at + 1 :]
    path.write_bytes(b"".join(lines))
    status, output = await stage.cli("audit", "verify", str(copy), "-o", "json")
    demand(status == _FINDING, f"ended with {status}: {output[-300:]}")
    (found,) = json.loads(output)
    # The flipped record still stands where it should; its successor no longer names its digest.
    demand(found["record"] in {seq, seq + 1}, f"record {seq} was changed, found: {found}")
    return f"record {seq} changed; found: record {found['record']}, {found['what'][:60]}"


def _log_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.jsonl"))


def _lines(folder: Path) -> list[str]:
    return [line for path in _log_files(folder) for line in path.read_text().splitlines() if line]


CHECKS = (
    Check("log", "the audit log verifies", log_verifies),
    Check("flip", "a flipped byte in a copy of the log is found", flip_found),
)
