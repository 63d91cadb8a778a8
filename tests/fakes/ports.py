"""A port of this machine for a program that must be told one."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Nobody else gets it meanwhile, not even while the program is stopped.

    A program that sets SO_REUSEADDR can listen beside this socket, which never does.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
