"""One SQLite file, several processes: no update is lost, a denial is seen, a kill loses nothing."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from controller.fleet.enrollment import EnrollmentRecord, QuarantineEntry
from controller.store.enrollments import SqliteEnrollmentStore
from gpuwarden.clock import SystemClock
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = HANG_S

WRITER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from controller.fleet.enrollment import EnrollmentRecord, write
from controller.store.enrollments import SqliteEnrollmentStore
from gpuwarden.clock import SystemClock

async def main(path, mark, times):
    store = SqliteEnrollmentStore(Path(path), SystemClock(), call_seconds=20)
    await store.load()
    for number in range(times):
        while True:
            old = store.snapshot().records.get("node")
            base = old or EnrollmentRecord("node")
            new = replace(base, superseded=(*base.superseded, f"{mark}{number}"))
            if await write(store, old, new):
                break
        print(f"{mark}{number}", flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def started(path: Path, mark: str, times: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", WRITER, str(path), mark, str(times)),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )


async def test_two_processes_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    writers = [await started(path, mark, 25) for mark in "ab"]
    async with asyncio.timeout(DEADLINE):
        assert [await one.wait() for one in writers] == [0, 0]
    store = SqliteEnrollmentStore(path, SystemClock())
    written = (await store.load()).records["node"].superseded
    await store.close()
    assert sorted(written) == sorted(f"{mark}{number}" for mark in "ab" for number in range(25))
    assert [x for x in written if x[0] == "a"] == [f"a{number}" for number in range(25)]


async def test_what_was_acknowledged_before_a_kill_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    writer = await started(path, "x", 100_000)
    assert writer.stdout is not None
    async with asyncio.timeout(DEADLINE):
        acknowledged = [(await writer.stdout.readline()).decode().strip() for _ in range(10)]
        writer.kill()
        rest, _ = await writer.communicate()
    acknowledged += rest.decode().split()
    store = SqliteEnrollmentStore(path, SystemClock())
    written = (await store.load()).records["node"].superseded
    assert list(written[: len(acknowledged)]) == acknowledged
    assert len(written) - len(acknowledged) in {0, 1}
    record = store.snapshot().records["node"]
    denied = replace(record, denial=QuarantineEntry("X", "why", "who", 1))
    assert await store.compare_and_set(record, denied)
    await store.close()


async def test_a_denial_of_another_process_ends_its_writing(tmp_path: Path) -> None:
    """Whoever writes by a record without the denial loses, however fast it is."""
    path = tmp_path / "ledger.db"
    store = SqliteEnrollmentStore(path, SystemClock())
    await store.create_if_absent(EnrollmentRecord("node"))
    writer = await started(path, "x", 100_000)
    assert writer.stdout is not None
    async with asyncio.timeout(DEADLINE):
        await writer.stdout.readline()
        denial = QuarantineEntry("X", "why", "who", 1)
        while True:
            record = (await store.load()).records["node"]
            if await store.compare_and_set(record, replace(record, denial=denial)):
                break
        before = len(record.superseded)
        while len((await store.load()).records["node"].superseded) < before + 3:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.01)
        writer.kill()
        await writer.communicate()
    assert (await store.load()).records["node"].denial == denial
    await store.close()
