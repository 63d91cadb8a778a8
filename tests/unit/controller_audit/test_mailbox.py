import threading

from controller.audit.writer import Letter, Mailbox, Ticket
from controller.record import Record
from gpuwarden.audit.record import RecordKind


def letter(number: int, kind: RecordKind = RecordKind.NODE_STATE, *, waits: bool = False) -> Letter:
    ticket = Ticket(lambda _failure: None) if waits else None
    return Letter(Record(kind, "a", f"s{number}", "d"), number, number, ticket)


def subjects(letters: list[Letter]) -> list[str]:
    return [item.record.subject for item in letters]


def test_letters_come_out_in_order_in_groups() -> None:
    mailbox = Mailbox(1000)
    for number in range(74):
        assert mailbox.put(letter(number))

    first, second = mailbox.take(0), mailbox.take(0)

    assert subjects(first + second) == [f"s{n}" for n in range(74)]
    assert len(first) == 64
    assert len(mailbox) == 0


def test_nothing_to_take_ends_after_the_timeout_or_a_wake() -> None:
    mailbox = Mailbox(10)
    taken: list[list[Letter]] = [mailbox.take(0)]
    thread = threading.Thread(target=lambda: taken.append(mailbox.take(30)))
    thread.start()

    mailbox.wake()
    thread.join(10)

    assert taken == [[], []]


def test_grant_is_taken_without_waiting_for_company() -> None:
    mailbox = Mailbox(10)
    taken: list[list[Letter]] = []
    thread = threading.Thread(target=lambda: taken.append(mailbox.take(30)))
    thread.start()

    mailbox.put(letter(1, waits=True))
    thread.join(10)

    assert subjects(taken[0]) == ["s1"]


def test_a_record_that_nobody_waits_for_is_taken_as_well() -> None:
    mailbox = Mailbox(10)
    taken: list[list[Letter]] = []
    thread = threading.Thread(target=lambda: taken.append(mailbox.take(30)))
    thread.start()
    while not mailbox._changed._waiters:  # type: ignore[attr-defined] # says that it sleeps
        threading.Event().wait(0.001)

    mailbox.put(letter(1))
    thread.join(10)

    assert subjects(taken[0]) == ["s1"]


def test_only_a_grant_is_urgent() -> None:
    mailbox = Mailbox(10)
    mailbox.put(letter(1))
    assert not mailbox._urgent
    mailbox.put(letter(2, waits=True))
    mailbox.put(letter(3))
    assert mailbox._urgent


def test_grant_left_behind_in_the_queue_is_still_urgent() -> None:
    mailbox = Mailbox(1000)
    for number in range(64):
        mailbox.put(letter(number))
    mailbox.put(letter(99, waits=True))

    mailbox.take(0)

    assert mailbox._urgent
    assert subjects(mailbox.take(0)) == ["s99"]
    assert not mailbox._urgent


def test_ordinary_records_leave_room_for_the_others() -> None:
    mailbox = Mailbox(8)
    ordinary = [mailbox.put(letter(n, RecordKind.FILTER_DECISION)) for n in range(8)]
    others = [mailbox.put(letter(n)) for n in range(3)]

    assert ordinary == [True] * 6 + [False] * 2
    assert others == [True, True, False]


def test_grant_is_never_ordinary() -> None:
    assert not letter(1, RecordKind.FILTER_DECISION, waits=True).ordinary


def test_letters_are_put_back_in_front_as_far_as_there_is_room() -> None:
    mailbox = Mailbox(4)
    for number in (8, 9):
        mailbox.put(letter(number))

    assert mailbox.put_back([letter(n) for n in range(3)]) == 1
    assert subjects(mailbox.take(0)) == ["s1", "s2", "s8", "s9"]


def test_chosen_letters_are_taken_out() -> None:
    mailbox = Mailbox(10)
    for number in range(4):
        mailbox.put(letter(number, waits=number % 2 == 0))

    chosen = mailbox.take_out(lambda item: item.ticket is not None)

    assert subjects(chosen) == ["s0", "s2"]
    assert not mailbox._urgent
    assert subjects(mailbox.take(0)) == ["s1", "s3"]


def test_age_of_the_oldest_is_known() -> None:
    mailbox = Mailbox(10)
    assert mailbox.oldest_ns() is None

    mailbox.put(letter(7))
    mailbox.put(letter(8))

    assert mailbox.oldest_ns() == 7
