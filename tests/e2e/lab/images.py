"""Container images made here: a docker-archive of one layer, the same bytes for the same files.

Nothing is ever pulled. Pods name them with `imagePullPolicy: Never`.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK = 1 << 20
_EXECUTABLE = 0o755


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its name with tag, its files by absolute path, and what it runs."""

    name: str
    files: Mapping[str, Path]
    entrypoint: Sequence[str]
    environment: Sequence[str] = field(default=())


def write_archive(image: Image, target: Path) -> None:
    """A file that `ctr images import` takes."""
    layer = target.with_suffix(".layer")
    _write_layer(image, layer)
    digest = _sha256(layer)
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(image.entrypoint), "Env": list(image.environment)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    layer_name = f"{digest}/layer.tar"
    manifest = [{"Config": config_name, "RepoTags": [image.name], "Layers": [layer_name]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, config_name, configuration)
        archive.add(layer, layer_name, filter=_anonymous)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _write_layer(image: Image, target: Path) -> None:
    with tarfile.open(target, "w") as archive:
        for inside, path in sorted(image.files.items()):
            entry = archive.gettarinfo(path, inside.removeprefix("/"))
            with path.open("rb") as content:
                archive.addfile(_anonymous(entry), content)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = _EXECUTABLE
    return entry


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
