"""Polls the SPIRE server at the set interval, and carries out what a new snapshot takes away."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from controller.fleet.attestation_result import Refused, refused
from controller.fleet.directory import NodeDirectory
from controller.fleet.view import FleetSnapshot
from controller.policy import Policy
from controller.spire.client import SpireFailure, SpireServerClient, SpireServerError
from controller.spire.snapshot import SpireSnapshot
from controller.spire.verification import ENTRIES_AGE_NS
from controller.verifier.context import SpireFacts, SpireQuestion
from gpuwarden.identity.spiffe_id import SpiffeId, agent_id
from gpuwarden.identity.svid import Svid, SvidSource
from gpuwarden.moment import NS_PER_S, Moment
from gpuwarden.reasons import Effect, Refusal

FIRST_RETRY_S: Final = 0.25
LISTING_S: Final = 30.0
"""Of a whole poll, however many pages it has."""
GAP_S: Final = 0.5
"""Between two looks at newcomers."""
MAX_NEWCOMERS: Final = 32
"""More of them at a time are left to the next poll, which comes at once then."""
SLICE: Final = 200
"""Nodes that revocation checks before others get their turn: about a millisecond."""
ENTRIES_SHARE: Final = 20
"""Entries are listed for one part in this of the time at most."""


class PollObserver(Protocol):
    """Records polls (`controller.recorders`). Must return at once."""

    def taken(self, before: SpireSnapshot | None, after: SpireSnapshot, seconds: float) -> None:
        """A whole snapshot was taken."""

    def failed(self, failure: SpireFailure, text: str) -> None:
        """A poll failed; the last snapshot stays."""

    def excessive(self) -> None:
        """The server lets us do more than read."""


class SpirePoller:
    """Keeps the snapshot: polls at the set interval, and asks about newcomers in between.

    A poll that fails changes nothing: the last snapshot gets older until it no longer counts.
    After a failure the connection is made again and the next poll follows sooner, with jitter, at
    the interval at the latest. A new SVID is a new connection. One for the process; one event
    loop.
    """

    def __init__(
        self,
        dial: Callable[[Svid], AbstractAsyncContextManager[SpireServerClient]],
        *,
        svids: SvidSource,
        moment: Callable[[], Moment],
        jitter: Callable[[], float],
        observer: PollObserver,
        beginning: str,
        poll_s: float,
        listing_s: float = LISTING_S,
    ) -> None:
        """`beginning` of the SPIFFE IDs whose entries are kept; `poll_s` from poll to poll.

        `jitter` draws from [0, 1).
        """
        self.snapshot: SpireSnapshot | None = None
        """The last one."""
        self.trouble: SpireServerError | None = None
        """Why the last poll failed; None after one that succeeded."""
        self.answered = asyncio.Event()
        """Set with the first snapshot."""
        self.excessive = False
        """Whether the server lets us do more than read."""
        self._dial = dial
        self._svids = svids
        self._moment = moment
        self._jitter = jitter
        self._observer = observer
        self._beginning = beginning
        self._poll_s = poll_s
        self._listing_s = listing_s
        self._link: tuple[int, SpireServerClient, AsyncExitStack] | None = None
        self._failures = 0
        self._entries_due_ns = 0
        self._newcomers: dict[str, SpiffeId] = {}
        self._wake = asyncio.Event()

    async def await_snapshot(self, seconds: float) -> None:
        """Wait a little for the first snapshot, so that agents need not come twice."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.answered.wait()

    def age_s(self, now_ns: int) -> float:
        """Age of the last snapshot, seconds; 0 where there is none."""
        return 0.0 if self.snapshot is None else (now_ns - self.snapshot.agents_ns) / NS_PER_S

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
                while await self._wait_until(until):
                    if len(self._newcomers) > MAX_NEWCOMERS:
                        break
                    if await self.ask_about_newcomers():
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
        self._observer.taken(before, after, loop.time() - begin)
        return True

    async def ask_about_newcomers(self) -> bool:
        """Ask about single identities; whether that corrected the snapshot."""
        newcomers, self._newcomers = list(self._newcomers.values()), {}
        if self.snapshot is None or not newcomers:
            return False
        try:
            async with asyncio.timeout(self._listing_s):
                server, moment = await self._server(), self._moment()
                entries = {str(x): await server.entries_of(x, moment) for x in newcomers}
                parents = sorted({y.parent_id for x in entries.values() for y in x})
                agents = {x: await server.agent(x, moment) for x in parents}
        except (TimeoutError, SpireServerError):
            return False  # the next poll tells, and it comes soon
        self.snapshot = self.snapshot.with_answer(entries, agents)
        return True

    async def _snapshot(self, server: SpireServerClient) -> SpireSnapshot:
        """Entries before agents: an entry's agent was there before it."""
        now, before = self._moment(), self.snapshot
        if before is None or now.boottime_ns >= self._entries_due_ns:
            entries, entries_ns = await server.entries(self._beginning, now), now.boottime_ns
            spent_ns = self._moment().boottime_ns - entries_ns
            pause_ns = min(spent_ns * ENTRIES_SHARE, ENTRIES_AGE_NS - int(self._poll_s * NS_PER_S))
            self._entries_due_ns = entries_ns + pause_ns
        else:
            entries, entries_ns = before.entries, before.entries_ns
        asked = self._moment()
        agents = await server.agents(asked)
        return SpireSnapshot(agents, asked.boottime_ns, entries, entries_ns)

    async def _server(self) -> SpireServerClient:
        """The connection under the SVID of now."""
        svid = self._svids.current()
        if svid is None:
            raise SpireServerError(SpireFailure.NO_SVID, self._svids.state())
        if self._link is not None and self._link[0] == svid.generation:
            return self._link[1]
        await self._disconnect()
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(self._dial(svid))
            self.excessive = await server.may_do_more()
            self._link = svid.generation, server, stack.pop_all()
        if self.excessive:
            self._observer.excessive()
        return server

    async def _fail(self, error: SpireServerError) -> None:
        self.trouble = error
        self._failures += 1
        self._observer.failed(error.failure, str(error))
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._link is not None:
            _, _, stack = self._link
            self._link = None
            await stack.aclose()

    def _pause(self) -> float:
        """From the begin of one poll to the next: never longer than the interval."""
        if not self._failures:
            return self._poll_s * (0.9 + 0.1 * self._jitter())
        longest = min(self._poll_s, FIRST_RETRY_S * 2.0 ** min(self._failures, 16))
        return longest * (0.5 + 0.5 * self._jitter())

    async def _wait_until(self, until: float) -> bool:
        """Wait until that time of the loop; True as soon as somebody asks."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Ends at once the trust that a new snapshot takes away, without waiting for new evidence.

    Each node that is trusted now is checked again by steps 7 to 9. A refusal that revokes ends its
    trust and its streams. A transient one is left to the node's next evidence. One for the process.
    """

    trust_domain: str
    path_prefix: str
    spire: SpireFacts
    fleet: Callable[[], FleetSnapshot]
    directory: NodeDirectory
    policy: Callable[[], Policy]
    boottime_ns: Callable[[], int]
    refuse: Callable[[Refused, str], Awaitable[None]]
    """Carries a refusal of a peer out: trust has ended when it returns."""
    end_streams: Callable[[str, Refusal], None]
    """Ends every stream of a node."""

    async def carry_out(self) -> None:
        """Check every node that is trusted now."""
        for number, (name, view) in enumerate(self.fleet().nodes.items(), 1):
            if view.acceptance is not None and view.blocked is None:
                await self._check(name)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def _check(self, name: str) -> None:
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
        await self.refuse(found, str(peer))
        self.end_streams(name, refusal)

    def _refusal(self, question: SpireQuestion) -> Refusal | None:
        if refusal := self.spire.entry(question):
            return refusal
        found = self.spire.agent(question)
        return found if isinstance(found, Refusal) else self.spire.image(question)
