"""The poller: what it keeps, what a failure changes, when it asks again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.spire.client import SpireFailure, SpireServerError
from controller.spire.poller import LISTING_S, MAX_NEWCOMERS, PollPorts, SpirePoller
from controller.spire.snapshot import Entries, SpireAgent, SpireEntry, SpireSnapshot
from gpuwarden.identity.spiffe_id import SpiffeId, parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.moment import Moment
from tests.builders.ca import SpiffeCa
from tests.builders.spire import CONTROLLER, PARENT, PEER, TD, S, spire_agent, spire_entry
from tests.builders.svids import FakeSvidSource
from tests.fakes.clock import FakeClock

OURS = f"spiffe://{TD}/gpuwarden/"


@dataclass
class Server:
    """Answers from what a test puts into it; every call takes `takes_s` of the fake clock."""

    clock: FakeClock
    known_agents: dict[str, SpireAgent] = field(default_factory=dict)
    known_entries: dict[str, tuple[SpireEntry, ...]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    error: Exception | None = None
    admin: bool = False
    entries_take_s: float = 0.0
    hangs: bool = False

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def agents(self, moment: Moment, /) -> dict[str, SpireAgent]:
        del moment
        await self._called("agents")
        return dict(self.known_agents)

    async def entries(self, beginning: str, moment: Moment, /) -> Entries:
        del moment
        assert beginning == OURS
        await self._called("entries")
        self.clock.advance(self.entries_take_s)
        return dict(self.known_entries)

    async def entries_of(self, spiffe_id: SpiffeId, moment: Moment, /) -> tuple[SpireEntry, ...]:
        del moment
        await self._called(f"entries of {spiffe_id}")
        return self.known_entries.get(str(spiffe_id), ())

    async def agent(self, agent_id: str, moment: Moment, /) -> SpireAgent | None:
        del moment
        await self._called(f"agent {agent_id}")
        return self.known_agents.get(agent_id)

    async def may_do_more(self) -> bool:
        await self._called("may do more")
        return self.admin


@dataclass
class Observer:
    seen: list[Any] = field(default_factory=list)

    def taken(self, before: SpireSnapshot | None, after: SpireSnapshot, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append((before, after))

    def failed(self, failure: SpireFailure, text: str) -> None:
        assert text.startswith(failure)
        self.seen.append(failure)

    def excessive(self) -> None:
        self.seen.append("excessive")


class Bench:
    """A poller and everything around it."""

    def __init__(self, poll_s: float = 10.0, listing_s: float = LISTING_S) -> None:
        self.clock = FakeClock()
        self.server = Server(self.clock, {PARENT: spire_agent()}, {PEER: (spire_entry(),)})
        self.ca = SpiffeCa()
        self.svids = FakeSvidSource(self.ca.svid(CONTROLLER))
        self.observer = Observer()
        self.dialed: list[int] = []
        self.closed: list[int] = []
        self.jitter = 0.0
        self.poller = SpirePoller(
            PollPorts(
                dial=self._dial,
                svids=self.svids,
                moment=lambda: Moment(self.clock.boottime_ns(), self.clock.wall_ns()),
                jitter=lambda: self.jitter,
                observer=self.observer,
            ),
            beginning=OURS,
            poll_s=poll_s,
            listing_s=listing_s,
        )

    @asynccontextmanager
    async def _dial(self, svid: Svid) -> AsyncIterator[Server]:
        self.dialed.append(svid.generation)
        try:
            yield self.server
        finally:
            self.closed.append(svid.generation)

    @property
    def snapshot(self) -> SpireSnapshot:
        assert self.poller.snapshot is not None
        return self.poller.snapshot


async def test_a_poll_takes_entries_before_agents_and_says_when_it_asked() -> None:
    bench = Bench()
    bench.server.entries_take_s = 2.0
    begin = bench.clock.boottime_ns()
    assert await bench.poller.poll()
    assert bench.server.calls == ["may do more", "entries", "agents"]
    assert bench.snapshot == SpireSnapshot(
        {PARENT: spire_agent()}, begin + 2 * S, {PEER: (spire_entry(),)}, begin
    )
    assert bench.observer.seen == [(None, bench.snapshot)]
    assert bench.poller.answered.is_set()


async def test_entries_are_listed_for_a_small_part_of_the_time_only() -> None:
    """A listing of 2 s is not repeated within 40 s, agents are asked for each time."""
    bench = Bench()
    bench.server.entries_take_s = 2.0
    for _ in range(8):
        await bench.poller.poll()
        bench.clock.advance(10)
    assert bench.server.calls.count("agents") == 8
    assert bench.server.calls.count("entries") == 2
    assert bench.snapshot.entries_ns < bench.snapshot.agents_ns


async def test_entries_are_listed_within_five_minutes_however_long_it_takes() -> None:
    bench = Bench()
    bench.server.entries_take_s = 25.0
    await bench.poller.poll()
    first = bench.snapshot.entries_ns
    while bench.snapshot.entries_ns == first:
        bench.clock.advance(10)
        assert bench.clock.boottime_ns() - first <= 300 * S
        await bench.poller.poll()


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (SpireServerError(SpireFailure.DENIED, "no"), SpireFailure.DENIED),
        (SpireServerError(SpireFailure.UNREACHABLE, "gone"), SpireFailure.UNREACHABLE),
    ],
)
async def test_a_failure_keeps_the_last_snapshot_and_dials_anew(
    error: SpireServerError, failure: SpireFailure
) -> None:
    bench = Bench()
    await bench.poller.poll()
    before = bench.snapshot
    bench.server.error = error
    assert not await bench.poller.poll()
    assert (bench.snapshot, bench.poller.trouble) == (before, error)
    assert bench.observer.seen[1:] == [failure]
    bench.server.error = None
    assert await bench.poller.poll()
    assert bench.poller.trouble is None
    assert (bench.dialed, bench.closed) == ([1, 1], [1])


async def test_a_failed_first_question_leaves_no_connection() -> None:
    bench = Bench()
    bench.server.error = SpireServerError(SpireFailure.UNREACHABLE, "gone")
    assert not await bench.poller.poll()
    assert (bench.dialed, bench.closed) == ([1], [1])
    assert not bench.poller.answered.is_set()


async def test_a_server_that_never_finishes_is_given_up() -> None:
    bench = Bench(listing_s=0.05)
    await bench.poller.poll()
    bench.server.hangs = True
    assert not await bench.poller.poll()
    assert bench.observer.seen[-1] is SpireFailure.SLOW
    bench.poller.ask_about(parse_spiffe_id(PEER))
    assert not await bench.poller.look_at_newcomers()


async def test_a_new_svid_is_a_new_connection_and_none_is_a_failure() -> None:
    bench = Bench()
    await bench.poller.poll()
    bench.svids.put(bench.ca.svid(CONTROLLER))
    await bench.poller.poll()
    assert len(set(bench.dialed)) == 2
    assert bench.closed == bench.dialed[:1]
    bench.svids.put(None)
    assert not await bench.poller.poll()
    assert bench.observer.seen[-1] is SpireFailure.NO_SVID


async def test_more_rights_than_needed_are_told_once_per_connection() -> None:
    bench = Bench()
    bench.server.admin = True
    await bench.poller.poll()
    await bench.poller.poll()
    assert bench.poller.excessive
    assert bench.observer.seen.count("excessive") == 1


class TestNewcomers:
    async def test_their_entries_and_agents_correct_the_snapshot(self) -> None:
        bench = Bench()
        bench.server.known_agents, bench.server.known_entries = {}, {}
        await bench.poller.poll()
        taken = bench.snapshot
        bench.server.known_agents = {PARENT: spire_agent()}
        bench.server.known_entries = {PEER: (spire_entry(),)}
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert await bench.poller.look_at_newcomers()
        assert bench.snapshot == replace(
            taken, agents={PARENT: spire_agent()}, entries={PEER: (spire_entry(),)}
        )
        assert not await bench.poller.look_at_newcomers()

    async def test_what_is_really_absent_stays_absent(self) -> None:
        bench = Bench()
        await bench.poller.poll()
        bench.server.known_entries = {}
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert await bench.poller.look_at_newcomers()
        assert bench.snapshot.entries == {}

    async def test_nothing_is_asked_before_the_first_snapshot(self) -> None:
        bench = Bench()
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert not await bench.poller.look_at_newcomers()
        assert bench.server.calls == []

    async def test_a_failure_is_left_to_the_next_poll(self) -> None:
        bench = Bench()
        await bench.poller.poll()
        before = bench.snapshot
        bench.server.error = SpireServerError(SpireFailure.SLOW, "slow")
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert not await bench.poller.look_at_newcomers()
        assert bench.snapshot is before

    async def test_a_crowd_is_left_to_the_next_poll_and_bounded(self) -> None:
        bench = Bench(poll_s=3600.0)
        polls = asyncio.Event()

        async def changed() -> None:
            if bench.server.calls.count("agents") == 2:
                polls.set()

        task = asyncio.create_task(bench.poller.follow(changed))
        try:
            async with asyncio.timeout(10):
                await bench.poller.answered.wait()
                for number in range(MAX_NEWCOMERS + 100):
                    bench.poller.ask_about(parse_spiffe_id(f"{OURS}agent/n{number}"))
                await polls.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not any(call.startswith("entries of") for call in bench.server.calls)


class TestFollow:
    async def test_it_polls_tells_of_each_snapshot_and_disconnects_at_the_end(self) -> None:
        bench = Bench(poll_s=0.01)
        told: list[SpireSnapshot | None] = []
        enough = asyncio.Event()

        async def changed() -> None:
            told.append(bench.poller.snapshot)
            if len(told) == 3:
                enough.set()

        task = asyncio.create_task(bench.poller.follow(changed))
        async with asyncio.timeout(10):
            await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert told[0] is not None
        assert bench.closed == bench.dialed

    async def test_a_newcomer_is_looked_at_between_two_polls(self) -> None:
        bench = Bench(poll_s=3600.0)
        bench.server.known_entries = {}
        told = asyncio.Event()

        async def changed() -> None:
            if PEER in bench.snapshot.entries:
                told.set()

        task = asyncio.create_task(bench.poller.follow(changed))
        try:
            async with asyncio.timeout(10):
                await bench.poller.answered.wait()
                bench.server.known_entries = {PEER: (spire_entry(),)}
                bench.poller.ask_about(parse_spiffe_id(PEER))
                await told.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert bench.server.calls.count("agents") == 1

    async def test_failures_are_followed_by_sooner_polls_that_back_off_to_the_interval(
        self,
    ) -> None:
        bench = Bench(poll_s=10.0)
        await bench.poller.poll()
        assert bench.poller._pause() == pytest.approx(9.0)
        bench.jitter = 1.0
        assert bench.poller._pause() == pytest.approx(10.0)
        bench.server.error = SpireServerError(SpireFailure.UNREACHABLE, "gone")
        pauses = []
        for _ in range(8):
            await bench.poller.poll()
            pauses.append(bench.poller._pause())
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
        bench.jitter = 0.0
        assert bench.poller._pause() == pytest.approx(5.0)
