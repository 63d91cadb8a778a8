"""buildah without a daemon: builds a Dockerfile in a chroot, from base images that are here.

Nothing is pulled. What it has built before is kept in its store, so a change of the program
alone costs seconds.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_BUILD_S = 3600
_SHOWN = 4000
_INDEX = "localhost/index"
_STORE_LIMIT = 8 << 30
"""Bytes; a store that has grown beyond them is begun again."""


class ImageBuildError(RuntimeError):
    """buildah failed; carries the end of what it said."""


@dataclass(frozen=True, slots=True)
class Build:
    """One Dockerfile of a folder, and what it is given."""

    dockerfile: str
    folder: Path
    image: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[Path, str] = field(default_factory=dict)
    """Read-only files that RUN sees and no image keeps."""
    timestamp: int = 0
    """Seconds since 1970: when every file of the image was changed last."""
    ignored: str = ""
    """File that lists what is not sent to the builder; empty for `.dockerignore`."""
    architecture: str = ""
    """The image's, as Debian and image indexes call it; empty for that of its base."""


class ImageBuilder:
    """One store of images. Only one process may work with it at a time."""

    def __init__(self, store: Path) -> None:
        if store.exists() and _size(store) > _STORE_LIMIT:
            shutil.rmtree(store)
        self._store = store
        store.mkdir(parents=True, exist_ok=True)
        self._driver = "overlay" if self._can("overlay") else "vfs"

    def has(self, image: str) -> bool:
        """Whether an image is here."""
        return self._ran("inspect", "--type=image", image).returncode == 0

    def add_base(self, image: str, root: Path) -> None:
        """Make a root file system an image of one layer."""
        container = self._run("from", "scratch").strip()
        try:
            self._run("add", container, str(root), "/")
            self._run("commit", container, image)
        finally:
            self._run("rm", container)

    def build(self, build: Build) -> None:
        """Build it; layers are cached. ImageBuildError."""
        self._run(*build_command(build), cwd=build.folder)

    def export(self, image: str, target: Path) -> None:
        """A docker archive, as `ctr images import` and `docker load` take it."""
        target.unlink(missing_ok=True)
        self._run("push", image, f"docker-archive:{target}:{image}")

    def load(self, archive: Path, image: str) -> None:
        """Take an image from a docker archive, whatever had its name before."""
        self._run("pull", f"docker-archive:{archive}:{image}")

    def push(self, archives: Sequence[Path], image: str, target: str) -> str:
        """Docker archives to a registry, with the credentials of `buildah login`; the digest.

        Several are one image of several architectures there: the digest is the index's.
        """
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder) / "digest"
            how = ("--format=oci", f"--digestfile={said}")
            to = f"docker://{target}"
            if len(archives) == 1:
                self.load(archives[0], image)
                self._run("push", *how, image, to)
            else:
                self._fill_index(archives)
                self._run("manifest", "push", "--all", *how, _INDEX, to)
                if not said.read_text():  # buildah 1.28 ends with 0 all the same
                    raise ImageBuildError(
                        f"buildah did not push {target} and does not say why; it says so where"
                        " the images of one architecture are pushed"
                    )
            return said.read_text().strip()

    def _fill_index(self, archives: Sequence[Path]) -> None:
        self._ran("manifest", "rm", _INDEX)  # of a push that failed
        self._run("manifest", "create", _INDEX)
        for archive in archives:
            self._run("manifest", "add", _INDEX, f"docker-archive:{archive}")

    def _can(self, driver: str) -> bool:
        self._driver = driver
        return self._ran("info").returncode == 0

    def _run(self, *arguments: str, cwd: Path = Path("/")) -> str:
        done = self._ran(*arguments, cwd=cwd)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-_SHOWN:]
            raise ImageBuildError(f"buildah {arguments[0]}: {said}")
        return done.stdout

    def _ran(self, *arguments: str, cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
        where = (f"--root={self._store / 'images'}", f"--runroot={self._store / 'run'}")
        return subprocess.run(
            ["buildah", *where, f"--storage-driver={self._driver}", *arguments],  # noqa: S607 - its place differs
            cwd=cwd,
            env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )


def build_command(build: Build) -> Sequence[str]:
    """Arguments of buildah."""
    arguments = [f"--build-arg={name}={value}" for name, value in build.arguments.items()]
    mounts = [f"--volume={path}:{inside}:ro" for path, inside in build.mounts.items()]
    ignored = [f"--ignorefile={build.ignored}"] if build.ignored else []
    platform = [f"--platform=linux/{build.architecture}"] if build.architecture else []
    return (
        "build",
        "--isolation=chroot",
        "--pull-never",
        "--layers",
        "--format=oci",
        f"--timestamp={build.timestamp}",
        *arguments,
        *mounts,
        *ignored,
        *platform,
        f"--file={build.dockerfile}",
        f"--tag={build.image}",
        ".",
    )


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
