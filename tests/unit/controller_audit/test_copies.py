import os
import threading

from controller.audit.log import Copies


def test_blocks_come_out_whole_and_in_order() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)

    for n in range(50):
        copies.put(b"line %d\n" % n, 1)
    assert copies._thread.daemon
    copies.close(10)
    assert not copies._thread.is_alive()
    os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"".join(b"line %d\n" % n for n in range(50))
    assert lost == []


def test_a_thread_that_waits_is_woken_to_end() -> None:
    reader, writer = os.pipe()
    copies = Copies(writer, print)
    while not copies._changed._waiters:  # type: ignore[attr-defined]  # nothing else says that it waits
        threading.Event().wait(0.005)
    copies.close(10)
    assert not copies._thread.is_alive()
    os.close(writer)
    os.close(reader)


def test_reader_that_sleeps_loses_copies_and_holds_nobody_up() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)
    block = b"x" * (1 << 20) + b"\n"

    for _ in range(8):
        copies.put(block, 10)
    copies.close(0.01)
    copies.put(block, 1)

    assert sum(lost) >= 41
    drained = threading.Thread(target=lambda: list(iter(lambda: os.read(reader, 1 << 16), b"")))
    drained.start()
    copies.close(10)
    os.close(writer)
    drained.join(10)
    os.close(reader)


def test_four_mebibytes_may_wait_and_again_when_they_are_out() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)
    block = b"x" * (4 << 20)
    out = bytearray()

    copies.put(block + b"y", 1)
    copies.put(block, 2)
    copies.put(b"y", 4)
    assert lost == [1, 4]
    while len(out) < len(block):
        out += os.read(reader, 1 << 16)
    while copies._waiting:
        threading.Event().wait(0.005)
    copies.put(block, 8)
    copies.put(b"y", 16)
    while len(out) < 2 * len(block):
        out += os.read(reader, 1 << 16)
    copies.close(10)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        out += pipe.read()

    assert lost == [1, 4, 16]
    assert out == 2 * block


def test_closed_reader_is_counted() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lost: list[int] = []
    copies = Copies(writer, lost.append)

    copies.put(b"line\n", 3)
    copies.close(10)
    os.close(writer)

    assert lost == [3]


def test_copy_that_broke_off_does_not_spoil_the_next_line() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    lost: list[int] = []
    losing = threading.Event()

    def count(records: int) -> None:
        lost.append(records)
        losing.set()

    copies = Copies(writer, count)
    copies.put(b"x" * (1 << 20) + b"\n", 1)
    assert losing.wait(10)
    os.read(reader, 1 << 14)
    copies.put(b"next\n", 1)
    copies.put(b"after\n", 1)
    copies.close(10)
    os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        torn, *rest = pipe.read().split(b"\n")
    assert set(torn) == set(b"x")
    assert rest == [b"next", b"after", b""]
    assert lost == [1]
