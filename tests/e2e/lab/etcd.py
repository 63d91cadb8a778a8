"""etcd: the store of the API server, on a unix socket in its own folder."""

import socket
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException

from tests.e2e.lab.program import Program, Site

_CLIENTS, _PEERS = "localhost:2379", "localhost:2380"
"""etcd wants a host and a port even for unix sockets; they are file names in its own folder."""


class Etcd(Program):
    """One member; what it said is written stays there over `kill`, but not over a power cut."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "etcd")
        self.socket = self.data / _CLIENTS
        self.endpoint = f"unix://{self.socket}"

    def arguments(self) -> Sequence[str]:
        clients, peer = f"unix://{_CLIENTS}", f"unix://{_PEERS}"
        return (
            str(self.site.programs["etcd"]),
            f"--data-dir={self.data}/member",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

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
