"""Threads that raise or hang keep no soak from its end."""

import threading
from collections.abc import Callable

import pytest

from tests.e2e.lab.waiting import NeverError
from tests.hang import HANG_S
from tests.soak.workers import Workers


def broken() -> None:
    raise NeverError("node-1 is not eligible")


def no_such() -> None:
    raise KeyError("node-1")


def waiting_for(free: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        free.wait()

    return wait


def test_the_first_that_raises_ends_it_and_is_named() -> None:
    workers = Workers()
    workers.start("kill", broken)
    assert workers.over.wait(HANG_S)
    (failed,) = workers.failed
    assert failed.startswith("kill: node-1 is not eligible\n")
    assert "in broken" in failed


def test_any_other_error_is_told_with_its_kind() -> None:
    workers = Workers()
    workers.start("rotate", no_such)
    assert workers.over.wait(HANG_S)
    assert workers.failed[0].startswith("rotate: KeyError(")


def test_one_that_hangs_is_waited_for_no_longer_than_asked_and_is_named() -> None:
    workers, free = Workers(), threading.Event()
    noted: list[list[str]] = []
    workers.start("hangs", waiting_for(free))
    workers.start("ends", lambda: None)
    with pytest.raises(NeverError, match=r"hangs, ends end: not within 0\.2 s"):
        workers.wait(("hangs", "ends"), 0.2, noted.append)
    assert noted[-1] == ["hangs"]
    assert not workers.over.is_set()
    free.set()
    workers.wait(("hangs", "ends"), HANG_S, noted.append)
    assert noted[-1] == []


def test_none_keeps_the_process_from_its_end() -> None:
    workers, free = Workers(), threading.Event()
    workers.start("hangs", waiting_for(free))
    (thread,) = (x for x in threading.enumerate() if x.name == "hangs")
    assert thread.daemon
    free.set()
    workers.wait(["hangs"], HANG_S, lambda _: None)
