import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.lab.place import Loopback
from tests.e2e.lab.program import Program, ProgramError, Site
from tests.e2e.lab.waiting import until

ANSWERS = """
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind(("127.0.0.1", int(sys.argv[1])))
except OSError:
    sys.exit("bind: address already in use")
server.listen()
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""


class Answers(Program):
    """Accepts connections on its port."""

    source = ANSWERS

    def arguments(self) -> Sequence[str]:
        return (sys.executable, "-c", self.source, str(self.port))

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class Fails(Answers):
    source = "import sys; sys.exit('no such flag')"


class TakenAtFirst(Loopback):
    """A place whose first port somebody else is quicker to take."""

    def __init__(self, taken: int) -> None:
        self._ports = [taken]

    def port(self, usual: int) -> int:
        return self._ports.pop() if self._ports else super().port(usual)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path / "lab", {}, Loopback())
    yield found
    found.close()


@pytest.fixture
def program(site: Site) -> Answers:
    running = Answers(site, "answers", usual_port=1)
    running.start()
    return running


def test_ready_means_that_it_answers(program: Answers) -> None:
    assert program.is_running
    assert program.pid
    assert program.tail() == "listening"


def test_restart_keeps_the_port_and_the_log(program: Answers) -> None:
    port, pid = program.port, program.pid
    program.restart()
    assert program.port == port
    assert program.pid != pid
    assert program.tail() == "listening\nlistening"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_ended_and_gone_on(program: Answers, how: str) -> None:
    getattr(program, how)()
    assert (program.is_running, program.pid, program.is_ready()) == (False, 0, False)
    program.resume_service()
    assert program.is_ready()


def test_a_paused_program_can_be_stopped(program: Answers) -> None:
    pid = program.pid
    program.pause()
    until("it is stopped", lambda: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text())
    program.resume()
    until("it goes on", lambda: "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text())
    program.pause()
    program.stop()
    assert not program.is_running


def test_it_is_not_started_twice(program: Answers) -> None:
    with pytest.raises(ProgramError, match="answers runs already"):
        program.launch()


def test_what_it_said_before_it_ended_is_in_the_error(site: Site) -> None:
    with pytest.raises(ProgramError, match="ended before it was ready: no such flag"):
        Fails(site, "fails", usual_port=1).start()


def test_a_port_that_was_lost_is_chosen_again(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        site = Site(tmp_path / "lab", {}, TakenAtFirst(taken))
        program = Answers(site, "answers", usual_port=1)
        program.start()
        assert program.port != taken
        assert "address already in use" in program.log.read_text()
        site.close()


def test_a_site_ends_what_was_started_there(site: Site) -> None:
    programs = [Answers(site, name, usual_port=1) for name in ("one", "two", "never")]
    for program in programs[:2]:
        program.start()
    site.close()
    assert [program.is_running for program in programs] == [False] * 3


def test_signals_reach_the_program(program: Answers) -> None:
    process = program._process
    assert process is not None
    program.kill()
    assert process.returncode == -signal.SIGKILL
