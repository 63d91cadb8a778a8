"""The pods of a soak against an API of a few lines: lost answers, ends, and who has which GPU."""

from typing import Any

import pytest

from tests.e2e.lab.api import Api, ApiError, Document
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import NeverError
from tests.e2e.product.ledger import ASSIGNED
from tests.soak.load import End, Load, Planned, described


class RecordingApi(Api):
    """Answers each call with the next of `failures`, then with success."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[tuple[str, str]] = []

    def _document(
        self, method: str, path: str, body: Document | None = None, kind: str = ""
    ) -> Document:
        del kind
        phase = (body or {}).get("status", {}).get("phase", "")
        self.calls.append((method, f"{path.rpartition('/pods')[2]} {phase}".strip()))
        if self.failures:
            raise self.failures.pop(0)
        return {"metadata": {"name": path}}


def load_on(api: Api) -> tuple[Load, Namespace]:
    pods = Namespace(api, "soak")
    load = Load(pods, per_minute=60, longest_s=10)
    load._due = 0
    return load, pods


def bound(name: str, *gpus: str, phase: str = "Pending") -> dict[str, Any]:
    metadata = {"name": name, "annotations": {ASSIGNED: ",".join(gpus)}}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase}}


def created(load: Load, pods: Namespace) -> None:
    load._due = 0
    load._create(pods)


def test_a_pod_whose_answer_was_lost_is_created_once() -> None:
    api = RecordingApi(TimeoutError("slow"), ApiError(500, "", "webhook"), ApiError(409, "", ""))
    load, pods = load_on(api)
    for expected in (0, 0, 1):
        created(load, pods)
        assert load.placed().created == expected
    assert load.waiting == ["soak-0"]
    assert [(x.program, x.text) for x in load.errors] == [
        ("client", "TimeoutError('slow')"),
        ("client", "500 webhook"),
    ]
    created(load, pods)
    assert load.waiting == ["soak-0", "soak-1"]


def test_a_pod_that_was_bound_though_its_answer_was_lost_does_not_wait_again() -> None:
    load, pods = load_on(RecordingApi(TimeoutError("slow"), ApiError(409, "", "")))
    created(load, pods)
    load._see("MODIFIED", bound("soak-0", "g1"))
    created(load, pods)
    assert load.waiting == []
    assert load.placed().created == 1


def test_a_turn_that_does_not_end_is_waited_for_no_longer_than_asked() -> None:
    load, _ = load_on(RecordingApi())
    with load._turn, pytest.raises(NeverError, match=r"turn of the pods' client"):
        load.hold(0.01)
    assert not load._is_held
    load.hold(0.01)
    assert load._is_held


def test_a_closed_load_begins_no_further_call() -> None:
    api = RecordingApi()
    load, pods = load_on(api)
    planned = Planned("p", 1, 0, End.DELETED)
    load._running, load._bound = [(planned, 0.0)], [planned]
    load.close()
    load._end(pods)
    load._run(pods)
    assert api.calls == []


class OnePod(RecordingApi):
    def __init__(self, pod: Document, *failures: Exception) -> None:
        super().__init__(*failures)
        self.pod = pod

    def _document(
        self, method: str, path: str, body: Document | None = None, kind: str = ""
    ) -> Document:
        super()._document(method, path, body, kind)
        return self.pod


def test_how_a_pod_stands_that_was_never_bound() -> None:
    why = {"type": "PodScheduled", "message": "0/24 nodes are available"}
    pod = {"spec": {}, "status": {"phase": "Pending", "conditions": [why]}}
    pods = Namespace(OnePod(pod), "soak")
    assert described(pods, "a") == "pod a: Pending on no node: 0/24 nodes are available"
    pods = Namespace(OnePod(bound("a", "g1")), "soak")
    assert described(pods, "a") == "pod a: Pending on n: no condition"
    pods = Namespace(OnePod({}, ApiError(404, "NotFound", "gone")), "soak")
    assert described(pods, "a") == "pod a: ApiError('404 NotFound: gone')"


def test_a_bound_pod_waits_no_longer_and_is_said_to_run() -> None:
    api = RecordingApi()
    load, pods = load_on(api)
    created(load, pods)
    load._see("ADDED", {**bound("soak-0"), "spec": {}})
    assert load.waiting == ["soak-0"]
    load._see("MODIFIED", bound("soak-0", "g1"))
    load._see("MODIFIED", bound("soak-0", "g1", phase="Running"))
    load._run(pods)
    assert load.waiting == []
    assert load.placed().bound == 1
    assert api.calls[1:] == [("PATCH", "/soak-0/status Running")]


@pytest.mark.parametrize(
    ("end", "calls"),
    [
        (End.SUCCEEDED, [("PATCH", "/p/status Succeeded"), ("DELETE", "/p")]),
        (End.FAILED, [("PATCH", "/p/status Failed"), ("DELETE", "/p")]),
        (End.DELETED, [("DELETE", "/p")]),
    ],
)
def test_how_pods_end(end: End, calls: list[tuple[str, str]]) -> None:
    api = RecordingApi()
    load, pods = load_on(api)
    load._running = [(Planned("p", 1, 0, end), 0.0)]
    load._end(pods)
    load._end(pods)
    assert api.calls == calls
    assert load.placed().ended == {end.value: 1}


def test_an_end_that_failed_is_tried_again() -> None:
    api = RecordingApi(OSError("broken"))
    load, pods = load_on(api)
    load._running = [(Planned("p", 1, 0, End.DELETED), 0.0)]
    load._end(pods)
    assert load.placed().ended == {}
    load._end(pods)
    assert load.placed().ended == {"deleted": 1}


@pytest.mark.parametrize(
    ("gone", "twice"),
    [
        (("MODIFIED", bound("a", "g1", "g2", phase="Running")), ("g2: a, b",)),
        (("MODIFIED", bound("a", "g1", "g2", phase="Succeeded")), ()),
        (("MODIFIED", bound("a", "g1", "g2", phase="Failed")), ()),
        (("DELETED", bound("a", "g1", "g2", phase="Running")), ()),
    ],
)
def test_a_gpu_in_two_pods_at_a_time_is_seen(
    gone: tuple[str, dict[str, Any]], twice: tuple[str, ...]
) -> None:
    load, _ = load_on(RecordingApi())
    load._see("MODIFIED", bound("a", "g1", "g2"))
    load._see(*gone)
    load._see("MODIFIED", bound("b", "g2", "g3"))
    assert load.placed().twice == twice
