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
from tests.hang import HANG_S

ACCESS_KEY = "exporter"
SECRET_KEY = "s3cr3t-of-the-exporter"  # noqa: S105 - a test's
BUCKET = "fleet"


class NoS3ServerError(RuntimeError):
    """It was not built on this machine."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """Its address and its objects."""

    endpoint: str
    folder: Path

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

    def empty(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running server with one bucket; raises NoS3ServerError."""
    program = shelf(upstream(VERSITYGW), cache_folder()).folder / VERSITYGW
    if not program.exists():
        raise NoS3ServerError("versitygw is not built: python -m tests.e2e.lab.build versitygw")
    folder = Path(tempfile.mkdtemp(prefix="gpuwarden-s3-"))
    (folder / BUCKET).mkdir()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    address = f"127.0.0.1:{port}"
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--port", address, "posix", folder],
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    try:
        _await_port(port, process)
        yield S3Server(f"http://{address}", folder / BUCKET)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        (folder.parent / f"{folder.name}.log").unlink(missing_ok=True)


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + HANG_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError("versitygw did not start")
        time.sleep(0.05)
