"""`python -m tests.e2e.lab.product_images`: agent and controller as container images.

Built from the repository's Dockerfiles without a daemon, and kept as docker archives in the
lab's cache, named after all that went into them. What is missing is said with how to get it.
"""

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden import __version__
from tests.e2e.lab import debian_base
from tests.e2e.lab.cache import Shelf, cache_folder, key
from tests.e2e.lab.image_builder import Build, ImageBuilder, ImageBuildError
from tests.e2e.lab.machine import missing
from tests.e2e.lab.package_index import machine_index

ROOT = Path(__file__).resolve().parents[3]
BASE = "docker.io/library/debian:bookworm-slim"
"""What the Dockerfiles name."""
NEEDS = ("root", "buildah", "debootstrap")
PARTS = ("agent", "controller")
_SENT = ("agent", "controller", "gpuwarden", "requirements", "LICENSE", ".dockerignore")
_CA = "/run/package-index-ca.crt"
_FORMAT = "1"
"""Raised when what this module does to an image changes."""
_KEPT = 3
"""Builds; each is some 400 MB."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProductImage:
    """One image in the cache."""

    name: str
    """As containerd knows it after the import."""
    archive: Path


def image_name(part: str) -> str:
    """Without a registry: deploy/kustomize names the same."""
    return f"docker.io/library/gpuwarden-{part}:{__version__}"


def sources(root: Path = ROOT) -> list[tuple[str, bytes]]:
    """All files that can change an image."""
    files = [path for name in _SENT for path in _files(root / name)]
    files += [root / f"Dockerfile.{part}" for part in PARTS]
    return [(str(path.relative_to(root)), path.read_bytes()) for path in files]


def product_images(cache: Path | None = None) -> dict[str, ProductImage]:
    """`agent` and `controller`; builds what the cache lacks.

    ImageBuildError or BaseImageError where they cannot be built.
    """
    cache = cache or cache_folder()
    revision = os.environ.get("REVISION", "unknown")
    shelf = Shelf(cache, "images", key(sources(), [__version__, revision, _FORMAT]))
    if not shelf.is_filled:
        with shelf.locked():
            if not shelf.is_filled:  # another builder may have been first
                _build(shelf, cache, revision)
    return {part: ProductImage(image_name(part), shelf.folder / f"{part}.tar") for part in PARTS}


def layer_sizes(archive: Path) -> Sequence[int]:
    """Bytes of each layer of a docker archive, unpacked, in order."""
    with tarfile.open(archive) as opened:
        manifest = opened.extractfile("manifest.json")
        assert manifest is not None
        layers = json.load(manifest)[0]["Layers"]
        return [opened.getmember(layer).size for layer in layers]


def _build(shelf: Shelf, cache: Path, revision: str) -> None:
    if lines := missing(NEEDS):
        raise ImageBuildError(f"images need {'; '.join(lines)}")
    builder = ImageBuilder(cache / "buildah")
    if not builder.has(BASE):
        _say(f"{BASE}: assembling from packages")
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            debian_base.assemble(Path(folder), debian_base.machine_sources())
            Path(folder).chmod(0o755)
            builder.add_base(BASE, Path(folder))
    arguments, mounts = _index_in_a_container(machine_index())
    with shelf.filling() as folder:
        for part in PARTS:
            name = image_name(part)
            _say(f"{name}: building")
            given = {**arguments, "VERSION": __version__, "REVISION": revision}
            builder.build(Build(f"Dockerfile.{part}", ROOT, name, given, mounts))
            builder.export(name, folder / f"{part}.tar")
    for old in old_builds(shelf.folder.parent, _KEPT):
        shutil.rmtree(old)


def old_builds(folder: Path, kept: int) -> Sequence[Path]:
    """All builds of images but the newest `kept`."""
    builds = sorted(folder.glob("images-*"), key=lambda x: x.stat().st_mtime, reverse=True)
    return builds[kept:]


def _index_in_a_container(
    variables: Mapping[str, str],
) -> tuple[Mapping[str, str], Mapping[Path, str]]:
    ca = variables.get("PIP_CERT")
    if ca is None:
        return variables, {}
    return {**variables, "PIP_CERT": _CA}, {Path(ca): _CA}


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [
        found for found in path.rglob("*") if found.is_file() and "__pycache__" not in found.parts
    ]


def _say(line: str) -> None:
    sys.stderr.write(f"images: {line}\n")
    sys.stderr.flush()


def main() -> int:
    """Build, and say where the archives are and how large the images are."""
    try:
        images = product_images()
    except (ImageBuildError, debian_base.BaseImageError) as error:
        _say(str(error))
        return 1
    for image in images.values():
        sizes = layer_sizes(image.archive)
        layers = " + ".join(f"{size / _MIB:.1f}" for size in sizes)
        sys.stdout.write(f"{image.name}  {sum(sizes) / _MIB:.1f} MiB ({layers})\n")
        sys.stdout.write(f"  {image.archive}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
