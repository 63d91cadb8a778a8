"""Which demo the commands of `gpuwarden-sandbox` act on."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox.demo.control import NoDemoError, running_demo


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; paths of unix sockets below it must be short."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def listening(folder: Path, stack: ExitStack) -> Path:
    folder.mkdir()
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(folder / "control.sock"))
    server.listen()
    return folder / "control.sock"


def test_the_only_one_is_found(temporary: Path, stack: ExitStack) -> None:
    path = listening(temporary / "gpuwarden-a", stack)
    listening(temporary / "other-a", stack)
    assert running_demo() == path


def test_one_that_has_died_does_not_count(temporary: Path, stack: ExitStack) -> None:
    with ExitStack() as ended:
        listening(temporary / "gpuwarden-a", ended)
    (temporary / "gpuwarden-lab").mkdir()
    (temporary / "gpuwarden-file").touch()
    path = listening(temporary / "gpuwarden-b", stack)
    assert (temporary / "gpuwarden-a/control.sock").is_socket()
    assert running_demo() == path


def test_without_one_the_error_says_how_to_start_it(temporary: Path) -> None:
    with pytest.raises(NoDemoError) as error:
        running_demo()
    assert str(error.value) == (
        f"no demo stays up in {temporary}/gpuwarden-*; start one with `make demo KEEP=1`"
    )


def test_of_several_one_must_be_chosen(temporary: Path, stack: ExitStack) -> None:
    paths = [listening(temporary / f"gpuwarden-{x}", stack) for x in "ab"]
    with pytest.raises(NoDemoError) as error:
        running_demo()
    assert str(error.value) == (
        f"2 demos stay up; choose one with --demo: {temporary}/gpuwarden-a, {temporary}/gpuwarden-b"
    )
    assert running_demo(temporary / "gpuwarden-b") == paths[1]


def test_one_of_somebody_else_is_left_alone(
    temporary: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening(temporary / "gpuwarden-a", stack)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    with pytest.raises(NoDemoError, match="no demo stays up"):
        running_demo()
