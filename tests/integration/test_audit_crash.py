"""A real process killed in the middle of writing, and one whose disk is really full."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwarden.audit.chain import Verified
from gpuwarden.audit.files import log_files, verify_files
from tests.hang import HANG_S

PROGRAM = """
import asyncio, resource, signal, sys
from pathlib import Path
from controller.record import AuditUnavailableError
from controller.audit.opening import audit_log
from controller.record import Record
from controller.audit.sealing import LogIdentity
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import SystemClock
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry.logs import configure
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process

async def main(folder, limit):
    settings = AuditSettings(dir=Path(folder), reserve=0, rotate_bytes=1 << 16)
    log = audit_log(settings, LogIdentity("lab/c", "b", "i"), SystemClock(),
                    Instruments(Process.CONTROLLER, "1"), copies_to=None)
    await log.open()
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    granted = 0
    while True:
        record = Record(RecordKind.NODE_STATE, "a", f"node/{granted}", "eligible")
        log.note(record)
        try:
            await asyncio.gather(*(log.grant(record) for _ in range(3)))
        except AuditUnavailableError as error:
            print("refused", error, flush=True)
            return await log.close()
        granted += 3
        print(granted, flush=True)

configure(LogLevel.INFO, LogFormat.JSON, service="c")
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@contextmanager
def running(folder: Path, limit: int = 0) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(limit)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def verified(folder: Path) -> Verified:
    result = verify_files(log_files(folder)).result
    assert isinstance(result, Verified)
    return result


def grants_in(folder: Path) -> int:
    data = b"".join(path.read_bytes() for path in log_files(folder))
    return data.count(b'"subject":"node/')


@pytest.mark.parametrize("lines", [1, 40])
def test_killed_process_leaves_every_grant_it_gave(tmp_path: Path, lines: int) -> None:
    folder = tmp_path / "audit"
    for _ in range(2):
        before = grants_in(folder) if folder.exists() else 0
        with running(folder) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            told += [int(line) for line in process.stdout.read().split()]

        assert verified(folder).first_seq == 1
        assert grants_in(folder) - before >= max(told)


def test_full_disk_leaves_every_grant_and_a_whole_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with running(folder, limit=5000) as process:
        output, _ = process.communicate(timeout=HANG_S)

    *granted, refused = output.splitlines()
    assert refused.startswith("refused [Errno 27] File too large")
    assert process.returncode == 0
    assert verified(folder).torn_bytes == 0
    assert grants_in(folder) >= int(granted[-1])
