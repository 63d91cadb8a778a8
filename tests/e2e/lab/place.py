"""Where programs run: on this machine's loopback, or in a node's namespaces (see `capsule`)."""

import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

_PORTS: Final = range(15_000, 30_000)
"""Below NodePorts (30000) and the ports of connections (32768, `ip_local_port_range`)."""
_TRIES: Final = 100
_GIVEN: Final[list[socket.socket]] = []


class Place(Protocol):
    """Somewhere to start programs."""

    @property
    def address(self) -> str:
        """Where its servers listen."""
        ...

    def port(self, usual: int) -> int:
        """A port for a server: the usual one where the place has its own network."""
        ...

    def command(self, arguments: Sequence[str], folder: Path) -> list[str]:
        """What to start here so that `arguments` runs there, in that working directory."""
        ...

    def pid(self, started: subprocess.Popen[bytes]) -> int:
        """The process id, as seen here, of the program itself."""
        ...


def free_port(address: str, among: range = _PORTS) -> int:
    """One that nobody listens on, and that no process that lives got from this function.

    Not one of those that the kernel gives to connections: it would be taken before its server
    is there, or again while it restarts. As with a lab's number, the kernel keeps an abstract
    socket as our word, until we end. Raises OSError where none is found.
    """
    for _ in range(_TRIES):
        port = among.start + secrets.randbelow(len(among))
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        word = socket.socket(socket.AF_UNIX)
        try:
            word.bind(f"\0gpuwarden-port-{port}")
        except OSError:
            word.close()
            continue
        _GIVEN.append(word)
        return port
    raise OSError(f"no free port of {among.start} to {among.stop - 1} after {_TRIES} tries")


class Loopback:
    """This machine, 127.0.0.1, free ports."""

    address = "127.0.0.1"

    def port(self, usual: int) -> int:
        """As `free_port`."""
        del usual
        return free_port(self.address)

    def command(self, arguments: Sequence[str], folder: Path) -> list[str]:
        return ["env", f"--chdir={folder}", *arguments]

    def pid(self, started: subprocess.Popen[bytes]) -> int:
        return started.pid
