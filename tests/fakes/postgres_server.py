"""A real PostgreSQL server of the machine's package, started for tests as an unprivileged user."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.fakes.ports import held_port
from tests.hang import HANG_S

USER = "gpu exporter"
PASSWORD = "pa'ss \\word\"1"  # noqa: S105 - quotes, blank and backslash: what breaks a DSN
DATABASE = "postgres"
_PACKAGES = Path("/usr/lib/postgresql")
_OTHERS = ("postgres", "nobody")
_OTHERS_END = "is still in use"
"""Processes of a server that was killed have not ended yet, says the next one."""
_LAST = 30
"""Lines of its log that are shown."""


class NoPostgresError(RuntimeError):
    """The machine has none."""


class PostgresEndedError(RuntimeError):
    """It ended where it should run; says how, and what it wrote last."""


def _program(name: str) -> Path:
    found = [*sorted(_PACKAGES.glob(f"*/bin/{name}"), reverse=True), shutil.which(name)]
    for place in found:
        if place and Path(place).exists():
            return Path(place)
    raise NoPostgresError("PostgreSQL is not installed: apt-get install postgresql")


def _unprivileged() -> pwd.struct_passwd | None:
    """Who runs it in the place of root, which it refuses."""
    if os.geteuid() != 0:
        return None
    for name in _OTHERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgresError("no unprivileged user: neither postgres nor nobody")


@dataclass(slots=True)
class PostgresServer:
    """Data, its process, and a way in."""

    folder: Path
    port: int
    user: pwd.struct_passwd | None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        ends = time.monotonic() + HANG_S
        self._launch()
        while True:
            try:
                self.connected().close()
            except psycopg.OperationalError:
                if self._has_ended() and _OTHERS_END in self._end() and time.monotonic() < ends:
                    self._launch()
                elif self._has_ended() or time.monotonic() > ends:
                    raise PostgresEndedError(self._end()) from None
                time.sleep(0.05)
            else:
                return

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    _program("postgres"),
                    "-D",
                    self.folder / "data",
                    *("-c", "listen_addresses=127.0.0.1", "-c", f"port={self.port}"),
                    *("-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off"),
                ],
                stdout=log,
                stderr=log,
                user=None if self.user is None else self.user.pw_uid,
                group=None if self.user is None else self.user.pw_gid,
                extra_groups=None if self.user is None else (),
            )

    def _has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @contextlib.contextmanager
    def fresh(self) -> Iterator["PostgresServer"]:
        """For one test: without tables, and running, even if it ended in the test before.

        A server that ends meanwhile is a fault of this test alone.
        """
        if self._has_ended():
            self.start()
        self.do("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield self
        if self._has_ended():
            raise PostgresEndedError(self._end())

    def _end(self) -> str:
        """How it ended, and what it wrote last."""
        status = None if self.process is None else self.process.returncode
        lines = (self.folder / "log").read_text().splitlines()
        return "\n".join([f"PostgreSQL, exit status {status}, wrote last:", *lines[-_LAST:]])

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.terminate()
            self.process.send_signal(3)
            self.process.wait(HANG_S)
            self.process = None

    @contextlib.contextmanager
    def tls(self, certificate: Path, key: Path) -> Iterator[None]:
        """Offer TLS meanwhile."""
        data, own = self.folder / "data", "postgresql.auto.conf"
        for name, source in (("server.crt", certificate), ("server.key", key)):
            (data / name).touch(mode=0o600)
            (data / name).write_bytes(source.read_bytes())
            if self.user is not None:
                os.chown(data / name, self.user.pw_uid, self.user.pw_gid)
        self.stop()
        before = (data / own).read_text()
        (data / own).write_text(f"{before}ssl = on\n")
        self.start()
        try:
            yield
        finally:
            self.stop()
            (data / own).write_text(before)
            self.start()

    def connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=DATABASE,
            user=USER,
            password=PASSWORD,
            autocommit=True,
        )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connected() as connection:
            return connection.execute(query).fetchall()

    def do(self, statement: str) -> None:
        with self.connected() as connection:
            connection.execute(statement)


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server with one user; raises NoPostgresError."""
    user, initdb = _unprivileged(), _program("initdb")
    folder = Path(tempfile.mkdtemp(prefix="gpuwarden-postgres-"))
    try:
        password = folder / "password"
        password.write_text(PASSWORD)
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
            os.chown(password, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            [
                initdb,
                *("-D", folder / "data", "-U", USER, "--auth=scram-sha-256"),
                *(f"--pwfile={password}", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
            cwd=folder,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else (),
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        with held_port() as port:
            server = PostgresServer(folder, port, user)
            server.start()
            try:
                yield server
            finally:
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
