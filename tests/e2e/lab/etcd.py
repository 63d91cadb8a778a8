"""etcd: the store of the API server, on a unix socket in its own folder."""

import shutil
import socket
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tests.e2e.lab.program import Program, Site

_CLIENTS, _PEERS = "localhost:2379", "localhost:2380"
"""etcd wants a host and a port even for unix sockets; they are file names in its own folder."""


class Etcd(Program):
    """One member; what it said is written stays there over `kill`, but not over a power cut."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "etcd")
        self._member = self.data / "member"
        self._copies = 0
        self.socket = self.data / _CLIENTS
        self.endpoint = f"unix://{self.socket}"

    def arguments(self) -> Sequence[str]:
        clients, peer = f"unix://{_CLIENTS}", f"unix://{_PEERS}"
        return (
            str(self.site.programs["etcd"]),
            f"--data-dir={self._member}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def copy(self) -> Path:
        """A copy of its data as a crash of this moment would leave it."""
        self._copies += 1
        made = self.data / f"copy-{self._copies}"
        self.pause()
        try:
            shutil.copytree(self._member, made)
        finally:
            self.resume()
        return made

    def put_back(self, copy: Path) -> None:
        """Go on from a copy: what was written since was never there. Started at the end."""
        self.stop()
        shutil.rmtree(self._member)
        shutil.copytree(copy, self._member)
        self.resume_service()

    def is_ready(self) -> bool:
        connection = _UnixConnection(str(self.socket))
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("etcd", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
