import os
import threading

from controller.audit.copies import MAX_WAITING, Copies


def test_blocks_come_out_whole_and_in_order() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)

    for n in range(50):
        copies.put(b"line %d\n" % n, 1)
    copies.close(10)
    os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"".join(b"line %d\n" % n for n in range(50))
    assert lost == []


def test_reader_that_sleeps_loses_copies_and_holds_nobody_up() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)
    block = b"x" * (MAX_WAITING // 4) + b"\n"

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
    os.read(reader, 1 << 20)
    copies.put(b"next\n", 1)
    copies.close(10)
    os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read().split(b"\n")[-2:] == [b"next", b""]
    assert lost == [1]
