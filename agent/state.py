"""What the agent remembers across restarts: one small, versioned, checksummed file.

Losing it costs memory, never trust: a file that is missing, damaged or of another version is
reported and the agent starts anew; a disk that is full, read-only or hangs is reported and tried
again. Nothing secret is in it.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_base, wait_random_exponential

from agent.detached import detached
from gpuwarden.evidence.canonical import CanonicalValue, canonical_json, sha256_hex
from gpuwarden.evidence.model import Document, LogAlarm, WitnessedLog
from gpuwarden.evidence.strict_json import DecodeError, parse
from gpuwarden.regular_file import open_new, open_to_read, private_folder

FILE_NAME: Final = "agent-state.json"
VERSION: Final = 3
_READ: Final = frozenset({2, VERSION})
"""Version 2 knows of no notices."""
MAX_STATE_BYTES: Final = 256 * 1024
_ENDS: Final = "unreadableEnds"


class RememberedGpu(Document, frozen=True):
    """A GPU as it was last seen, so that one which is lost still has a name."""

    uuid: str
    pci_bus_id: str
    nvml_index: int


class RememberedNotice(Document, frozen=True):
    """A failure that is still to be reported."""

    kind: str
    gpu: str | None
    xid: int | None
    detail: str
    happened_ms: int
    count: int


class AgentState(Document, frozen=True):
    """Everything that is remembered."""

    instance_id: str
    """Of the process that wrote it."""
    boot_id: str
    """Of the boot in which it was written; GPUs are remembered for the same boot only."""
    logs: tuple[WitnessedLog, ...]
    log_alarms: tuple[LogAlarm, ...]
    """Accusations stay until somebody takes the file away."""
    gpus: tuple[RememberedGpu, ...]
    notices: tuple[RememberedNotice, ...] = ()
    """Failures that no controller has acknowledged; reported again in the same boot only."""
    unreadable_ends: int = 0
    """Processes in a row that ended because nothing could be read. Not in the file while 0: it
    reads as before there was such a count."""


class StateLostError(Exception):
    """There is no usable file; the message is why."""


class StateNotKeptError(Exception):
    """The file could not be written; the message is why."""


def encode_state(state: AgentState) -> bytes:
    """The file's bytes: RFC 8785 JSON with a SHA-256 over the state's own RFC 8785 form."""
    kept = _kept(state)
    digest = sha256_hex(canonical_json(kept))
    return canonical_json({"version": VERSION, "sha256": digest, "state": kept})


def decode_state(file: bytes) -> AgentState:
    """Read what `encode_state` wrote; raises StateLostError for everything else."""
    try:
        document = parse(file, max_bytes=MAX_STATE_BYTES)
    except DecodeError as error:
        raise StateLostError(str(error)) from error
    if not isinstance(document, dict) or document.get("version") not in _READ:
        raise StateLostError(f"not a state file of version {VERSION}")
    content = document.get("state")
    if not isinstance(content, dict) or (document["version"] == VERSION) != ("notices" in content):
        raise StateLostError(f"not a state of version {document['version']}")
    try:
        state = msgspec.convert(content, AgentState)
    except msgspec.ValidationError as error:
        raise StateLostError(str(error)) from error
    if document.get("sha256") != sha256_hex(canonical_json(content)):
        raise StateLostError("checksum does not match")
    return state


def _kept(state: AgentState) -> dict[str, CanonicalValue]:
    names = zip(state.__struct_encode_fields__, state.__struct_fields__, strict=True)
    fields = {wire: getattr(state, name) for wire, name in names}
    if not state.unreadable_ends:
        del fields[_ENDS]
    return fields


class StateFile:
    """The file in the state directory. Both calls block; one process writes it."""

    def __init__(self, directory: Path, *, sync: Callable[[int], None] = os.fsync) -> None:
        self._path = directory / FILE_NAME
        self._sync = sync

    def load(self) -> AgentState:
        """What was kept last; raises StateLostError."""
        try:
            with open_to_read(self._path) as file:
                return decode_state(file.read(MAX_STATE_BYTES + 1))
        except OSError as error:
            raise StateLostError(error.strerror or "not readable") from error

    def keep(self, state: AgentState) -> None:
        """Replace the file atomically and durably; raises StateNotKeptError."""
        try:
            private_folder(self._path.parent)
            self._replace(encode_state(state))
        except OSError as error:
            raise StateNotKeptError(error.strerror or "not writable") from error

    def _replace(self, file: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        with open_new(fresh) as out:
            out.write(file)
            out.flush()
            self._sync(out.fileno())
        fresh.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._sync(directory)
        finally:
            os.close(directory)


# --- the writer

WRITE_S: Final = 10.0
PAUSE: Final = wait_random_exponential(multiplier=1, max=60)
"""Before a write that failed is tried again."""


class StateStore(Protocol):
    """Keeps state on disk."""

    def keep(self, state: AgentState) -> None:
        """Make durable; blocks; raises StateNotKeptError."""


class StateWriter:
    """Call `changed` whenever the state that `state` returns may differ from what is kept."""

    def __init__(
        self,
        store: StateStore,
        state: Callable[[], AgentState],
        *,
        failed: Callable[[str], None],
        write_s: float = WRITE_S,
        pause: wait_base = PAUSE,
    ) -> None:
        self._store = store
        self._state = state
        self._failed = failed
        self._write_s = write_s
        self._due = asyncio.Event()
        self._attempts = AsyncRetrying(
            retry=retry_if_exception_type(StateNotKeptError),
            wait=pause,
            before_sleep=self._say_why,
        )

    def changed(self) -> None:
        """There may be something new to keep."""
        self._due.set()

    async def run(self) -> None:
        """Write whatever changes until cancelled.

        A refused write is tried again with what is new by then. A disk that does not answer is
        asked again with the next change alone: each call that hangs keeps a thread.
        """
        while True:
            await self._due.wait()
            try:
                await self._attempts(self._write)
            except TimeoutError:
                self._failed(f"the disk did not answer within {self._write_s:g} s")

    async def _write(self) -> None:
        self._due.clear()
        state = self._state()
        await detached(lambda: self._store.keep(state), deadline_s=self._write_s, name="state")

    def _say_why(self, attempt: RetryCallState) -> None:
        if attempt.outcome is not None:
            self._failed(str(attempt.outcome.exception()))
