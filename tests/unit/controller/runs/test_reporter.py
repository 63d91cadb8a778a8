"""Reports of runs: who leads tells the scorer, once, and keeps what it does not take."""

import json
from typing import Any

import pytest

from controller.admission.hints.score import FAILURES_TO_OPEN, OPEN_NS, ScoreError, ScoreFault
from controller.runs import reporter
from controller.runs.observation import EndedRun
from controller.runs.pod_run import Unreported
from controller.runs.reporter import (
    FORGOTTEN_NS,
    KEPT_NS,
    UNSAVED_NS,
    RunNote,
    RunReporter,
    RunSources,
)
from tests.builders.fleet_views import NOW_NS, acceptance, gpu, node
from tests.builders.runs import ended_run

SAVED, UNSAVED = b'{"saved": true}', b'{"status": "ok", "learned": true, "saved": false}'
UNIFORM = node("node-1", acceptance(gpus=(gpu(0, "GPU-a"),), lease_ns=10 * KEPT_NS))


class Replica:
    """A reporter, and a scorer that takes and saves what it is told unless there is a fault."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS
        self.leading = True
        self.fault: ScoreFault | None = None
        self.poison = ""
        self.answer = b'{"status": "ok"}'
        self.tries = 0
        self.told: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self.gpus: dict[str, tuple[str, ...]] = {}
        self.reporter = RunReporter(
            RunSources(
                tell=self.tell,
                node={"node-1": UNIFORM}.get,
                gpus=lambda uid: self.gpus.get(uid, ()),
                leads=lambda: self.leading,
                note=self.note,
                boottime_ns=lambda: self.now_ns,
            )
        )

    async def tell(self, body: bytes) -> bytes:
        self.tries += 1
        found: dict[str, Any] = json.loads(body)
        if self.fault is not None or found["run_id"] == self.poison:
            raise ScoreError(self.fault or ScoreFault.STATUS, "why")
        self.told.append(found["run_id"])
        return self.answer

    def note(self, note: RunNote) -> None:
        self.notes.append((note.ended.uid, note.result))
        assert note.is_fault is (note.result not in {"reported", "deleted", "no_gpus"})

    async def end(self, *uids: str) -> None:
        for uid in uids:
            self.reporter.ended(ended_run(uid=uid))
        await self.reporter.deliver()


@pytest.fixture
def replica() -> Replica:
    return Replica()


async def test_each_run_is_reported_once_in_its_order(replica: Replica) -> None:
    await replica.end("a", "b")
    await replica.end("c")
    assert replica.told == ["a", "b", "c"]
    assert replica.notes == [(x, "reported") for x in "abc"]


async def test_the_gpus_are_those_of_the_ledger(replica: Replica) -> None:
    replica.gpus = {"a": ("GPU-a",)}
    for uid in "ab":
        replica.reporter.ended(ended_run(uid=uid, by_kubelet=False))
    await replica.reporter.deliver()
    assert replica.notes == [("b", "no_gpus"), ("a", "reported")]


async def test_who_does_not_lead_reports_and_counts_nothing(replica: Replica) -> None:
    replica.leading = False
    replica.reporter.ended(ended_run(Unreported.DELETED, uid="gone"))
    await replica.end("a")
    assert (replica.tries, replica.notes) == (0, [])
    replica.leading = True
    replica.reporter.ended(ended_run(Unreported.DELETED, uid="gone"))
    await replica.reporter.deliver()
    assert replica.told == ["a"]
    assert replica.notes == [("gone", "deleted"), ("a", "reported")]


async def test_a_new_leader_reports_what_ended_just_before(replica: Replica) -> None:
    replica.leading = False
    await replica.end("old")
    replica.now_ns += 1
    await replica.end("new")
    replica.now_ns += FORGOTTEN_NS - 1
    await replica.reporter.deliver()
    replica.leading = True
    await replica.reporter.deliver()
    assert replica.told == ["new"]
    assert replica.notes == [("new", "reported")]


async def test_what_the_scorer_does_not_take_waits_for_it(replica: Replica) -> None:
    replica.fault = ScoreFault.CONNECTION
    await replica.end("a", "b")
    assert replica.notes == [("a", "connection")]
    replica.now_ns += FORGOTTEN_NS
    replica.fault = None
    await replica.reporter.deliver()
    assert sorted(replica.told) == ["a", "b"]


async def test_a_scorer_that_keeps_failing_is_left_alone_for_a_while(replica: Replica) -> None:
    replica.fault = ScoreFault.TIMEOUT
    await replica.end("a")
    for _ in range(FAILURES_TO_OPEN):
        await replica.reporter.deliver()
    assert replica.tries == FAILURES_TO_OPEN
    replica.now_ns += OPEN_NS - 1
    await replica.reporter.deliver()
    assert replica.tries == FAILURES_TO_OPEN
    replica.now_ns += 1
    await replica.reporter.deliver()
    await replica.reporter.deliver()
    assert replica.tries == FAILURES_TO_OPEN + 1
    replica.now_ns += OPEN_NS
    replica.fault = None
    await replica.end("b")
    assert sorted(replica.told) == ["a", "b"]


async def test_what_the_scorer_refuses_is_not_told_again(replica: Replica) -> None:
    replica.fault = ScoreFault.REFUSED
    await replica.end(*map(str, range(FAILURES_TO_OPEN + 1)))
    assert replica.tries == FAILURES_TO_OPEN + 1
    assert {x for _, x in replica.notes} == {"refused"}
    replica.fault = None
    await replica.end("b")
    assert replica.told == ["b"]


async def test_a_run_that_makes_the_scorer_fail_stops_no_other(replica: Replica) -> None:
    replica.poison = "a"
    await replica.end("a", "b", "c")
    await replica.reporter.deliver()
    assert replica.told == ["b", "c"]


async def test_only_so_many_wait_and_only_for_so_long(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MOST_WAITING", 2)
    replica.fault = ScoreFault.STATUS
    for uid in "ab":
        replica.reporter.ended(ended_run(uid=uid))
    assert replica.notes == []
    replica.now_ns += 1
    replica.reporter.ended(ended_run(uid="c"))
    assert replica.notes == [("a", "lost")]
    replica.now_ns += KEPT_NS - 1
    replica.fault = None
    await replica.reporter.deliver()
    assert replica.notes == [("a", "lost"), ("b", "lost"), ("c", "reported")]


async def test_too_many_that_wait_where_nobody_leads_are_not_lost(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may have reported them."""
    monkeypatch.setattr(reporter, "MOST_WAITING", 2)
    replica.leading = False
    await replica.end("a", "b", "c")
    assert (replica.tries, replica.notes) == (0, [])
    replica.leading = True
    await replica.reporter.deliver()
    assert replica.notes == [("b", "reported"), ("c", "reported")]


async def test_a_run_that_was_not_saved_is_told_again_until_it_is(replica: Replica) -> None:
    replica.answer = UNSAVED
    await replica.end("a", "b")
    assert (replica.told, replica.reporter.unsaved) == (["a", "b"], 2)
    assert replica.notes == [("a", "unsaved"), ("b", "unsaved")]
    replica.now_ns += UNSAVED_NS - 1
    await replica.reporter.deliver()
    assert replica.told == ["a", "b"]
    replica.now_ns += 1
    await replica.reporter.deliver()
    await replica.reporter.deliver()
    assert replica.told == ["a", "b", "a"], "one is enough to see whether it saves again"
    replica.now_ns += UNSAVED_NS
    replica.answer = SAVED
    await replica.reporter.deliver()
    assert replica.told == ["a", "b", "a", "b", "a"]
    assert replica.notes[3:] == [("b", "reported"), ("a", "reported")]
    assert replica.reporter.unsaved == 0
    assert not replica.reporter.is_open


async def test_a_new_run_that_is_saved_brings_the_others_with_it(replica: Replica) -> None:
    replica.answer = UNSAVED
    await replica.end("a")
    replica.answer = SAVED
    await replica.end("b")
    assert replica.told == ["a", "b", "a"]
    assert replica.notes[1:] == [("b", "reported"), ("a", "reported")]


async def test_a_run_that_was_not_saved_waits_for_a_scorer_that_fails(replica: Replica) -> None:
    replica.answer = UNSAVED
    await replica.end("a")
    replica.fault = ScoreFault.CONNECTION
    replica.now_ns += UNSAVED_NS
    await replica.reporter.deliver()
    assert replica.notes[1:] == [("a", "connection")]
    replica.fault, replica.answer = None, SAVED
    await replica.reporter.deliver()
    assert replica.notes[2:] == [("a", "reported")]


async def test_only_so_many_unsaved_runs_wait_and_only_for_so_long(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MOST_WAITING", 2)
    replica.answer = UNSAVED
    await replica.end("a", "b")
    replica.now_ns += 1
    replica.reporter.ended(ended_run(uid="c"))
    assert replica.notes[2:] == [("a", "lost")]
    await replica.reporter.deliver()
    replica.now_ns += KEPT_NS - 1
    replica.answer = SAVED
    await replica.reporter.deliver()
    assert replica.notes[3:] == [("c", "unsaved"), ("b", "lost"), ("c", "reported")]


async def test_who_leads_no_more_forgets_what_was_not_saved(replica: Replica) -> None:
    replica.answer = UNSAVED
    await replica.end("a")
    replica.leading = False
    replica.now_ns += FORGOTTEN_NS
    await replica.reporter.deliver()
    assert replica.reporter.unsaved == 0
    assert replica.notes == [("a", "unsaved")]


async def test_it_tells_whether_the_scorer_fails(replica: Replica) -> None:
    replica.fault = ScoreFault.CONNECTION
    await replica.end("a")
    found = [replica.reporter.is_open]
    for _ in range(FAILURES_TO_OPEN - 1):
        await replica.reporter.deliver()
        found.append(replica.reporter.is_open)
    replica.fault = None
    replica.now_ns += OPEN_NS
    await replica.reporter.deliver()
    assert found == [False] * (FAILURES_TO_OPEN - 1) + [True]
    assert not replica.reporter.is_open


def test_a_note_says_which_pod_it_was() -> None:
    ended: EndedRun = ended_run(uid="a")
    assert (ended.namespace, ended.name) == ("team-a", "pod-a")
    assert RunNote(ended, "lost").is_fault
