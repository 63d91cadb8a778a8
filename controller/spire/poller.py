"""Poller.

Holds: poller, revocation, facts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from controller.fleet.attestation_result import Refused, refused
from controller.fleet.directory import NodeDirectory
from controller.fleet.view import FleetSnapshot
from controller.policy import Policy
from controller.spire.client import SpireFailure, SpireServerError
from controller.spire.judgement import (
    ADMIN_WARNING,
    ENTRIES_AGE_NS,
    NEVER,
    SpireCondition,
    SpireLimits,
    agent_standing,
    entry_refusal,
    image_refusal,
    own_standing,
    stale,
)
from controller.spire.snapshot import Entries, SpireAgent, SpireEntry, SpireSnapshot
from controller.verifier.context import SpireFacts, SpireQuestion, Standing
from gpuwarden.identity.spiffe_id import SpiffeId, agent_id
from gpuwarden.identity.svid import Svid, SvidSource
from gpuwarden.moment import NS_PER_S, Moment
from gpuwarden.reasons import Effect, ReasonCode, Refusal

# --- poller
# Keeps the snapshot: asks the SPIRE server at the set interval, and in between about newcomers.
#
# A poll that fails changes nothing: the last snapshot gets older until it no longer counts.
# After a failure the connection is made again and the next poll follows sooner, with jitter,
# at the interval at the latest. A new SVID is a new connection. It judges nothing.

FIRST_RETRY_S: Final = 0.25
LISTING_S: Final = 30.0
"""Of a whole poll, however many pages it has."""
GAP_S: Final = 0.5
"""Between two looks at newcomers."""
MAX_NEWCOMERS: Final = 32
"""More of them at a time are left to the next poll, which comes at once then."""
ENTRIES_SHARE: Final = 20
"""Entries are listed for one part in this of the time at most."""


class SpireServer(Protocol):
    """The calls of one connection; each raises SpireServerError."""

    async def agents(self, moment: Moment, /) -> dict[str, SpireAgent]:
        """Every attested agent by SPIFFE ID."""

    async def entries(self, beginning: str, moment: Moment, /) -> Entries:
        """The registration entries of every SPIFFE ID with that beginning."""

    async def entries_of(self, spiffe_id: SpiffeId, moment: Moment, /) -> tuple[SpireEntry, ...]:
        """The registration entries of one SPIFFE ID."""

    async def agent(self, agent_id: str, moment: Moment, /) -> SpireAgent | None:
        """One agent, None where there is none."""

    async def may_do_more(self) -> bool:
        """Whether the server lets us call what we never need."""


class PollObserver(Protocol):
    """Is told about polls. Must return at once."""

    def taken(self, before: SpireSnapshot | None, after: SpireSnapshot, seconds: float) -> None:
        """A whole snapshot was taken."""

    def failed(self, failure: SpireFailure, text: str) -> None:
        """A poll failed; the last snapshot stays."""

    def excessive(self) -> None:
        """The server lets us do more than read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPorts:
    """What a poller works with."""

    dial: Callable[[Svid], AbstractAsyncContextManager[SpireServer]]
    svids: SvidSource
    moment: Callable[[], Moment]
    jitter: Callable[[], float]
    """Uniform in [0, 1)."""
    observer: PollObserver


class SpirePoller:
    """One for the process; one event loop."""

    def __init__(
        self, ports: PollPorts, *, beginning: str, poll_s: float, listing_s: float = LISTING_S
    ) -> None:
        """`beginning` of the SPIFFE IDs whose entries are kept; `poll_s` from poll to poll."""
        self.snapshot: SpireSnapshot | None = None
        """The last one."""
        self.trouble: SpireServerError | None = None
        """Why the last poll failed; None after one that succeeded."""
        self.answered = asyncio.Event()
        """Set with the first snapshot."""
        self.excessive = False
        """Whether the server lets us do more than read."""
        self._ports = ports
        self._beginning = beginning
        self._poll_s = poll_s
        self._listing_s = listing_s
        self._link: tuple[int, SpireServer, AsyncExitStack] | None = None
        self._failures = 0
        self._entries_due_ns = 0
        self._newcomers: dict[str, SpiffeId] = {}
        self._wake = asyncio.Event()

    def ask_about(self, spiffe_id: SpiffeId) -> None:
        """The snapshot lacks something about this identity: ask about it soon."""
        if len(self._newcomers) <= MAX_NEWCOMERS:
            self._newcomers[str(spiffe_id)] = spiffe_id
            self._wake.set()

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Poll forever; `changed` is awaited after each snapshot, corrections included."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                begin = loop.time()
                if await self.poll():
                    await changed()
                until = begin + self._pause()
                while await self._woken(until):
                    if len(self._newcomers) > MAX_NEWCOMERS:
                        break
                    if await self.look_at_newcomers():
                        await changed()
                    await asyncio.sleep(GAP_S)
        finally:
            await self._disconnect()

    async def poll(self) -> bool:
        """Take a whole snapshot; whether that worked."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._newcomers.clear()
        try:
            async with asyncio.timeout(self._listing_s):
                after = await self._snapshot(await self._server())
        except TimeoutError:
            await self._fail(
                SpireServerError(SpireFailure.SLOW, f"no whole answer within {self._listing_s} s")
            )
            return False
        except SpireServerError as error:
            await self._fail(error)
            return False
        before, self.snapshot = self.snapshot, after
        self.trouble, self._failures = None, 0
        self.answered.set()
        self._ports.observer.taken(before, after, loop.time() - begin)
        return True

    async def look_at_newcomers(self) -> bool:
        """Ask about single identities; whether that corrected the snapshot."""
        newcomers, self._newcomers = list(self._newcomers.values()), {}
        if self.snapshot is None or not newcomers:
            return False
        try:
            async with asyncio.timeout(self._listing_s):
                server, moment = await self._server(), self._ports.moment()
                entries = {str(x): await server.entries_of(x, moment) for x in newcomers}
                parents = sorted({y.parent_id for x in entries.values() for y in x})
                agents = {x: await server.agent(x, moment) for x in parents}
        except (TimeoutError, SpireServerError):
            return False  # the next poll tells, and it comes soon
        self.snapshot = self.snapshot.with_answer(entries, agents)
        return True

    async def _snapshot(self, server: SpireServer) -> SpireSnapshot:
        """Entries before agents: an entry's agent was there before it."""
        now, before = self._ports.moment(), self.snapshot
        if before is None or now.boottime_ns >= self._entries_due_ns:
            entries, entries_ns = await server.entries(self._beginning, now), now.boottime_ns
            spent_ns = self._ports.moment().boottime_ns - entries_ns
            pause_ns = min(spent_ns * ENTRIES_SHARE, ENTRIES_AGE_NS - int(self._poll_s * NS_PER_S))
            self._entries_due_ns = entries_ns + pause_ns
        else:
            entries, entries_ns = before.entries, before.entries_ns
        asked = self._ports.moment()
        agents = await server.agents(asked)
        return SpireSnapshot(agents, asked.boottime_ns, entries, entries_ns)

    async def _server(self) -> SpireServer:
        """The connection under the SVID of now."""
        svid = self._ports.svids.current()
        if svid is None:
            raise SpireServerError(SpireFailure.NO_SVID, self._ports.svids.state())
        if self._link is not None and self._link[0] == svid.generation:
            return self._link[1]
        await self._disconnect()
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(self._ports.dial(svid))
            self.excessive = await server.may_do_more()
            self._link = svid.generation, server, stack.pop_all()
        if self.excessive:
            self._ports.observer.excessive()
        return server

    async def _fail(self, error: SpireServerError) -> None:
        self.trouble = error
        self._failures += 1
        self._ports.observer.failed(error.failure, str(error))
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._link is not None:
            _, _, stack = self._link
            self._link = None
            await stack.aclose()

    def _pause(self) -> float:
        """From the begin of one poll to the next: never longer than the interval."""
        if not self._failures:
            return self._poll_s * (0.9 + 0.1 * self._ports.jitter())
        longest = min(self._poll_s, FIRST_RETRY_S * 2.0 ** min(self._failures, 16))
        return longest * (0.5 + 0.5 * self._ports.jitter())

    async def _woken(self, until: float) -> bool:
        """Wait until that time of the loop; True as soon as somebody asks."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True


# --- revocation
# Carries out what a new snapshot takes away, without waiting for the next evidence.
#
# Each node that is trusted now is judged again by steps 7 to 9; a refusal that revokes ends
# its trust and its streams. One that is transient is left to the node's next evidence.

SLICE: Final = 200
"""Nodes judged before others get their turn: about a millisecond."""


class Fleet(Protocol):
    """The nodes that are trusted."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""


class Refuser(Protocol):
    """Carries a refusal out: registry, audit, metrics."""

    async def refuse(self, refusal: Refused, peer: str, /) -> None:
        """Trust is gone when this returns."""


class OpenStreams(Protocol):
    """The open streams."""

    def end_node(self, node: str, refusal: Refusal, /) -> None:
        """End every stream of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """One for the process."""

    trust_domain: str
    path_prefix: str
    spire: SpireFacts
    fleet: Fleet
    directory: NodeDirectory
    policy: Callable[[], Policy]
    boottime_ns: Callable[[], int]
    refuser: Refuser
    streams: OpenStreams

    async def carry_out(self) -> None:
        """Judge every node that is trusted now."""
        for number, (name, view) in enumerate(self.fleet.snapshot().nodes.items(), 1):
            if view.acceptance is not None and view.blocked is None:
                await self._judge(name)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def _judge(self, name: str) -> None:
        node = self.directory.snapshot().nodes.get(name)
        if node is None:
            return  # step 6 refuses it
        peer = agent_id(self.trust_domain, self.path_prefix, name)
        question = SpireQuestion(peer, name, node, self.policy(), self.boottime_ns())
        refusal = self._refusal(question)
        if refusal is None:
            return
        found = refused(refusal, name)
        if found.effect is Effect.TRANSIENT:
            return
        await self.refuser.refuse(found, str(peer))
        self.streams.end_node(name, refusal)

    def _refusal(self, question: SpireQuestion) -> Refusal | None:
        if refusal := self.spire.entry(question):
            return refusal
        found = self.spire.agent(question)
        return found if isinstance(found, Refusal) else self.spire.image(question)


# --- facts
# Steps 7 to 9 for the Verifier, from the poller's snapshot; and readiness from the same.
#
# Each question is answered from memory. What is missing in the snapshot is asked for
# afterwards, so that a node that has just been registered need not wait for the next poll.

ABSENT: Final = frozenset(
    {
        ReasonCode.SPIRE_ENTRY_NOT_FOUND,
        ReasonCode.SPIRE_AGENT_NOT_FOUND,
        ReasonCode.SPIRE_AGENT_EXPIRED,
    }
)
"""Refusals that a newer answer about the one node may lift."""


class LiveSpireFacts:
    """A `SpireFacts` over the snapshot of now."""

    def __init__(self, poller: SpirePoller, limits: SpireLimits, own_id: str) -> None:
        self._poller = poller
        self._limits = limits
        self._own_id = own_id

    def entry(self, question: SpireQuestion) -> Refusal | None:
        """Step 7."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return NEVER
        return self._asking(question, entry_refusal(snapshot, self._limits, question))

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        """Step 8."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return NEVER
        found = agent_standing(snapshot, self._limits, question)
        if isinstance(found, Refusal):
            self._asking(question, found)
        return found

    def image(self, question: SpireQuestion) -> Refusal | None:
        """Step 9."""
        snapshot = self._poller.snapshot
        return NEVER if snapshot is None else image_refusal(snapshot, self._limits, question)

    def condition(self, now_ns: int) -> SpireCondition:
        """How the SPIRE server answers, and how this controller itself stands with it."""
        snapshot, trouble = self._poller.snapshot, self._poller.trouble
        if snapshot is None:
            return SpireCondition(str(trouble or "the SPIRE server was not asked yet"))
        if old := stale(snapshot, self._limits, now_ns):
            return SpireCondition(f"{old.detail}: {trouble}" if trouble else old.detail)
        own = own_standing(snapshot, self._limits, now_ns, self._own_id)
        failing = (f"SPIRE server: {trouble}; its last answer counts for now",) if trouble else ()
        excessive = (ADMIN_WARNING,) if self._poller.excessive else ()
        warnings = dict.fromkeys((*failing, *own.warnings, *excessive))
        return SpireCondition(own.error, tuple(warnings))

    def _asking(self, question: SpireQuestion, refusal: Refusal | None) -> Refusal | None:
        if refusal is not None and refusal.code in ABSENT:
            self._poller.ask_about(question.peer)
        return refusal
