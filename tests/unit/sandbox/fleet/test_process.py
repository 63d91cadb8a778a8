"""The pipe between a fleet's processes: nobody hangs on it, whatever the other side does."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sandbox.fleet import process
from sandbox.fleet.process import Report, ShareProcess, _Child, _has_room
from sandbox.fleet.tally import _KEPT, Tally
from sandbox.laptop import ROOT
from sandbox.spiffe.ca import InsecureCa
from tests.e2e.lab.waiting import until
from tests.hang import HANG_S

KILLED_PARENT = """
import os
from sandbox.fleet.process import ShareProcess
from sandbox.spiffe.ca import InsecureCa
print(ShareProcess({}, InsecureCa("example.org"), 1).pid, flush=True)
os._exit(0)
"""


def full_pipe() -> tuple[Connection, Connection]:
    """Its second end raises where a send would wait."""
    parent, child = multiprocessing.Pipe()
    os.set_blocking(child.fileno(), False)
    while _has_room(child):
        child.send(Report(Tally(), alive=False))
    return parent, child


def test_a_pipe_that_has_room_takes_the_longest_report() -> None:
    parent, child = multiprocessing.Pipe()
    os.set_blocking(child.fileno(), False)
    longest = Report(Tally(latencies_ms=[0.1 + n for n in range(_KEPT)]), alive=True)
    sent = 0
    while _has_room(child):
        child.send(longest)  # BlockingIOError where it would wait
        sent += 1
    assert [parent.recv() for _ in range(sent)] == [longest] * sent
    assert sent > 0
    assert _has_room(child)


async def test_a_report_that_nobody_reads_does_not_stop_the_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_TELL_S", 0.0)
    parent, orders = full_pipe()
    child = _Child(orders, {}, InsecureCa("example.org"), 1)
    child._tally.latencies_ms = [7.0]
    telling = asyncio.create_task(child._tell())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not telling.done()
    assert child._tally.latencies_ms == [7.0], "what was not told is not forgotten"
    async with asyncio.timeout(HANG_S):
        while child._tally.latencies_ms:
            parent.recv()
            await asyncio.sleep(0)
    telling.cancel()


def test_the_process_ends_when_its_parent_is_gone_without_a_word() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
    try:
        until("the process has ended", lambda: not is_alive(pid), timeout_s=HANG_S)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(orders: Connection, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        orders.send(Report(Tally(opened=3), alive=True))
        time.sleep(HANG_S)

    monkeypatch.setattr(process, "_main", deaf)
    monkeypatch.setattr(process, "_END_S", 0.1)
    share = ShareProcess({}, InsecureCa("example.org"), 1)
    share._receive()
    share.close()
    assert not is_alive(share.pid)
    share.follow()  # returns: it is gone
    assert share.report.tally.opened == 3


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
