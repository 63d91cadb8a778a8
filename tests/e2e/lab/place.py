"""Where programs run: on this machine's loopback, or in a node's namespaces (see `capsule`)."""

import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

_FIRST: Final = 15_000
_PORTS: Final = 15_000
"""Below NodePorts (30000) and the ports of connections (32768, `ip_local_port_range`)."""
_GIVEN: Final[set[int]] = set()


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


def free_port(address: str) -> int:
    """One that nobody listens on, and that this function has not given before.

    Not one of those that the kernel gives to connections: it would be taken before its server
    is there, or again while it restarts.
    """
    while True:
        port = _FIRST + secrets.randbelow(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


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
