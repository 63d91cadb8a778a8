import threading

from controller.audit.writer import QueuedRecord, RecordQueue, Waiter
from controller.record import Record
from gpuwarden.audit.record import RecordKind


def queued(
    number: int, kind: RecordKind = RecordKind.NODE_STATE, *, waits: bool = False
) -> QueuedRecord:
    waiter = Waiter(lambda _failure: None) if waits else None
    return QueuedRecord(Record(kind, "a", f"s{number}", "d"), number, number, waiter)


def subjects(batch: list[QueuedRecord]) -> list[str]:
    return [item.record.subject for item in batch]


def test_letters_come_out_in_order_in_groups() -> None:
    queue = RecordQueue(1000)
    for number in range(74):
        assert queue.put(queued(number))

    first, second = queue.take(0), queue.take(0)

    assert subjects(first + second) == [f"s{n}" for n in range(74)]
    assert len(first) == 64
    assert len(queue) == 0


def test_nothing_to_take_ends_after_the_timeout_or_a_wake() -> None:
    queue = RecordQueue(10)
    taken: list[list[QueuedRecord]] = [queue.take(0)]
    thread = threading.Thread(target=lambda: taken.append(queue.take(30)))
    thread.start()

    queue.wake()
    thread.join(10)

    assert taken == [[], []]


def test_grant_is_taken_without_waiting_for_company() -> None:
    queue = RecordQueue(10)
    taken: list[list[QueuedRecord]] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take(30)))
    thread.start()

    queue.put(queued(1, waits=True))
    thread.join(10)

    assert subjects(taken[0]) == ["s1"]


def test_a_record_that_nobody_waits_for_is_taken_as_well() -> None:
    queue = RecordQueue(10)
    taken: list[list[QueuedRecord]] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take(30)))
    thread.start()
    while not queue._changed._waiters:  # type: ignore[attr-defined] # says that it sleeps
        threading.Event().wait(0.001)

    queue.put(queued(1))
    thread.join(10)

    assert subjects(taken[0]) == ["s1"]


def test_only_a_grant_is_urgent() -> None:
    queue = RecordQueue(10)
    queue.put(queued(1))
    assert not queue._urgent
    queue.put(queued(2, waits=True))
    queue.put(queued(3))
    assert queue._urgent


def test_grant_left_behind_in_the_queue_is_still_urgent() -> None:
    queue = RecordQueue(1000)
    for number in range(64):
        queue.put(queued(number))
    queue.put(queued(99, waits=True))

    queue.take(0)

    assert queue._urgent
    assert subjects(queue.take(0)) == ["s99"]
    assert not queue._urgent


def test_ordinary_records_leave_room_for_the_others() -> None:
    queue = RecordQueue(8)
    ordinary = [queue.put(queued(n, RecordKind.FILTER_DECISION)) for n in range(8)]
    others = [queue.put(queued(n)) for n in range(3)]

    assert ordinary == [True] * 6 + [False] * 2
    assert others == [True, True, False]


def test_grant_is_never_ordinary() -> None:
    assert not queued(1, RecordKind.FILTER_DECISION, waits=True).ordinary


def test_letters_are_put_back_in_front_as_far_as_there_is_room() -> None:
    queue = RecordQueue(4)
    for number in (8, 9):
        queue.put(queued(number))

    assert queue.put_back([queued(n) for n in range(3)]) == 1
    assert subjects(queue.take(0)) == ["s1", "s2", "s8", "s9"]


def test_chosen_letters_are_taken_out() -> None:
    queue = RecordQueue(10)
    for number in range(4):
        queue.put(queued(number, waits=number % 2 == 0))

    chosen = queue.take_out(lambda item: item.waiter is not None)

    assert subjects(chosen) == ["s0", "s2"]
    assert not queue._urgent
    assert subjects(queue.take(0)) == ["s1", "s3"]


def test_age_of_the_oldest_is_known() -> None:
    queue = RecordQueue(10)
    assert queue.oldest_ns() is None

    queue.put(queued(7))
    queue.put(queued(8))

    assert queue.oldest_ns() == 7
