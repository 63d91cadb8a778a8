import asyncio
from dataclasses import dataclass, field, replace

import pytest

from controller.fleet.attestation_result import Refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import FleetSnapshot, NodeView
from controller.policy import DEFAULT_POLICY, Level
from controller.spire.client import SpireFailure, SpireServerError
from controller.spire.poller import (
    MAX_NEWCOMERS,
    SLICE,
    Revocation,
)
from controller.spire.snapshot import SpireSnapshot
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from tests.builders.node_views import acceptance, fleet_of, node_view, past_refusal
from tests.builders.spire import (
    CONTROLLER,
    NOW_NS,
    PARENT,
    PEER,
    TD,
    S,
    spire_agent,
    spire_entry,
)
from tests.fakes.spire_polls import OURS, PollBench
from tests.hang import HANG_S

# --- The poller: what it keeps, what a failure changes, when it asks again


async def test_a_poll_takes_entries_before_agents_and_says_when_it_asked() -> None:
    bench = PollBench()
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
    bench = PollBench()
    bench.server.entries_take_s = 2.0
    for _ in range(8):
        await bench.poller.poll()
        bench.clock.advance(10)
    assert bench.server.calls.count("agents") == 8
    assert bench.server.calls.count("entries") == 2
    assert bench.snapshot.entries_ns < bench.snapshot.agents_ns


async def test_entries_are_listed_within_five_minutes_however_long_it_takes() -> None:
    bench = PollBench()
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
    bench = PollBench()
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
    bench = PollBench()
    bench.server.error = SpireServerError(SpireFailure.UNREACHABLE, "gone")
    assert not await bench.poller.poll()
    assert (bench.dialed, bench.closed) == ([1], [1])
    assert not bench.poller.answered.is_set()


async def test_a_server_that_never_finishes_is_given_up() -> None:
    bench = PollBench(listing_s=0.05)
    await bench.poller.poll()
    bench.server.hangs = True
    assert not await bench.poller.poll()
    assert bench.observer.seen[-1] is SpireFailure.SLOW
    bench.poller.ask_about(parse_spiffe_id(PEER))
    assert not await bench.poller.ask_about_newcomers()


async def test_a_new_svid_is_a_new_connection_and_none_is_a_failure() -> None:
    bench = PollBench()
    await bench.poller.poll()
    bench.svids.put(bench.ca.svid(CONTROLLER))
    await bench.poller.poll()
    assert len(set(bench.dialed)) == 2
    assert bench.closed == bench.dialed[:1]
    bench.svids.put(None)
    assert not await bench.poller.poll()
    assert bench.observer.seen[-1] is SpireFailure.NO_SVID


async def test_more_rights_than_needed_are_reported_once_per_connection() -> None:
    bench = PollBench()
    bench.server.admin = True
    await bench.poller.poll()
    await bench.poller.poll()
    assert bench.poller.excessive
    assert bench.observer.seen.count("excessive") == 1


class TestNewcomers:
    async def test_their_entries_and_agents_correct_the_snapshot(self) -> None:
        bench = PollBench()
        bench.server.known_agents, bench.server.known_entries = {}, {}
        await bench.poller.poll()
        taken = bench.snapshot
        bench.server.known_agents = {PARENT: spire_agent()}
        bench.server.known_entries = {PEER: (spire_entry(),)}
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert await bench.poller.ask_about_newcomers()
        assert bench.snapshot == replace(
            taken, agents={PARENT: spire_agent()}, entries={PEER: (spire_entry(),)}
        )
        assert not await bench.poller.ask_about_newcomers()

    async def test_what_is_really_absent_stays_absent(self) -> None:
        bench = PollBench()
        await bench.poller.poll()
        bench.server.known_entries = {}
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert await bench.poller.ask_about_newcomers()
        assert bench.snapshot.entries == {}

    async def test_nothing_is_asked_before_the_first_snapshot(self) -> None:
        bench = PollBench()
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert not await bench.poller.ask_about_newcomers()
        assert bench.server.calls == []

    async def test_a_failure_is_left_to_the_next_poll(self) -> None:
        bench = PollBench()
        await bench.poller.poll()
        before = bench.snapshot
        bench.server.error = SpireServerError(SpireFailure.SLOW, "slow")
        bench.poller.ask_about(parse_spiffe_id(PEER))
        assert not await bench.poller.ask_about_newcomers()
        assert bench.snapshot is before

    async def test_a_crowd_is_left_to_the_next_poll_and_bounded(self) -> None:
        bench = PollBench(poll_s=3600.0)
        polls = asyncio.Event()

        async def changed() -> None:
            if bench.server.calls.count("agents") == 2:
                polls.set()

        task = asyncio.create_task(bench.poller.follow(changed))
        try:
            async with asyncio.timeout(HANG_S):
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
        bench = PollBench(poll_s=0.01)
        told: list[SpireSnapshot | None] = []
        enough = asyncio.Event()

        async def changed() -> None:
            told.append(bench.poller.snapshot)
            if len(told) == 3:
                enough.set()

        task = asyncio.create_task(bench.poller.follow(changed))
        async with asyncio.timeout(HANG_S):
            await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert told[0] is not None
        assert bench.closed == bench.dialed

    async def test_a_newcomer_is_looked_at_between_two_polls(self) -> None:
        bench = PollBench(poll_s=3600.0)
        bench.server.known_entries = {}
        told = asyncio.Event()

        async def changed() -> None:
            if PEER in bench.snapshot.entries:
                told.set()

        task = asyncio.create_task(bench.poller.follow(changed))
        try:
            async with asyncio.timeout(HANG_S):
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
        bench = PollBench(poll_s=10.0)
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
            fleet=self.snapshot,
            directory=Directory(),
            policy=lambda: DEFAULT_POLICY,
            boottime_ns=lambda: NOW_NS,
            refuse=self.refuse,
            end_streams=self.end_node,
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
