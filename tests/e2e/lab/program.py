"""A program of the lab: started, ready, restarted, killed, stopped; its log and data folder.

One subclass per upstream program says its arguments and when it is ready. Nothing is ended by
name, and no program outlives its lab: `sweep` finds it by the mark in its environment.
"""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.lab.place import Place
from tests.e2e.lab.sweep import MARK
from tests.e2e.lab.waiting import NeverError, until

READY_S = 60.0
_STOP_S = 10.0
_TRIES = 3
_PORT_LOST = "address already in use"


class Site:
    """What programs of one lab share: where they run, what there is to run, where files go."""

    def __init__(
        self,
        folder: Path,
        programs: Mapping[str, Path],
        place: Place,
        *,
        lab: Path | None = None,
    ) -> None:
        """`lab`: the lab's folder, where `folder` is one within it."""
        self.folder = folder
        self.lab = lab or folder
        self.programs = programs
        self.place = place
        self.logs = folder / "logs"
        """One file per program."""
        self.logs.mkdir(parents=True)
        self.started: list[Program] = []

    def close(self) -> None:
        """End every program, at once."""
        for program in reversed(self.started):
            program.kill()


class ProgramError(RuntimeError):
    """The program ended before it was ready, or was never ready."""


class Program(ABC):
    """One program; `name` is unique in its lab."""

    def __init__(self, site: Site, name: str, *, usual_port: int = 0) -> None:
        self.name = name
        self.site = site
        self.data = site.folder / name
        self.data.mkdir(parents=True)
        self.log = site.logs / f"{name}.log"
        self._usual_port = usual_port
        self.port = usual_port
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        site.started.append(self)

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """The program by absolute path, and its arguments; asked at each start."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Asked until it is true, and whenever somebody wants to know."""

    def environment(self) -> dict[str, str]:
        """Beside PATH and the mark."""
        return {}

    @property
    def pid(self) -> int:
        """Process id on this machine; 0 while it does not run."""
        return self._pid if self.is_running else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it is ready; a port lost to somebody is chosen again."""
        self.launch()
        self.ready()

    def launch(self) -> None:
        """Start it without waiting, on a new port where the place has no usual ones."""
        if self._usual_port:
            self.port = self.site.place.port(self._usual_port)
        self._run()

    def ready(self, timeout_s: float = READY_S) -> None:
        """Wait until it is ready; ProgramError carries the end of its log."""
        for _ in range(_TRIES):
            try:
                until(f"{self.name} is ready", self._is_ready_or_ended, timeout_s=timeout_s)
            except NeverError as error:
                raise ProgramError(f"{error}: {self.tail()}") from error
            if self.is_running:
                return
            if _PORT_LOST not in self.tail():
                break
            self.launch()
        raise ProgramError(f"{self.name} ended before it was ready: {self.tail()}")

    def restart(self) -> None:
        """Stop it and start it again with the same port and data."""
        self.stop()
        self.resume_service()

    def resume_service(self) -> None:
        """Start it again after `stop` or `kill`, with the same port and data."""
        self._run()
        self.ready()

    def stop(self) -> None:
        """SIGTERM, after a while SIGKILL."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: it has no time to say goodbye."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it is there but answers nothing."""
        if not self.is_running:  # its pid is 0 then, which would stop the caller's own group
            raise ProgramError(f"{self.name} does not run")
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _run(self) -> None:
        if self.is_running:
            raise ProgramError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.site.place.command(self.arguments(), self.data),
                env={"PATH": os.environ["PATH"], MARK: str(self.site.lab), **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the lab's owner
            )
        self._pid = self.site.place.pid(self._process)

    def _is_ready_or_ended(self) -> bool:
        return not self.is_running or self.is_ready()

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        _signal(self._pid, how)
        _signal(self._pid, signal.SIGCONT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            _signal(self._pid, signal.SIGKILL)
            process.wait(_STOP_S)


def _signal(pid: int, which: signal.Signals) -> None:
    try:
        os.kill(pid, which)
    except ProcessLookupError:  # it ended by itself meanwhile
        return
