"""Claims the path of the controller's unix socket before gRPC binds it.

A socket left behind by a dead process is replaced; one that a living server
answers on, or a file that is no socket, is never touched. Must not serve.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MAX_PATH_BYTES: Final = 107
_CONNECT_SECONDS: Final = 1.0
_OWNER_ONLY: Final = 0o177


class SocketInUseError(OSError):
    """The path cannot be had; says why and what to do."""


def claim_socket(path: Path) -> None:
    """Make `path` free for binding, or raise SocketInUseError."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketInUseError(f"listen.local: path longer than {_MAX_PATH_BYTES} bytes: {path}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketInUseError(f"listen.local: {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise SocketInUseError(f"listen.local: {path} exists and is not a socket")
    if _answers(path):
        raise SocketInUseError(f"listen.local: another process serves {path}")
    path.unlink(missing_ok=True)


@contextmanager
def owner_only() -> Iterator[None]:
    """Whatever is created inside belongs to the owner alone (mode 0600), from its first moment."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
