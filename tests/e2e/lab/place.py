"""Where programs run: on this machine's loopback, or in a node's namespaces (see `capsule`)."""

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


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


class Loopback:
    """This machine, 127.0.0.1, free ports."""

    address = "127.0.0.1"

    def port(self, usual: int) -> int:
        """One that was free a moment ago; who loses it to somebody asks again."""
        del usual
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            port: int = probe.getsockname()[1]
            return port

    def command(self, arguments: Sequence[str], folder: Path) -> list[str]:
        return ["env", f"--chdir={folder}", *arguments]

    def pid(self, started: subprocess.Popen[bytes]) -> int:
        return started.pid
