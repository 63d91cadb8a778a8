import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity.wait import wait_fixed

from agent.detached import detached
from agent.state import (
    FILE_NAME,
    MAX_STATE_BYTES,
    AgentState,
    RememberedGpu,
    RememberedNotice,
    StateFile,
    StateLostError,
    StateNotKeptError,
    StateWriter,
    decode_state,
    encode_state,
)
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.model import LogAlarm, WitnessedLog
from tests.hang import HANG_S

# --- state


STATE = AgentState(
    instance_id="ab" * 16,
    boot_id="boot",
    logs=(WitnessedLog(origin="main/0", checkpoint="main/0\n1\nx\n", key="main/0+1+x"),),
    log_alarms=(
        LogAlarm(code="LOG_RESET", origin="main/0", detail="d", known="k", seen="s", wall_ms="7"),
    ),
    gpus=(RememberedGpu(uuid="GPU-1", pci_bus_id="0:1:0.0", nvml_index=0),),
    notices=(
        RememberedNotice(kind="xid", gpu="GPU-1", xid=48, detail="XID 48", happened_ms=7, count=1),
    ),
)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "folder")
    file.keep(STATE)
    assert file.load() == STATE
    path = tmp_path / "new" / "folder" / FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [FILE_NAME]  # noqa: PTH208 -- names only


def test_file_and_folder_are_synced_before_keep_returns(tmp_path: Path) -> None:
    synced: list[str] = []
    file = StateFile(
        tmp_path, sync=lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    )
    file.keep(STATE)
    assert synced == [str(tmp_path / "agent-state.new"), str(tmp_path)]


def test_a_crash_before_the_rename_leaves_the_old_state(tmp_path: Path) -> None:
    StateFile(tmp_path).keep(STATE)

    def crash(_number: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StateNotKeptError, match="No space left"):
        StateFile(tmp_path, sync=crash).keep(
            AgentState(instance_id="x", boot_id="y", logs=(), log_alarms=(), gpus=())
        )
    assert StateFile(tmp_path).load() == STATE


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "agent-state.new").symlink_to(victim)
    StateFile(tmp_path).keep(STATE)
    assert StateFile(tmp_path).load() == STATE
    assert victim.read_text() == "precious"


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent-state.json")
    os.mkfifo(tmp_path / "agent-state.new")
    with pytest.raises(StateLostError, match="a named pipe; expected a regular file"):
        StateFile(tmp_path).load()
    StateFile(tmp_path).keep(STATE)
    assert StateFile(tmp_path).load() == STATE


def test_the_folder_is_taken_from_others(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    StateFile(folder).keep(STATE)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_of_before_there_were_ends_to_count_is_read_and_written_as_then() -> None:
    assert b"unreadableEnds" not in encode_state(STATE)
    assert decode_state(encode_state(STATE)).unreadable_ends == 0
    counted = msgspec.structs.replace(STATE, unreadable_ends=3)
    assert decode_state(encode_state(counted)) == counted


def test_missing_state_is_lost_state(tmp_path: Path) -> None:
    with pytest.raises(StateLostError, match="No such file"):
        StateFile(tmp_path).load()


def test_a_file_of_the_version_before_is_read() -> None:
    content = msgspec.to_builtins(STATE)
    assert content.pop("notices")
    file = {"version": 2, "sha256": sha256_hex(canonical_json(content)), "state": content}
    assert decode_state(canonical_json(file)) == msgspec.structs.replace(STATE, notices=())


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2,"new":"things"}',
        b'{"version":1,"sha256":"","state":{}}',
        encode_state(STATE).replace(b'"boot"', b'"toob"'),
        encode_state(STATE)[:-1],
        encode_state(STATE) + b" " * MAX_STATE_BYTES,
        encode_state(STATE).replace(b'"state":{', b'"state":{"zz":1,'),
    ],
)
def test_damaged_and_foreign_files_are_lost_state(file: bytes) -> None:
    with pytest.raises(StateLostError):
        decode_state(file)


@given(position=st.integers(0, len(encode_state(STATE)) - 1), bit=st.integers(0, 7))
@settings(max_examples=150)
def test_any_flipped_bit_is_found(position: int, bit: int) -> None:
    file = bytearray(encode_state(STATE))
    file[position] ^= 1 << bit
    with pytest.raises(StateLostError):
        decode_state(bytes(file))


# --- state writer


WRITTEN = AgentState(instance_id="a", boot_id="b", logs=(), log_alarms=(), gpus=())
OLDER = msgspec.structs.replace(WRITTEN, boot_id="an older one")


@dataclass
class FakeStore:
    kept: list[AgentState] = field(default_factory=list)
    fault: Exception | None = None
    hang: threading.Event | None = None

    def keep(self, state: AgentState) -> None:
        if self.hang is not None:
            self.hang.wait(HANG_S)
        if self.fault is not None:
            raise self.fault
        self.kept.append(state)


async def until(holds: object) -> None:
    async with asyncio.timeout(HANG_S):
        while not (callable(holds) and holds()):  # noqa: ASYNC110 -- filled by a thread
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def writing(
    store: FakeStore, state: Callable[[], AgentState], told: list[str]
) -> AsyncIterator[StateWriter]:
    writer = StateWriter(store, state, failed=told.append, write_s=0.05, pause=wait_fixed(0.01))
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()


async def test_changes_are_kept() -> None:
    store = FakeStore()
    async with writing(store, lambda: WRITTEN, []) as writer:
        writer.changed()
        await until(lambda: store.kept == [WRITTEN])


async def test_a_write_that_failed_is_tried_again_with_what_is_new_by_then() -> None:
    store, told, states = FakeStore(), list[str](), [OLDER]
    async with writing(store, lambda: states[-1], told) as writer:
        store.fault = StateNotKeptError("No space left on device")
        writer.changed()
        await until(lambda: len(told) >= 2)
        states.append(WRITTEN)
        store.fault = None
        await until(lambda: store.kept == [WRITTEN])
    assert set(told) == {"No space left on device"}


async def test_a_disk_that_hangs_is_asked_again_with_the_next_change() -> None:
    store, told = FakeStore(), list[str]()
    async with writing(store, lambda: WRITTEN, told) as writer:
        store.hang = threading.Event()
        writer.changed()
        await until(lambda: told == ["the disk did not answer within 0.05 s"])
        store.hang.set()
        await until(lambda: store.kept == [WRITTEN])  # of the first call
        writer.changed()
        await until(lambda: store.kept == [WRITTEN, WRITTEN])
    assert len(told) == 1


async def test_a_detached_call_gives_its_result_or_error() -> None:
    assert await detached(lambda: 7, deadline_s=5, name="t") == 7

    def fail() -> int:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await detached(fail, deadline_s=5, name="t")


def test_a_detached_call_may_outlive_its_loop() -> None:
    go_on, done = threading.Event(), threading.Event()

    def late() -> None:
        go_on.wait(HANG_S)
        done.set()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await detached(late, deadline_s=0.01, name="late")

    asyncio.run(ask())
    go_on.set()
    assert done.wait(HANG_S)
