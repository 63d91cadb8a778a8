"""Where built programs are kept: one folder per project, named after what went into it.

A folder is complete as soon as it is there (it is renamed into place), and one builder at a
time works on a project.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_KEY_LENGTH = 16


def cache_folder() -> Path:
    """`GPUWARDEN_LAB_CACHE`, else `gpuwarden-lab` in the user's cache folder."""
    if chosen := os.environ.get("GPUWARDEN_LAB_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwarden-lab"


def key(sources: Sequence[tuple[str, bytes]], flags: Sequence[str]) -> str:
    """Names one build: the content of its files and its flags, in any order of the files."""
    digest = hashlib.sha256()
    for name, content in sorted(sources):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    for flag in flags:
        digest.update(f"{flag}\n".encode())
    return digest.hexdigest()[:_KEY_LENGTH]


def sources(folder: Path) -> list[tuple[str, bytes]]:
    """go.mod, go.sum and our own Go files of a module."""
    names = ("go.mod", "go.sum", "*.go")
    return [(path.name, path.read_bytes()) for name in names for path in folder.glob(name)]


class Shelf:
    """The builds of one project below `root`."""

    def __init__(self, root: Path, project: str, key: str) -> None:
        self._root = root
        self._project = project
        self.folder = root / "programs" / f"{project}-{key}"

    @property
    def is_filled(self) -> bool:
        """Whether this build is there."""
        return self.folder.is_dir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with this project, whichever process asks."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f"{self._project}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def filling(self) -> Iterator[Path]:
        """A folder to build into; becomes the build where the block ends without an error.

        Only for who has it `locked`: what a killed builder left is removed first.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for left in self.folder.parent.glob(f".{self._project}-*"):
            shutil.rmtree(left)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{self._project}-", dir=self.folder.parent))
        try:
            yield unfinished
            unfinished.chmod(0o755)
            unfinished.rename(self.folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
