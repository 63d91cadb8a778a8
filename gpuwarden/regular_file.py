"""Opens regular files only, and never waits for it: for folders in which others can put things.

Opening a named pipe waits for its other end without limit. For a pipe, device, socket or folder
there is an OSError that says what was found.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OTHERS: Final = 0o077
_OWNER_FOLDER: Final = 0o700
_OWNER_FILE: Final = 0o600


class NotRegularError(OSError):
    """Something else lies where a regular file was expected."""

    def __init__(self, path: Path, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"{kind}; expected a regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename} is {self.strerror}"


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file, through links too; raises OSError."""
    _require(path, path.stat().st_mode)  # opening a device can already act on it
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_regular(descriptor, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_new(path: Path) -> BinaryIO:
    """Make a file of mode 0600; what lies there is removed, never opened. Raises OSError."""
    with suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, _OWNER_FILE), "wb")


def require_regular(descriptor: int, path: Path) -> None:
    """Raise NotRegularError unless a regular file is open."""
    _require(path, os.fstat(descriptor).st_mode)


def private_folder(path: Path) -> None:
    """Make the folder, of mode 0700; take an existing one from others. Raises OSError.

    A folder of another user keeps its mode.
    """
    path.mkdir(mode=_OWNER_FOLDER, parents=True, exist_ok=True)
    if path.stat().st_mode & _OTHERS:
        with suppress(PermissionError):
            path.chmod(_OWNER_FOLDER)


def private_files(folder: Path) -> None:
    """Take the regular files of a folder from others: mode 0600. Raises OSError.

    A file of another user keeps its mode.
    """
    with os.scandir(folder) as entries:
        open_ones = [
            entry.path
            for entry in entries
            if entry.is_file(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_mode & _OTHERS
        ]
    for path in open_ones:
        with suppress(PermissionError):
            _take_from_others(path)


def _take_from_others(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, _OWNER_FILE)
    finally:
        os.close(descriptor)


def _require(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegularError(path, mode)
