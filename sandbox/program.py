"""A program of gpuwarden as a child process: started, awaited by what it prints, ended by its pid.

Output goes to a log file, standard output line by line through `lines` as well, so
that a JSON event of the program (for example `listening`) can be waited for. No shell.
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LINE_LIMIT = 1 << 20
_STOP_S = 8.0


class ProgramError(RuntimeError):
    """The program ended, or did not print in time what was expected."""


class Program:
    """A running child process with its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._events: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._silent = False
        self._reader = asyncio.create_task(self._read(), name=f"read {name}")

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> "Program":
        """Start `arguments` (no shell) with exactly `environment`."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_LINE_LIMIT,
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.returncode

    async def event(self, name: str, *, timeout_s: float) -> dict[str, Any]:
        """The first JSON line whose `event` is `name`; ProgramError where it never comes."""
        try:
            async with asyncio.timeout(timeout_s), self._news:
                while True:
                    for event in self._events:
                        if event.get("event") == name:
                            return event
                    if self._silent:
                        raise ProgramError(f"{self.name} ended before {name!r}: {self.tail()}")
                    await self._news.wait()
        except TimeoutError as error:
            raise ProgramError(
                f"{self.name} did not print {name!r} in {timeout_s:g} s: {self.tail()}"
            ) from error

    def tail(self, lines: int = 12) -> str:
        """The end of the log, for error messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def suspend(self) -> None:
        """Freeze the process (SIGSTOP): it is there but answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    async def stop(self) -> int:
        """End it with SIGTERM, after a while with SIGKILL; returns the exit status."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        status = await self._process.wait()
        await self._reader
        return status

    async def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None, "started with a pipe"  # noqa: S101 - narrows the type
        with self.log.open("ab", buffering=0) as log:
            while line := await _line(stream):
                log.write(line)
                await self._note(line)
        async with self._news:
            self._silent = True
            self._news.notify_all()

    async def _note(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict) and "event" in event:
            async with self._news:
                self._events.append(event)
                self._news.notify_all()


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than the limit, so no event
        return b"\n"
