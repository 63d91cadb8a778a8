"""`python -m tests.e2e.lab.product_images`: agent and controller as container images.

Built from the repository's Dockerfiles without a daemon, and kept as docker archives in the
lab's cache, named after all that went into them. What is missing is said with how to get it.
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden import __version__
from tests.e2e.lab import debian_base
from tests.e2e.lab.architecture import MACHINES, ArchitectureError, this_machines
from tests.e2e.lab.bill_of_materials import write_bill
from tests.e2e.lab.cache import Shelf, cache_folder, key
from tests.e2e.lab.image_builder import Build, ImageBuilder, ImageBuildError
from tests.e2e.lab.machine import missing
from tests.e2e.lab.package_index import machine_index

ROOT = Path(__file__).resolve().parents[3]
BASE = "docker.io/library/debian:bookworm-slim"
"""What the Dockerfiles name by digest; here it is assembled from packages."""
NEEDS = ("root", "buildah", "debootstrap")
PARTS = ("agent", "controller")
_SENT = ("agent", "controller", "gpuwarden", "requirements", "LICENSE", ".dockerignore")
_CA = "/run/package-index-ca.crt"
_ARCHIVES = ("DEBIAN", "DEBIAN_SECURITY")
_LOCKED = "DEBIAN_LOCKED"
_FORMAT = "2"
"""Raised when what this module does to an image changes."""
_KEPT = 6
"""Builds; each is some 300 MB."""
_MIB = 1 << 20
_E_MACHINE = slice(18, 20)
_ELF_HEAD = 20


@dataclass(frozen=True, slots=True)
class ProductImage:
    """One image in the cache."""

    name: str
    """As containerd knows it after the import."""
    archive: Path

    @property
    def bill(self) -> Path:
        """Where its bill of materials belongs."""
        return self.archive.with_suffix(".spdx.json")


@dataclass(frozen=True, slots=True)
class Facts:
    """What an image says of itself, beside the version."""

    revision: str
    epoch: int
    """Seconds since 1970: when its files were changed last."""
    debian: Mapping[str, str]
    """Debian's archives of a moment, if somebody named them, and whether versions are locked."""


def facts(environ: Mapping[str, str]) -> Facts:
    """What the caller's environment says about the images."""
    archives = {name: environ[name] for name in _ARCHIVES if environ.get(name)}
    if archives and len(archives) < len(_ARCHIVES):
        raise ImageBuildError(
            f"only {next(iter(archives))} is set: {' and '.join(_ARCHIVES)} go together"
        )
    if environ.get(_LOCKED):
        archives[_LOCKED] = environ[_LOCKED]
    return Facts(environ.get("REVISION", "unknown"), source_date_epoch(environ), archives)


def source_date_epoch(environ: Mapping[str, str]) -> int:
    """`SOURCE_DATE_EPOCH`, else 0: the same sources give the same images on any day."""
    text = environ.get("SOURCE_DATE_EPOCH") or "0"
    if not text.isdecimal():
        raise ImageBuildError(
            f"SOURCE_DATE_EPOCH={text!r}: expected seconds since 1970, as `git log -1 --format=%ct`"
        )
    return int(text)


def image_name(part: str) -> str:
    """Without a registry: deploy/kustomize names the same."""
    return f"docker.io/library/gpuwarden-{part}:{__version__}"


def sources(root: Path = ROOT) -> list[tuple[str, bytes]]:
    """All files that can change an image."""
    files = [path for name in _SENT for path in _files(root / name)]
    files += [root / f"Dockerfile.{part}" for part in PARTS]
    return [(str(path.relative_to(root)), path.read_bytes()) for path in files]


def product_images(cache: Path | None = None, arch: str = "") -> dict[str, ProductImage]:
    """`agent` and `controller`, of this machine's architecture by default; builds what is missing.

    ImageBuildError or BaseImageError where they cannot be built.
    """
    cache = cache or cache_folder()
    arch = arch or this_machines()
    told = facts(os.environ)
    flags = [
        arch,
        __version__,
        told.revision,
        str(told.epoch),
        *(f"{name}={text}" for name, text in told.debian.items()),
        _FORMAT,
    ]
    shelf = Shelf(cache, "images", key(sources(), flags))
    if not shelf.is_filled:
        with shelf.locked():
            if not shelf.is_filled:  # another builder may have been first
                _build(shelf, cache, told, arch)
    return {part: ProductImage(image_name(part), shelf.folder / f"{part}.tar") for part in PARTS}


def layer_digests(archive: Path) -> Sequence[str]:
    """SHA-256 of each layer of a docker archive, unpacked, in order."""
    return [str(x) for x in _configuration(archive)["rootfs"]["diff_ids"]]


def architecture_of(archive: Path) -> str:
    """What a docker archive says that it is for."""
    return str(_configuration(archive)["architecture"])


def elf_machines(archive: Path) -> Mapping[int, Sequence[str]]:
    """Programs and libraries in a docker archive by `e_machine`, the machine that they are for."""
    found: dict[int, list[str]] = {}
    with tarfile.open(archive) as opened:
        (image,) = _json(opened, "manifest.json")
        for name in image["Layers"]:
            with tarfile.open(fileobj=opened.extractfile(name)) as layer:
                for entry in layer:
                    file = layer.extractfile(entry) if entry.isreg() else None
                    head = file.read(_ELF_HEAD) if file else b""
                    if head.startswith(b"\x7fELF"):
                        machine = int.from_bytes(head[_E_MACHINE], "little")
                        found.setdefault(machine, []).append(entry.name)
    return found


def layer_sizes(archive: Path) -> Sequence[int]:
    """Bytes of each layer of a docker archive, unpacked, in order."""
    with tarfile.open(archive) as opened:
        (image,) = _json(opened, "manifest.json")
        return [opened.getmember(layer).size for layer in image["Layers"]]


def pushed(images: Iterable[ProductImage], registry: str, cache: Path | None = None) -> list[str]:
    """Push to `registry`, a host with an optional path; each image's name there, by digest.

    Images of the same name differ in their architecture, and become one there.
    """
    cache = cache or cache_folder()
    archives: dict[str, list[Path]] = {}
    for image in images:
        archives.setdefault(image.name, []).append(image.archive)
    found = []
    with _store_locked(cache):
        builder = ImageBuilder(cache / "buildah")
        for here, same in archives.items():
            name = f"{registry}/{here.rpartition('/')[2]}"
            _say(f"{name}: pushing")
            found.append(f"{name}@{builder.push(same, here, name)}")
    return found


def _build(shelf: Shelf, cache: Path, told: Facts, arch: str) -> None:
    if lines := missing(NEEDS):
        raise ImageBuildError(f"images need {'; '.join(lines)}")
    builder = _builder_with_base(cache)
    arguments, mounts = _index_in_a_container(machine_index())
    with shelf.filling() as folder:
        for part in PARTS:
            name = image_name(part)
            _say(f"{name}: building for {arch}")
            given = {**arguments, **told.debian, **_stages()}
            given |= {"VERSION": __version__, "REVISION": told.revision}
            dockerfile = f"Dockerfile.{part}"
            build = Build(dockerfile, ROOT, name, given, mounts, told.epoch, architecture=arch)
            builder.build(build)
            builder.export(name, folder / f"{part}.tar")
    for old in old_builds(shelf.folder.parent, _KEPT):
        shutil.rmtree(old)


def _store_locked(cache: Path) -> AbstractContextManager[None]:
    """One process works with the store at a time: the lock of the builds of images."""
    return Shelf(cache, "images", "").locked()


def _stages() -> dict[str, str]:
    """What the stages that build run on; buildah 1.28 sets no BUILDPLATFORM."""
    return {"BASE": BASE, "BUILDPLATFORM": f"linux/{this_machines()}"}


def _builder_with_base(cache: Path) -> ImageBuilder:
    builder = ImageBuilder(cache / "buildah")
    if not builder.has(BASE):
        _say(f"{BASE}: assembling from packages")
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            debian_base.assemble(Path(folder), debian_base.machine_sources())
            Path(folder).chmod(0o755)
            builder.add_base(BASE, Path(folder))
    return builder


def evaluation_image(cache: Path | None = None, arch: str = "") -> ProductImage:
    """The agent with made-up GPUs, on the agent's image; builds what the cache lacks.

    ImageBuildError or BaseImageError where it cannot be built.
    """
    cache = cache or cache_folder()
    arch = arch or this_machines()
    agent = product_images(cache, arch)["agent"]
    dockerfile = "Dockerfile.evaluation"
    files = [*_files(ROOT / "sandbox"), ROOT / dockerfile]
    named = [(str(path.relative_to(ROOT)), path.read_bytes()) for path in files]
    shelf = Shelf(cache, "evaluation", key(named, [agent.archive.parent.name]))
    image = ProductImage(image_name("agent-evaluation"), shelf.folder / "agent-evaluation.tar")
    if not shelf.is_filled:
        with _store_locked(cache):
            builder = _builder_with_base(cache)
            builder.load(agent.archive, agent.name)
            _say(f"{image.name}: building for {arch}")
            given = {**_stages(), "AGENT": agent.name}
            build = Build(
                dockerfile,
                ROOT,
                image.name,
                given,
                timestamp=facts(os.environ).epoch,
                ignored=f"{dockerfile}.dockerignore",
                architecture=arch,
            )
            builder.build(build)
            with shelf.filling() as folder:
                builder.export(image.name, folder / image.archive.name)
    return image


def old_builds(folder: Path, kept: int) -> Sequence[Path]:
    """All builds of images but the newest `kept`."""
    builds = sorted(folder.glob("images-*"), key=lambda x: x.stat().st_mtime, reverse=True)
    return builds[kept:]


def _configuration(archive: Path) -> Any:
    with tarfile.open(archive) as opened:
        (image,) = _json(opened, "manifest.json")
        return _json(opened, image["Config"])


def _json(archive: tarfile.TarFile, member: str) -> Any:
    file = archive.extractfile(member)
    assert file is not None, "a file"
    return json.load(file)


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
    """Build; say where archives and bills of materials are and how large the images are; push."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.lab.product_images")
    parser.add_argument("--push", metavar="REGISTRY", help="where to, such as ghcr.io/example")
    parser.add_argument("--evaluation", action="store_true", help="the evaluation's agent, too")
    parser.add_argument(
        "--arch",
        nargs="+",
        choices=MACHINES,
        help="this machine's by default; several are pushed as one image",
    )
    parsed = parser.parse_args()
    try:
        images: list[ProductImage] = []
        for arch in dict.fromkeys(parsed.arch or [this_machines()]):
            images += product_images(arch=arch).values()
            if parsed.evaluation:
                images.append(evaluation_image(arch=arch))
        for image in images:
            write_bill(image.archive, image.name, image.bill, source_date_epoch(os.environ))
        names = pushed(images, parsed.push) if parsed.push else []
    except (ArchitectureError, ImageBuildError, debian_base.BaseImageError) as error:
        _say(str(error))
        return 1
    for image in images:
        sizes = layer_sizes(image.archive)
        layers = " + ".join(f"{size / _MIB:.1f}" for size in sizes)
        sys.stdout.write(f"{image.name}  {sum(sizes) / _MIB:.1f} MiB ({layers})\n")
        sys.stdout.write(f"  {image.archive}\n  {image.bill}\n")
    sys.stdout.writelines(f"{name}\n" for name in names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
