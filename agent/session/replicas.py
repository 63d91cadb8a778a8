"""The controller replicas that this agent has streams to: their addresses, and a link to each.

A headless Service gives one address per replica and family. Of a name with both families only one
is used: every replica has an address in each, and two streams to the same replica would replace
each other forever. Each look-up runs on a daemon thread, because a hung resolver must delay
neither other names nor the end of the process.

If one replica reports that this process is superseded, all links fall silent: whoever still
answers challenges then is a second process with the node's identity.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from agent.detached import detached
from agent.gpu.reading import GpuEvent, merged
from agent.session import link as links
from agent.session.client import Session, SessionPorts
from agent.session.link import Close, Link, LinkTiming, Open, Superseded
from agent.session.machine import End
from gpuwarden.clock import Clock
from gpuwarden.identity.chain import authorities_of, signing_authority
from gpuwarden.identity.svid import Svid, SvidSource
from gpuwarden.moment import NS_PER_S, utc
from gpuwarden.settings.values import Address

# --- names

RESOLVE_S: Final = 5.0
_FIRST_PAUSE_S: Final = 1.0
"""Bound of the first pause after a look-up that failed."""
MAX_REPLICAS: Final = 32
"""Of one name; more is taken for a mistake and the rest is left out."""

LookUp = Callable[[str, int], Sequence[tuple[int, str]]]
"""Host and port to (address family, address), best first; blocks; raises OSError."""


class ResolveError(Exception):
    """The name has no addresses now, or nobody could say in time."""


class Resolver(Protocol):
    """Finds the addresses of a controller's replicas."""

    async def resolve(self, controller: Address) -> frozenset[Address]:
        """Addresses of all replicas, at least one; raises ResolveError."""


def system_look_up(host: str, port: int) -> Sequence[tuple[int, str]]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family.value, str(address[0])) for family, _, _, _, address in found]


class SystemResolver:
    """The system's resolver with a deadline; literal addresses need none."""

    def __init__(self, look_up: LookUp = system_look_up, *, deadline_s: float = RESOLVE_S) -> None:
        self._look_up = look_up
        self._deadline_s = deadline_s
        self._running: set[Address] = set()

    async def resolve(self, controller: Address) -> frozenset[Address]:
        """See `Resolver`; a name whose last look-up still hangs is not asked about again."""
        if _is_literal(controller.host):
            return frozenset({controller})
        if controller in self._running:
            raise ResolveError(f"{controller}: the last look-up has not returned yet")
        self._running.add(controller)
        try:
            found = await detached(
                lambda: self._ask(controller), deadline_s=self._deadline_s, name="resolver"
            )
        except TimeoutError:
            raise ResolveError(f"{controller}: no answer in {self._deadline_s:.0f} s") from None
        except (OSError, UnicodeError) as error:
            raise ResolveError(f"{controller}: {error}") from error
        return _one_family(controller, found)

    def _ask(self, controller: Address) -> Sequence[tuple[int, str]]:
        try:
            return self._look_up(controller.host, controller.port)
        finally:
            self._running.discard(controller)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _one_family(controller: Address, found: Sequence[tuple[int, str]]) -> frozenset[Address]:
    if not found:
        raise ResolveError(f"{controller}: no address")
    best, _ = found[0]
    hosts = dict.fromkeys(host for family, host in found if family == best)
    return frozenset(Address(host, controller.port) for host in list(hosts)[:MAX_REPLICAS])


# --- links

RESOLVE_INTERVAL_S: Final = 15.0
_MAX_STREAM_IDS: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPorts:
    """What all links of this process share."""

    session: SessionPorts
    jitter: Callable[[], float]
    """Uniform in [0, 1)."""
    timing: LinkTiming = field(default_factory=LinkTiming)


class UsedStreamIds:
    """The last few thousand stream ids of this process."""

    def __init__(self, limit: int = _MAX_STREAM_IDS) -> None:
        self._order: deque[str] = deque()
        self._ids: set[str] = set()
        self._limit = limit

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._ids

    def add(self, stream_id: str) -> None:
        """Remember one and forget the oldest beyond the limit."""
        if stream_id in self._ids:
            return
        self._ids.add(stream_id)
        self._order.append(stream_id)
        if len(self._order) > self._limit:
            self._ids.discard(self._order.popleft())


class ReplicaLink:
    """The streams to one replica. `run` once; the other methods at any time, same loop."""

    def __init__(
        self,
        ports: LinkPorts,
        replica: Address,
        *,
        superseded: Callable[[Address], None],
        acknowledged: Callable[[tuple[GpuEvent, ...]], None] = lambda _events: None,
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._superseded = superseded
        self._link = Link(ports.timing)
        self._svids: dict[int, Svid] = {}
        self._sessions: dict[int, Session] = {}
        self._unacknowledged: tuple[GpuEvent, ...] = ()
        self._acknowledged = acknowledged
        self._events: asyncio.Queue[links.Event] = asyncio.Queue()

    def identity_changed(self, svid: Svid | None) -> None:
        """There is another SVID, or none."""
        identity = None
        if svid is not None:
            self._svids[svid.generation] = svid
            identity = _identity(svid, self._ports.session.clock)
        self._events.put_nowait(links.IdentityChanged(identity))

    def send_notice(self, event: GpuEvent) -> None:
        """Report a failure on this stream and on each later one until it is acknowledged."""
        self._unacknowledged = merged(self._unacknowledged, event)
        if session := self._current:
            session.send_notice(event)

    @property
    def _current(self) -> Session | None:
        current = self._link.current
        return self._sessions.get(current.stream) if current else None

    def halt(self) -> None:
        """Close all streams and open none any more; `run` then returns."""
        self._events.put_nowait(links.Halt())

    async def run(self) -> None:
        """Keep the link until it is halted and its streams are closed."""
        async with asyncio.TaskGroup() as tasks:
            while not self._link.halted or self._sessions:
                event = await self._next()
                self._note(event)
                now_ns = self._ports.session.clock.boottime_ns()
                self._link, actions = links.step(self._link, event, now_ns, self._ports.jitter())
                for action in actions:
                    self._perform(action, tasks)
                if isinstance(event, links.Ended) and (session := self._current):
                    self._report_all(session)

    async def _next(self) -> links.Event:
        deadline_ns = self._link.deadline_ns
        now_ns = self._ports.session.clock.boottime_ns()
        left_s = None if deadline_ns is None else max(0.0, (deadline_ns - now_ns) / NS_PER_S)
        try:
            async with asyncio.timeout(left_s):
                return await self._events.get()
        except TimeoutError:
            return links.Due()

    def _note(self, event: links.Event) -> None:
        match event:
            case links.Ended(stream):
                del self._sessions[stream]
            case links.IdentityChanged(identity):
                # Older ones are not opened any more; newer ones have their event on its way.
                kept = identity.generation if identity else max(self._svids, default=0)
                self._svids = {number: x for number, x in self._svids.items() if number >= kept}

    def _perform(self, action: links.Action, tasks: asyncio.TaskGroup) -> None:
        match action:
            case Open(stream, generation):
                self._open(stream, self._svids[generation], tasks)
            case Close(stream, detail):
                self._sessions[stream].stop(detail)
            case Superseded():
                self._superseded(self._replica)

    def _open(self, stream: int, svid: Svid, tasks: asyncio.TaskGroup) -> None:
        session = Session(
            self._ports.session,
            svid=svid,
            replica=self._replica,
            stream=stream,
            arrived=lambda: self._events.put_nowait(links.Arrived(stream)),
            accepted=lambda: self._events.put_nowait(links.Accepted(stream)),
            acknowledged=self._is_held,
        )
        self._sessions[stream] = session
        if session is self._current:
            self._report_all(session)
        tasks.create_task(self._run(stream, session))

    def _report_all(self, session: Session) -> None:
        for event in self._unacknowledged:
            session.send_notice(event)

    def _is_held(self, events: tuple[GpuEvent, ...]) -> None:
        self._unacknowledged = without(self._unacknowledged, events)
        self._acknowledged(events)

    async def _run(self, stream: int, session: Session) -> None:
        end: End = await session.run()
        self._events.put_nowait(links.Ended(stream, end.reason))


def without(
    waiting: tuple[GpuEvent, ...], acknowledged: tuple[GpuEvent, ...]
) -> tuple[GpuEvent, ...]:
    """What still waits once `acknowledged` is known; what happened again since does."""
    return tuple(x for x in waiting if not any(each.includes(x) for each in acknowledged))


class ReplicaSet:
    """Links to all replicas of all configured controllers."""

    def __init__(
        self,
        ports: LinkPorts,
        controllers: tuple[Address, ...],
        *,
        svids: SvidSource,
        resolver: Resolver,
        resolve_interval_s: float = RESOLVE_INTERVAL_S,
        unacknowledged: tuple[GpuEvent, ...] = (),
        notices_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`unacknowledged`: what an earlier process could report to nobody."""
        self._ports = ports
        self._controllers = controllers
        self._svids = svids
        self._resolver = resolver
        self._interval_s = resolve_interval_s
        self._replicas: dict[Address, frozenset[Address]] = {}
        self._links: dict[Address, ReplicaLink] = {}
        self._silent = False
        self._halted = asyncio.Event()
        self._unacknowledged = unacknowledged
        self._notices_changed = notices_changed

    @property
    def unacknowledged(self) -> tuple[GpuEvent, ...]:
        """Failures that no replica holds yet; one that holds them tells the others."""
        return self._unacknowledged

    def send_notice(self, event: GpuEvent) -> None:
        """Report a failure to every replica, those that come later included."""
        self._unacknowledged = merged(self._unacknowledged, event)
        self._notices_changed()
        for link in self._links.values():
            link.send_notice(event)

    def halt(self) -> None:
        """Close everything; `run` then returns."""
        self._halted.set()
        self._fall_silent()

    async def run(self) -> None:
        """Keep links until halted. A superseded process stays, silent and not ready."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        unsubscribe = self._svids.subscribe(lambda: _wake(loop, changed))
        try:
            async with asyncio.TaskGroup() as tasks:
                following = [
                    tasks.create_task(self._follow_svid(changed)),
                    *(
                        tasks.create_task(self._follow_name(controller, tasks))
                        for controller in self._controllers
                    ),
                ]
                await self._halted.wait()
                for task in following:
                    task.cancel()
        finally:
            unsubscribe()

    async def _follow_svid(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            svid = self._svids.current()
            for link in self._links.values():
                link.identity_changed(svid)

    async def _follow_name(self, controller: Address, tasks: asyncio.TaskGroup) -> None:
        def say_why(attempt: RetryCallState) -> None:
            if attempt.outcome is not None:
                why = str(attempt.outcome.exception())
                self._ports.session.recorder.record_unresolved(controller, why)

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(ResolveError),
            wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=self._interval_s),
            before_sleep=say_why,
        )
        while True:
            self._replicas[controller] = await attempts(self._resolver.resolve, controller)
            self._arrange(tasks)
            await asyncio.sleep(self._interval_s)

    def _arrange(self, tasks: asyncio.TaskGroup) -> None:
        """Start links to new addresses, halt those whose address no name has any more."""
        if self._silent:
            return
        wanted = frozenset[Address]().union(*self._replicas.values())
        for replica in sorted(wanted - self._links.keys(), key=str):
            link = ReplicaLink(
                self._ports,
                replica,
                superseded=self._on_superseded,
                acknowledged=self._is_held,
            )
            for event in self._unacknowledged:
                link.send_notice(event)
            self._links[replica] = link
            self._ports.session.recorder.add_replica(replica)
            tasks.create_task(self._keep(replica, link))
            link.identity_changed(self._svids.current())
        for replica in self._links.keys() - wanted:
            self._links[replica].halt()

    async def _keep(self, replica: Address, link: ReplicaLink) -> None:
        await link.run()
        # A superseded link is kept to be seen; one whose address is gone is forgotten.
        if not self._silent:
            del self._links[replica]
            self._ports.session.recorder.remove_replica(replica)

    def _is_held(self, events: tuple[GpuEvent, ...]) -> None:
        left = without(self._unacknowledged, events)
        if left != self._unacknowledged:
            self._unacknowledged = left
            self._notices_changed()

    def _on_superseded(self, replica: Address) -> None:
        if not self._silent:
            self._ports.session.recorder.record_superseded(replica)
            self._fall_silent()

    def _fall_silent(self) -> None:
        self._silent = True
        for link in self._links.values():
            link.halt()


def _identity(svid: Svid, clock: Clock) -> links.Identity:
    leaf = svid.leaf
    wall = utc(clock.wall_ns())
    left_s = (svid.not_after - wall).total_seconds()
    lifetime_s = (leaf.not_valid_after_utc - leaf.not_valid_before_utc).total_seconds()
    ends_ns = clock.boottime_ns() + int(left_s * NS_PER_S)
    return links.Identity(
        svid.generation,
        ends_ns,
        int(lifetime_s * NS_PER_S),
        signing_authority(svid.chain),
        authorities_of(svid.roots),
    )


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set `event` from any thread; the source may outlive the loop by a moment."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
