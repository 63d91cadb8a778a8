import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from controller.fleet.attestation_result import Refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import FleetSnapshot, NodeView
from controller.policy import DEFAULT_POLICY, Level
from controller.spire.client import SpireFailure, SpireServerError
from controller.spire.judgement import ADMIN_WARNING, CAPPED, NO_SPIRE_SERVER
from controller.spire.poller import (
    LISTING_S,
    MAX_NEWCOMERS,
    SLICE,
    LiveSpireFacts,
    PollPorts,
    Revocation,
    SpirePoller,
)
from controller.spire.snapshot import Entries, SpireAgent, SpireEntry, SpireSnapshot
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.identity.spiffe_id import SpiffeId, parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.moment import Moment
from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import Scene
from tests.builders.node_views import acceptance, fleet_of, node_view, past_refusal
from tests.builders.spire import (
    CONTROLLER,
    LIMITS,
    NOW_NS,
    PARENT,
    PEER,
    TD,
    S,
    spire_agent,
    spire_entry,
    spire_question,
    spire_snapshot,
)
from tests.builders.svids import FakeSvidSource
from tests.fakes.clock import FakeClock

# --- The poller: what it keeps, what a failure changes, when it asks again

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
                moment=self.clock.now,
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
async def test_a_failure_keeps_the_last_snapshot_and_dials_again(
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


# --- A new snapshot takes trust away without waiting for evidence, and only trust that is there


@dataclass
class Answers:
    """What steps 7 to 9 say per node; L1 where nothing is said."""

    refusals: dict[str, ReasonCode] = field(default_factory=dict)
    asked: list[SpireQuestion] = field(default_factory=list)

    def entry(self, question: SpireQuestion) -> Refusal | None:
        self.asked.append(question)
        return self._at(question, 7)

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        return self._at(question, 8) or Standing(Level.L1, "k8s_psat", "agent")

    def image(self, question: SpireQuestion) -> Refusal | None:
        return self._at(question, 9)

    def _at(self, question: SpireQuestion, step: int) -> Refusal | None:
        code = self.refusals.get(question.node_name)
        return Refusal(code, "because") if code and STEP_OF[code] == step else None


@dataclass
class RevocationBench:
    fleet: FleetSnapshot
    spire: Answers = field(default_factory=Answers)
    known: dict[str, KnownNode] = field(default_factory=dict)
    refused: list[tuple[Refused, str]] = field(default_factory=list)
    ended: list[tuple[str, Refusal]] = field(default_factory=list)

    def snapshot(self) -> FleetSnapshot:
        return self.fleet

    async def refuse(self, refusal: Refused, peer: str, /) -> None:
        self.refused.append((refusal, peer))

    def end_node(self, node: str, refusal: Refusal, /) -> None:
        assert self.refused[-1][0].node == node, "trust ends before the streams do"
        self.ended.append((node, refusal))

    async def carry_out(self) -> None:
        bench = self

        class Directory:
            def snapshot(self) -> DirectorySnapshot:
                return DirectorySnapshot(bench.known)

            def warning(self) -> str | None:
                return None

        await Revocation(
            trust_domain=TD,
            path_prefix="/gpuwarden",
            spire=self.spire,
            fleet=self,
            directory=Directory(),
            policy=lambda: DEFAULT_POLICY,
            boottime_ns=lambda: NOW_NS,
            refuser=self,
            streams=self,
        ).carry_out()


def trusted(name: str) -> NodeView:
    return node_view(name, acceptance=acceptance())


async def test_each_trusted_node_is_judged_as_itself() -> None:
    known = {"gpu-1": KnownNode("uid-1"), "gpu-2": KnownNode("uid-2")}
    bench = RevocationBench(fleet_of(trusted("gpu-1"), trusted("gpu-2")), known=known)
    await bench.carry_out()
    assert [(str(x.peer), x.node_name, x.node) for x in bench.spire.asked] == [
        (f"spiffe://{TD}/gpuwarden/agent/{name}", name, node) for name, node in known.items()
    ]
    assert (bench.refused, bench.ended) == ([], [])


async def test_a_refusal_of_any_of_the_steps_revokes_and_ends_the_streams() -> None:
    codes = {
        "gpu-1": ReasonCode.SPIRE_ENTRY_NOT_FOUND,
        "gpu-2": ReasonCode.SPIRE_AGENT_BANNED,
        "gpu-3": ReasonCode.AGENT_IMAGE_DENIED,
    }
    bench = RevocationBench(
        fleet_of(*map(trusted, ("gpu-0", *codes))),
        Answers(dict(codes)),
        {name: KnownNode() for name in ("gpu-0", *codes)},
    )
    await bench.carry_out()
    assert {x.node: x.code for x, _ in bench.refused} == codes
    assert {peer for _, peer in bench.refused} == {
        f"spiffe://{TD}/gpuwarden/agent/{name}" for name in codes
    }
    assert {node: x.code for node, x in bench.ended} == codes


async def test_a_transient_refusal_is_left_to_the_next_evidence() -> None:
    bench = RevocationBench(
        fleet_of(trusted("gpu-1")),
        Answers({"gpu-1": ReasonCode.SPIRE_STATUS_STALE}),
        {"gpu-1": KnownNode()},
    )
    await bench.carry_out()
    assert (bench.refused, bench.ended) == ([], [])


async def test_nodes_that_are_not_trusted_now_are_not_judged() -> None:
    blocked = node_view(
        "gpu-1", acceptance=acceptance(), blocked=past_refusal(ReasonCode.SPIRE_AGENT_BANNED)
    )
    never, unknown = node_view("gpu-2", acceptance=None), trusted("gone")
    known = {"gpu-1": KnownNode(), "gpu-2": KnownNode()}
    bench = RevocationBench(fleet_of(blocked, never, unknown), known=known)
    await bench.carry_out()
    assert bench.spire.asked == []


async def test_a_large_fleet_is_judged_whole_in_slices() -> None:
    names = [f"gpu-{number}" for number in range(2 * SLICE + 1)]
    bench = RevocationBench(
        fleet_of(*map(trusted, names)),
        Answers(dict.fromkeys(names[-1:], ReasonCode.SPIRE_AGENT_BANNED)),
        {name: KnownNode() for name in names},
    )
    await bench.carry_out()
    assert len(bench.spire.asked) == len(names)
    assert [node for node, _ in bench.ended] == names[-1:]


# --- The snapshot as the Verifier and readiness see it, and what is asked for afterwards

GONE = SpireServerError(SpireFailure.UNREACHABLE, "connection refused")


async def facts(snapshot: SpireSnapshot | None) -> tuple[LiveSpireFacts, Bench]:
    bench = Bench()
    bench.poller.snapshot = snapshot
    return LiveSpireFacts(bench.poller, LIMITS, CONTROLLER), bench


async def test_before_the_first_answer_nothing_is_decided_and_nothing_is_revoked() -> None:
    found, _ = await facts(None)
    question = spire_question()
    for refusal in (found.entry(question), found.agent(question), found.image(question)):
        assert isinstance(refusal, Refusal)
        assert refusal.code is ReasonCode.SPIRE_UNAVAILABLE


async def test_the_three_steps_answer_from_the_snapshot_of_now() -> None:
    found, bench = await facts(spire_snapshot())
    question = spire_question()
    assert found.entry(question) is None
    assert found.agent(question) == Standing(Level.L1, "k8s_psat", PARENT)
    assert found.image(question) is None
    bench.poller.snapshot = spire_snapshot(spire_agent(banned=True))
    refusal = found.agent(question)
    assert isinstance(refusal, Refusal)
    assert refusal.code is ReasonCode.SPIRE_AGENT_BANNED
    assert bench.poller._newcomers == {}


@pytest.mark.parametrize(
    "snapshot",
    [
        spire_snapshot(entries={}),
        replace(spire_snapshot(), agents={}),
        spire_snapshot(spire_agent(expires_ns=NOW_NS)),
    ],
)
async def test_what_is_missing_is_asked_for(snapshot: SpireSnapshot) -> None:
    found, bench = await facts(snapshot)
    question = spire_question()
    refusal = found.entry(question) or found.agent(question)
    assert isinstance(refusal, Refusal)
    assert list(bench.poller._newcomers) == [PEER]


class TestCondition:
    OWN: ClassVar[dict[str, tuple[SpireEntry, ...]]] = {CONTROLLER: (spire_entry(),)}

    async def test_no_answer_yet_says_why(self) -> None:
        found, bench = await facts(None)
        assert found.condition(NOW_NS).error == "the SPIRE server was not asked yet"
        bench.poller.trouble = GONE
        assert found.condition(NOW_NS).error == "unreachable: connection refused"

    async def test_a_failing_server_is_a_warning_until_its_last_answer_is_stale(self) -> None:
        found, bench = await facts(spire_snapshot(entries=self.OWN))
        assert found.condition(NOW_NS) == type(found.condition(NOW_NS))()
        bench.poller.trouble = GONE
        warned = found.condition(NOW_NS)
        assert warned.error is None
        assert warned.warnings == (
            "SPIRE server: unreachable: connection refused; its last answer counts for now",
        )
        later = found.condition(NOW_NS + 299 * S)
        assert later.error == (
            "the SPIRE server's last answer is 300 s old: unreachable: connection refused"
        )
        bench.poller.trouble = None
        assert found.condition(NOW_NS + 299 * S).error == (
            "the SPIRE server's last answer is 300 s old"
        )

    async def test_the_own_agent_and_too_many_rights(self) -> None:
        found, bench = await facts(spire_snapshot(spire_agent(banned=True), entries=self.OWN))
        assert found.condition(NOW_NS).error == f"own SPIRE agent: {PARENT} is banned"
        bench.poller.snapshot = spire_snapshot(entries={CONTROLLER: (spire_entry(admin=True),)})
        bench.poller.excessive = True
        assert found.condition(NOW_NS).warnings == (ADMIN_WARNING,)


def test_without_a_spire_server_the_level_is_capped_and_says_so() -> None:
    condition = NO_SPIRE_SERVER.condition(NOW_NS)
    assert (condition.error, condition.warnings) == (None, (CAPPED,))
    assert Scene().accepted().level is Level.L0
