"""Packs parts into one gzipped tar with a manifest, and puts it where it is wanted. Bounded.

`pack` is pure; `write_new` writes a file that only its owner can read and that was not there.
"""

import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from gpuwarden import __version__
from gpuwarden.support.part import Part, json_bytes, missing

FORMAT: Final = "gpuwarden.dev/support-bundle/v1"
MAX_BYTES: Final = 32 << 20
"""Of all files together, before they are compressed."""
NEVER: Final = (
    "private keys, SVID keys, tokens, passwords and headers",
    "evidence, signatures, nonces and processes on GPUs",
    "certificates and trust bundles",
    "the text of errors, logs, audit records and operators' reasons",
    "environment variables; of ours only whether one set a value",
    "paths, URLs and other values that could hold anything",
)
_MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Bundle:
    """An archive and what it lacks."""

    name: str
    """File name, with the time."""
    data: bytes
    gaps: tuple[tuple[str, str], ...]
    """Name and why, for each part that is missing."""


def pack(sections: Mapping[str, Iterable[Part]], now: datetime) -> Bundle:
    """One archive of all parts; `sections` are folders: who sent them."""
    parts = _within(
        [(f"{section}/{part.name}", part) for section, made in sections.items() for part in made]
    )
    stem = f"gpuwarden-support-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    files = {path: part.content for path, part in parts if part.content is not None}
    gaps = tuple((path, part.missing) for path, part in parts if part.content is None)
    manifest = json_bytes(_manifest(parts, files, now))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in {_MANIFEST: manifest, **files}.items():
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(now.timestamp())
            archive.addfile(entry, io.BytesIO(content))
    return Bundle(f"{stem}.tar.gz", out.getvalue(), gaps)


def write_new(data: bytes, path: Path) -> None:
    """Write a new file of mode 0600; raises OSError, FileExistsError where there is one."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _within(parts: list[tuple[str, Part]]) -> list[tuple[str, Part]]:
    """What goes beyond MAX_BYTES is missing."""
    room, kept = MAX_BYTES, []
    for path, part in parts:
        size = len(part.content or b"")
        if size > room:
            kept.append((path, missing(part.name, "no room left in the bundle")))
            continue
        room -= size
        kept.append((path, part))
    return kept


def _manifest(
    parts: list[tuple[str, Part]], files: Mapping[str, bytes], now: datetime
) -> dict[str, object]:
    return {
        "format": FORMAT,
        "madeAt": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "madeBy": f"gpuwarden {__version__}",
        "files": [
            {"path": path, "bytes": len(content), "sha256": sha256(content).hexdigest()}
            for path, content in files.items()
        ],
        "missing": [
            {"path": path, "why": part.missing} for path, part in parts if part.content is None
        ],
        "withheld": {path: list(part.withheld) for path, part in parts if part.withheld},
        "leftOut": {path: part.left_out for path, part in parts if part.left_out},
        "never": list(NEVER),
    }
