"""etcd: the store of the API server, on a unix socket in its own folder."""

import shutil
import socket
import subprocess
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from tests.e2e.lab.program import Program, ProgramError, Site

_CLIENTS, _PEERS = "localhost:2379", "localhost:2380"
"""etcd wants a host and a port even for unix sockets; they are file names in its own folder."""
BUMP: Final = ("--bump-revision=1000000000", "--mark-compacted")
"""What upstream recommends where somebody watches: no revision is given a second time."""


class Etcd(Program):
    """One member; what it said is written stays there over `kill`, but not over a power cut."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "etcd")
        self._member = self.data / "member"
        self._snapshots = 0
        self.socket = self.data / _CLIENTS
        self.endpoint = f"unix://{self.socket}"
        peer = f"unix://{_PEERS}"
        self._membership = (
            f"--data-dir={self._member}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def arguments(self) -> Sequence[str]:
        clients, peer = f"unix://{_CLIENTS}", f"unix://{_PEERS}"
        return (
            str(self.site.programs["etcd"]),
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peer}",
            *self._membership,
            "--unsafe-no-fsync",
        )

    def snapshot(self) -> Path:
        """The file of `etcdctl snapshot save`."""
        self._snapshots += 1
        made = self.data / f"snapshot-{self._snapshots}.db"
        self._run_tool("etcdctl", f"--endpoints={self.endpoint}", "snapshot", "save", str(made))
        return made

    def restore(self, snapshot: Path, options: Sequence[str] = BUMP) -> None:
        """Stop, `etcdutl snapshot restore`, start: what was written since was never there."""
        self.stop()
        shutil.rmtree(self._member)
        self._run_tool("etcdutl", "snapshot", "restore", str(snapshot), *self._membership, *options)
        self.resume_service()

    def _run_tool(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self.site.place.command([str(self.site.programs[program]), *arguments], self.data),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise ProgramError(f"{program}: {done.stderr[-2000:]}")

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
