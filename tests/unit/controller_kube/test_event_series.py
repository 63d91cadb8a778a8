"""Events: the first at once, repeats as counts, never too many, never too long."""

import pytest

from controller.kube.events import (
    BURST,
    FORGET_NS,
    MAX_KINDS,
    MAX_NOTE,
    REPEAT_NS,
    EventSeries,
    Notice,
    Regarding,
    Severity,
    Writing,
)

_SECOND = 1_000_000_000
NOW = 100 * _SECOND
WALL = 1_800_000_000 * _SECOND
NODE = Regarding("Node", "gpu-1", "uid-1")
POD = Regarding("Pod", "train-0", "uid-2", "team")


def notice(about: Regarding = NODE, code: str = "SIG_INVALID", note: str = "why") -> Notice:
    return Notice(about, "EvidenceRefused", "Refuse", Severity.WARNING, code, note)


@pytest.fixture
def series() -> EventSeries:
    return EventSeries("gpuwarden.dev/controller", "controller-0")


def written(series: EventSeries, now_ns: int = NOW) -> Writing:
    writing = series.next_writing(now_ns)
    assert writing is not None
    series.wrote(writing.key, now_ns)
    return writing


def test_the_first_is_written_whole(series: EventSeries) -> None:
    assert series.add(notice(), "1a2b", NOW, WALL) == "queued"
    writing = written(series)
    assert (writing.namespace, writing.name, writing.is_new) == ("default", "gpu-1.1a2b", True)
    assert writing.body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "gpu-1.1a2b", "namespace": "default"},
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "reportingController": "gpuwarden.dev/controller",
        "reportingInstance": "controller-0",
        "action": "Refuse",
        "reason": "EvidenceRefused",
        "type": "Warning",
        "note": "gpuwarden: SIG_INVALID why",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "uid-1"},
    }
    assert series.next_writing(NOW) is None


def test_a_pods_event_stands_in_its_namespace(series: EventSeries) -> None:
    series.add(notice(POD), "x", NOW, WALL)
    writing = written(series)
    assert writing.namespace == "team"
    assert writing.body["regarding"]["namespace"] == "team"


def test_repeats_become_a_count_at_most_once_a_minute(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    for second in (1, 2):
        assert series.add(notice(note="again"), "y", NOW + second, WALL + _SECOND) == "merged"
    assert series.next_writing(NOW + REPEAT_NS - 1) is None
    writing = written(series, NOW + REPEAT_NS)
    assert (writing.name, writing.is_new) == ("gpu-1.x", False)
    assert writing.body == {
        "series": {"count": 3, "lastObservedTime": "2027-01-15T08:00:01.000000Z"}
    }
    assert series.next_writing(NOW + 3 * REPEAT_NS) is None


def test_repeats_before_the_first_was_written_are_in_it(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    series.add(notice(), "y", NOW, WALL)
    assert written(series).body["series"]["count"] == 2


def test_another_code_or_object_is_another_event(series: EventSeries) -> None:
    for about, code in ((NODE, "A"), (NODE, "B"), (POD, "A")):
        assert series.add(notice(about, code), "x", NOW, WALL) == "queued"


def test_a_kind_that_was_silent_begins_anew(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    assert series.add(notice(), "y", NOW + FORGET_NS, WALL) == "queued"


def test_few_kinds_are_remembered(series: EventSeries) -> None:
    for number in range(MAX_KINDS):
        assert series.add(notice(code=f"C{number}"), "x", NOW, WALL) == "queued"
    assert series.add(notice(code="one too many"), "x", NOW, WALL) == "dropped"
    assert series.clear() == MAX_KINDS
    assert series.next_writing(NOW) is None


def test_few_writes_are_made_in_a_second(series: EventSeries) -> None:
    for number in range(100):
        series.add(notice(code=f"C{number}"), "x", NOW, WALL)
    burst = 0
    while series.next_writing(NOW) is not None:
        burst += 1
    assert burst == BURST
    assert series.next_writing(NOW + _SECOND // 5) is not None
    assert series.next_writing(NOW + _SECOND // 5) is None


def test_texts_are_cleaned_and_bounded(series: EventSeries) -> None:
    note = "\x1b]0;evil\x07 bearer abcdefghijkl " + "x" * 5000
    series.add(notice(Regarding("Node", "n" * 253, "u"), note=note), "1a", NOW, WALL)
    body = written(series).body
    assert len(body["note"]) <= MAX_NOTE
    assert body["note"].isprintable()
    assert "abcdefghijkl" not in body["note"]
    assert len(body["metadata"]["name"]) <= 253


def test_a_failed_write_is_tried_again_three_times(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    for _ in range(2):
        writing = series.next_writing(NOW)
        assert writing is not None
        assert not series.failed(writing.key, is_gone=False)
    writing = series.next_writing(NOW)
    assert writing is not None
    assert series.failed(writing.key, is_gone=False)
    assert series.next_writing(NOW) is None
    assert not series.failed(writing.key, is_gone=False)


def test_an_event_that_expired_is_written_anew(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    series.add(notice(), "x", NOW, WALL)
    writing = series.next_writing(NOW + REPEAT_NS)
    assert writing is not None
    series.failed(writing.key, is_gone=True)
    again = series.next_writing(NOW + REPEAT_NS)
    assert again is not None
    assert again.is_new


def test_what_is_no_longer_known_was_written(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    writing = series.next_writing(NOW)
    assert writing is not None
    series.clear()
    series.wrote(writing.key, NOW)
    assert series.next_writing(NOW) is None
