"""A real S3-compatible server, versitygw, over a folder; built as one of the lab's programs."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.build import shelf
from tests.e2e.lab.cache import cache_folder
from tests.e2e.lab.upstreams import VERSITYGW, upstream
from tests.fakes.ports import held_port
from tests.hang import HANG_S

ACCESS_KEY = "exporter"
SECRET_KEY = "s3cr3t-of-the-exporter"  # noqa: S105 - a test's
BUCKET = "fleet"
_LAST = 30
"""Lines of its log that are shown."""


class NoS3ServerError(RuntimeError):
    """It was not built on this machine."""


class S3EndedError(RuntimeError):
    """It ended where it should run; says how, and what it wrote last."""


@dataclass(slots=True)
class S3Server:
    """Its address, its objects and its process."""

    program: Path
    port: int
    home: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """What is in the bucket."""
        return self.home / "data" / BUCKET

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What the usual chain of AWS finds."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def objects(self) -> dict[str, bytes]:
        """Every object by its key."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.relative_to(self.folder).parts[0].startswith(".")
        }

    @contextlib.contextmanager
    def fresh(self) -> Iterator["S3Server"]:
        """For one test: without objects, and running, even if it ended in the test before.

        A server that ends meanwhile is a fault of this test alone.
        """
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.process is None or self.process.poll() is not None:
            self.start()
        yield self
        if self.process is None or self.process.poll() is not None:
            raise S3EndedError(self._end())

    def start(self) -> None:
        """Start and wait until it listens."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--port", f"127.0.0.1:{self.port}", "posix", self.home / "data"],
                stdout=log,
                stderr=log,
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            )
        ends = time.monotonic() + HANG_S
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return
            if self.process.poll() is not None or time.monotonic() > ends:
                raise S3EndedError(self._end())
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _end(self) -> str:
        """How it ended, and what it wrote last."""
        status = None if self.process is None else self.process.returncode
        lines = (self.home / "log").read_text().splitlines()
        return "\n".join([f"versitygw, exit status {status}, wrote last:", *lines[-_LAST:]])


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running server with one bucket; raises NoS3ServerError."""
    program = shelf(upstream(VERSITYGW), cache_folder()).folder / VERSITYGW
    if not program.exists():
        raise NoS3ServerError("versitygw is not built: python -m tests.e2e.lab.build versitygw")
    with tempfile.TemporaryDirectory(prefix="gpuwarden-s3-") as home, held_port() as port:
        server = S3Server(program, port, Path(home))
        server.folder.mkdir(parents=True)
        try:
            server.start()
            yield server
        finally:
            server.stop()
