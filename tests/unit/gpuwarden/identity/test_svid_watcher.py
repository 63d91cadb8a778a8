"""The SVID watcher turn by turn, over a Workload API and a clock that the test steers."""

import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import Offer, exactly
from gpuwarden.identity.svid_watcher import SvidWatcher
from gpuwarden.identity.watchdog import Limits
from gpuwarden.identity.workload_api import WorkloadApiDeniedError, WorkloadApiError
from sandbox.spiffe.ca import InsecureCa
from tests.fakes.clock import FakeClock
from tests.fakes.workload_api import Answer, FakeWorkloadApi
from tests.hang import HANG_S

AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
OTHER = "spiffe://example.org/other"
WANTED = exactly(SpiffeId("example.org", "/gpuwarden/agent/node-a"))
DENIED = WorkloadApiDeniedError("no identity issued")
DOWN = WorkloadApiError("connection refused")


class Stage:
    """A SVID watcher with everything around it; `turn` moves time and lets the SVID watcher act."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.clock = FakeClock()
        self.ca = InsecureCa("example.org", now=self.now)
        self.api = FakeWorkloadApi(answer or self.offer())
        self.svid_watcher = SvidWatcher(self.api, WANTED, self.clock, jitter=lambda: 0.5)
        self.notified = 0
        self.unsubscribe = self.svid_watcher.subscribe(self.notify)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall / 1e9, UTC)

    def offer(self, spiffe_id: str = AGENT, ttl: timedelta = timedelta(hours=1)) -> Offer:
        issued = self.ca.issue(spiffe_id, ttl=ttl)
        roots = (self.ca.certificate,)
        return Offer(spiffe_id, issued.private_key, issued.chain, roots, (spiffe_id,))

    def notify(self) -> None:
        self.notified += 1

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.svid_watcher.turn()

    def generation(self) -> int | None:
        svid = self.svid_watcher.current()
        return None if svid is None else svid.generation


def test_before_the_first_turn_there_is_no_svid_and_the_state_says_so() -> None:
    stage = Stage()
    assert stage.svid_watcher.current() is None
    assert stage.svid_watcher.state() == "no SVID: not asked yet"
    assert stage.svid_watcher.facts().svid_expires_seconds == 0.0


def test_the_first_turn_brings_the_svid() -> None:
    stage = Stage()
    stage.turn()
    assert stage.generation() == 1
    assert stage.svid_watcher.state() == f"SVID {AGENT} generation 1 until 2027-01-15T09:00:00Z"
    facts = stage.svid_watcher.facts()
    assert (facts.svid_expires_seconds, facts.generation, facts.rebuilds) == (3600.0, 1, 1)
    assert (facts.failures, facts.watching) == (0, True)
    assert (stage.notified, stage.api.fetches) == (1, 1)


def test_an_update_is_a_new_generation_and_a_repetition_is_not() -> None:
    stage = Stage()
    stage.turn()
    stage.turn(5)
    assert (stage.generation(), stage.notified) == (1, 1)
    stage.api.watches[0].update(stage.offer())
    stage.turn()
    assert (stage.generation(), stage.notified) == (2, 2)


def test_an_unsubscribed_reader_hears_nothing_and_a_failing_one_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()

    def broken() -> None:
        raise RuntimeError("subscriber")

    told: list[str] = []
    stage.svid_watcher.subscribe(broken)
    stage.svid_watcher.subscribe(lambda: told.append("other"))
    stage.unsubscribe()
    stage.turn()
    assert (stage.notified, told) == (0, ["other"])
    assert "a subscriber failed" in caplog.text


def test_an_expired_svid_is_not_served_even_before_the_svid_watcher_has_noticed() -> None:
    stage = Stage()
    stage.turn()
    stage.api.answer = DOWN
    stage.clock.advance(3599)
    assert stage.generation() == 1
    stage.clock.advance(1)
    assert stage.svid_watcher.current() is None
    assert stage.svid_watcher.state() == "no SVID: expired at 2027-01-15T09:00:00Z"
    stage.turn()
    assert stage.notified == 2
    assert stage.svid_watcher.facts().svid_expires_seconds == 0.0
    assert stage.svid_watcher.state() == "no SVID: connection refused"


def test_nobody_is_reported_about_a_loss_before_there_was_anything() -> None:
    stage = Stage(DOWN)
    stage.turn()
    assert stage.notified == 0


def test_an_outage_costs_nothing_until_the_svid_expires() -> None:
    stage = Stage()
    stage.turn()
    stage.api.answer = DOWN
    for _ in range(100):
        stage.turn(5)
        assert stage.generation() == 1
    assert "until 2027-01-15T09:00:00Z; connection refused" in stage.svid_watcher.state()
    assert not stage.svid_watcher.facts().watching
    stage.api.answer = stage.offer()
    stage.turn(5)
    assert stage.generation() == 2
    assert stage.svid_watcher.facts().watching
    assert stage.notified == 2


def test_an_outage_is_logged_once_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stage = Stage(DOWN)
    for _ in range(10):
        stage.turn(5)
    assert caplog.text.count("connection refused") == 1
    assert stage.svid_watcher.facts().failures == 10


def test_half_a_day_without_the_agent_ends_with_the_first_answer() -> None:
    stage = Stage(DOWN)
    for _ in range(12 * 60):
        stage.turn(60)
    assert stage.svid_watcher.state() == "no SVID: connection refused"
    stage.api.answer = stage.offer()
    stage.turn(5)
    assert stage.generation() == 1


def test_a_closed_watch_is_built_again() -> None:
    stage = Stage()
    stage.turn()
    stage.api.watches[0].update(WorkloadApiError("source closed"))
    stage.api.answer = stage.offer()
    stage.turn(5)
    assert stage.generation() == 1
    stage.turn(5)
    assert stage.generation() == 2
    assert [watch.closed for watch in stage.api.watches] == [True, False]


def test_a_watch_that_died_in_silence_is_found_by_two_probes() -> None:
    stage = Stage()
    stage.turn()
    stage.clock.advance(20 * 60)
    stage.api.answer = stage.offer()
    stage.turn()
    assert stage.generation() == 1
    stage.turn(5)
    stage.turn()
    assert stage.generation() == 2
    assert len(stage.api.open_watches) == 1


def test_a_renewal_that_is_overdue_rebuilds_even_if_every_probe_agrees() -> None:
    stage = Stage()
    stage.turn()
    for _ in range(44):
        stage.turn(60)
    assert stage.svid_watcher.facts().rebuilds == 1
    stage.turn(60)
    stage.turn(60)
    rebuilds = stage.svid_watcher.facts().rebuilds
    assert rebuilds > 1
    assert len(stage.api.open_watches) == 1
    stage.api.answer = stage.offer()
    stage.turn(60)
    assert stage.generation() == 2
    assert stage.svid_watcher.facts().rebuilds == rebuilds + 1


def test_a_short_lifetime_is_asked_for_more_often() -> None:
    stage = Stage()
    stage.api.answer = stage.offer(ttl=timedelta(seconds=310))  # it began 10 s ago
    stage.turn()
    stage.turn(231)
    assert stage.svid_watcher.facts().rebuilds == 2
    stage.turn(19)
    assert stage.svid_watcher.facts().rebuilds == 2
    stage.turn(1)
    assert stage.svid_watcher.facts().rebuilds == 3


def test_a_watch_that_could_not_be_replaced_is_none() -> None:
    stage = Stage()
    stage.turn()
    stage.api.answer = DENIED
    stage.clock.advance(46 * 60)
    stage.turn()
    assert not stage.svid_watcher.facts().watching
    assert stage.api.open_watches == []


def test_a_redacted_identity_is_dropped_after_the_second_denial() -> None:
    stage = Stage()
    stage.turn()
    stage.api.answer = DENIED
    stage.turn(60)
    assert stage.generation() == 1
    stage.turn(1)
    assert (
        "generation 1 until 2027-01-15T09:00:00Z; no identity issued" in stage.svid_watcher.state()
    )
    stage.turn(4)
    assert stage.svid_watcher.current() is None
    assert stage.svid_watcher.state() == "no SVID: no identity issued"
    assert stage.notified == 2
    stage.api.answer = stage.offer()
    stage.turn(5)
    assert stage.generation() == 2


def test_a_single_denial_changes_nothing() -> None:
    stage = Stage()
    stage.turn()
    answer, stage.api.answer = stage.api.answer, DENIED
    stage.turn(60)
    stage.api.answer = answer
    stage.turn(5)
    stage.turn(5)
    assert (stage.generation(), stage.notified) == (1, 1)
    assert stage.svid_watcher.state().endswith("Z")


def test_an_identity_that_is_no_longer_among_those_offered_is_dropped_at_once() -> None:
    stage = Stage()
    stage.turn()
    stage.api.watches[0].update(stage.offer(OTHER))
    stage.turn()
    assert stage.svid_watcher.current() is None
    assert stage.svid_watcher.state() == f"no SVID: configured identity not offered, only {OTHER}"
    stage.api.watches[0].update(stage.offer())
    stage.turn()
    assert stage.generation() == 2


def test_a_bad_update_leaves_the_svid_that_there_is() -> None:
    stage = Stage()
    stage.turn()
    bad = replace(stage.offer(), private_key=stage.offer().private_key)
    stage.api.watches[0].update(bad)
    for _ in range(3):
        stage.turn(5)
    assert stage.generation() == 1
    assert stage.svid_watcher.state().endswith("; private key does not belong to the leaf")
    assert stage.svid_watcher.facts().failures == 1


def test_an_svid_that_lives_too_long_is_not_taken() -> None:
    stage = Stage()
    stage.api.answer = stage.offer(ttl=timedelta(hours=25))
    stage.turn()
    assert stage.svid_watcher.state().startswith("no SVID: SVID lives 1 day")


def test_an_error_that_no_library_should_raise_does_not_end_the_svid_watcher() -> None:
    stage = Stage(ZeroDivisionError("division by zero"))
    stage.turn()
    assert stage.svid_watcher.state() == "no SVID: bug: ZeroDivisionError('division by zero')"
    stage.api.answer = stage.offer()
    stage.turn(5)
    assert stage.generation() == 1


def test_the_thread_is_optional_and_close_ends_the_watch() -> None:
    stage = Stage()
    stage.svid_watcher.close()
    stage = Stage()
    ready = threading.Event()
    stage.svid_watcher.subscribe(ready.set)
    with stage.svid_watcher:
        assert ready.wait(HANG_S)
    assert stage.api.open_watches == []


def test_an_update_is_taken_when_it_comes_and_not_at_the_next_tick() -> None:
    stage = Stage()
    changed = threading.Event()
    stage.svid_watcher.subscribe(changed.set)
    with stage.svid_watcher:
        assert changed.wait(HANG_S)
        changed.clear()
        stage.api.watches[0].update(stage.offer())
        assert changed.wait(Limits().tick / 2)
        assert not stage.svid_watcher._wake.is_set(), "it would look again and again"
        while not stage.svid_watcher._wake._cond._waiters:  # type: ignore[attr-defined] # it sleeps
            threading.Event().wait(0.001)
    assert stage.generation() == 2


def test_a_svid_watcher_that_nobody_closes_holds_no_process() -> None:
    assert Stage().svid_watcher._thread.daemon
