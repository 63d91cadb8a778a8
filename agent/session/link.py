"""Which streams one controller replica should have: first, renewed, replaced, none.

Make-before-break: a new SVID, or a stream that grows old, opens a second stream,
and only when the controller has accepted that one is the first one closed. A new SVID
waits a little, so that a fleet does not come at once, unless the authority of the old
one has left the trust bundle: then the next evidence on the old stream would be refused. Streams
that end are opened again after a back-off with full jitter, which is reset by an acceptance. While
a stream is on its way to the controller no other is opened. An agent that was superseded opens
nothing any more.

Pure: reads no clock and draws no randomness; `now_ns` is CLOCK_BOOTTIME and
`jitter` is uniform in [0, 1).
"""

from dataclasses import dataclass, field, replace
from typing import Final

from agent.session.machine import EndReason
from gpuwarden.moment import NS_PER_S

_MAX_FAILURES: Final = 32
"""Where the exponent stops growing; the cap is reached long before."""


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Seconds. The controller ends a stream after 30 minutes or with its certificate."""

    renew_s: float = 28 * 60.0
    renew_jitter_s: float = 60.0
    """Renewal happens at `renew_s` plus or minus this."""
    margin_s: float = 30.0
    """A new SVID is in use this long before the old one ends, or a quarter of its lifetime."""
    spread_s: float = 10.0
    """Rotations of a whole fleet at once are spread over this, or an eighth of what is left."""
    backoff_base_s: float = 1.0
    backoff_cap_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What the link must know about the current SVID."""

    generation: int
    ends_ns: int
    """CLOCK_BOOTTIME at which the leaf ends."""
    lifetime_ns: int
    authority: bytes = b""
    """Key id of the authority that signed it; empty where it is not named."""
    trusted: frozenset[bytes] = frozenset()
    """Key ids of the authorities in the trust bundle that came with it."""

    def revokes(self, old: "Identity") -> bool:
        """Whether the bundle no longer has the authority of an older identity."""
        return bool(old.authority) and old.authority not in self.trusted


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that is open or being opened."""

    stream: int
    identity: Identity
    renew_ns: int | None
    """When a successor is to be opened; None once one was asked for."""
    accepted: bool = False
    arrived: bool = False
    """The controller has answered it. Until then no other is opened: that one could come first, and
    the controller would take this one for the newer, and end the other as superseded."""


@dataclass(frozen=True, slots=True)
class IdentityChanged:
    """There is another SVID, or none."""

    identity: Identity | None


@dataclass(frozen=True, slots=True)
class Arrived:
    """The controller answered this stream's greeting."""

    stream: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The controller accepted evidence on this stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ended:
    """This stream is over."""

    stream: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class Due:
    """The link's deadline has passed."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Open nothing any more and close what is open."""


Event = IdentityChanged | Arrived | Accepted | Ended | Due | Halt


@dataclass(frozen=True, slots=True)
class Open:
    """Dial and greet with the SVID of this generation."""

    stream: int
    generation: int


@dataclass(frozen=True, slots=True)
class Close:
    """End a stream from this side."""

    stream: int
    detail: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another instance speaks for this node: the whole process must fall silent."""


Action = Open | Close | Superseded


@dataclass(frozen=True, slots=True)
class Link:
    """One replica. `successor` replaces `current` once it is accepted."""

    timing: LinkTiming = field(default_factory=LinkTiming)
    identity: Identity | None = None
    current: Stream | None = None
    successor: Stream | None = None
    opened: int = 0
    """Streams opened so far; the number of the last one."""
    failures: int = 0
    """Streams in a row that ended; reset by an acceptance."""
    open_ns: int | None = None
    """When the next stream is to be opened."""
    halted: bool = False

    @property
    def deadline_ns(self) -> int | None:
        """When Due is to be fed, if at all."""
        if self.halted:
            return None
        current = self.current
        renewals = [current.renew_ns] if current and current.arrived and not self.successor else []
        opens = [self.open_ns] if self.identity else []
        return min((at for at in (*renewals, *opens) if at is not None), default=None)


Step = tuple[Link, tuple[Action, ...]]


def backoff_s(failures: int, timing: LinkTiming, jitter: float) -> float:
    """Full jitter: uniform between 0 and the exponential bound, which is capped."""
    bound = timing.backoff_base_s * 2.0 ** min(failures, _MAX_FAILURES)
    return jitter * min(timing.backoff_cap_s, bound)


def step(  # noqa: PLR0911 -- one case per event
    link: Link, event: Event, now_ns: int, jitter: float
) -> Step:
    """The one transition function; a halted link does nothing any more."""
    if link.halted:
        return link, ()
    match event:
        case IdentityChanged(identity):
            return _identity(link, identity, now_ns, jitter)
        case Arrived(stream):
            return _arrived(link, stream, now_ns, jitter)
        case Accepted(stream):
            return _accepted(link, stream)
        case Ended(stream, reason):
            return _ended(link, stream, reason, now_ns, jitter)
        case Due():
            return _due(link, now_ns, jitter)
        case Halt():
            return _halt(link, "this agent stops")


def _identity(link: Link, identity: Identity | None, now_ns: int, jitter: float) -> Step:
    link = replace(link, identity=identity)
    if identity is None:
        return link, ()
    if link.current is None:
        return replace(link, open_ns=_earliest(link.open_ns, now_ns, link)), ()
    newest = link.successor or link.current
    if newest.identity.generation == identity.generation or not newest.arrived:
        return link, ()
    actions: tuple[Action, ...] = ()
    if link.successor is not None:
        actions = (Close(link.successor.stream, "its SVID was replaced"),)
    at = now_ns
    if not identity.revokes(link.current.identity):
        at += _spread_ns(link, link.current.identity, now_ns, jitter)
    return replace(link, successor=None, open_ns=min(at, link.open_ns or at)), actions


def _earliest(waiting_ns: int | None, now_ns: int, link: Link) -> int:
    """A back-off that is running is kept: a new SVID is no reason to storm a controller."""
    if waiting_ns is not None and link.failures:
        return waiting_ns
    return now_ns


def _spread_ns(link: Link, old: Identity, now_ns: int, jitter: float) -> int:
    left_ns = max(0, old.ends_ns - now_ns)
    margin_ns = min(_ns(link.timing.margin_s), old.lifetime_ns // 4)
    window_ns = min(_ns(link.timing.spread_s), left_ns // 8, max(0, left_ns - margin_ns))
    return int(jitter * window_ns)


def _arrived(link: Link, stream: int, now_ns: int, jitter: float) -> Step:
    """An SVID that came meanwhile is taken into use now."""
    current, successor = link.current, link.successor
    if successor is not None and successor.stream == stream:
        link = replace(link, successor=replace(successor, arrived=True))
    elif current is not None and current.stream == stream:
        link = replace(link, current=replace(current, arrived=True))
    return _identity(link, link.identity, now_ns, jitter)


def _accepted(link: Link, stream: int) -> Step:
    if link.current is not None and link.current.stream == stream:
        return replace(link, current=replace(link.current, accepted=True), failures=0), ()
    if link.successor is None or link.successor.stream != stream:
        return link, ()  # closed meanwhile
    successor = replace(link.successor, accepted=True)
    actions: tuple[Action, ...] = ()
    if link.current is not None:
        actions = (Close(link.current.stream, "its successor was accepted"),)
    return replace(link, current=successor, successor=None, failures=0), actions


def _ended(link: Link, stream: int, reason: EndReason, now_ns: int, jitter: float) -> Step:
    newest = link.successor or link.current
    if newest is None or stream not in _numbers(link):
        return link, ()  # closed from this side
    # The older of this agent's own two streams is superseded by its successor: only the end of the
    # newest one says that there is another instance.
    link = _without(link, stream)
    if stream != newest.stream:
        return link, ()  # the successor is on its way already
    if reason is EndReason.SUPERSEDED:
        link, actions = _halt(link, "another instance took over")
        return link, (*actions, Superseded())
    delay = _ns(backoff_s(link.failures, link.timing, jitter))
    return replace(link, failures=link.failures + 1, open_ns=now_ns + delay), ()


def _due(link: Link, now_ns: int, jitter: float) -> Step:
    if link.identity is None:
        return link, ()
    if link.open_ns is not None and link.open_ns <= now_ns:
        return _open(replace(link, open_ns=None), link.identity, now_ns, jitter)
    current = link.current
    if current is None or not current.arrived or link.successor:
        return link, ()
    if current.renew_ns is None or current.renew_ns > now_ns:
        return link, ()
    renewing = replace(link, current=replace(current, renew_ns=None))
    return _open(renewing, link.identity, now_ns, jitter)


def _open(link: Link, identity: Identity, now_ns: int, jitter: float) -> Step:
    if link.successor is not None:
        return link, ()
    around_s = link.timing.renew_s + link.timing.renew_jitter_s * (2 * jitter - 1)
    stream = Stream(link.opened + 1, identity, now_ns + _ns(around_s))
    link = replace(link, opened=stream.stream)
    if link.current is None:
        link = replace(link, current=stream)
    else:
        link = replace(link, successor=stream)
    return link, (Open(stream.stream, identity.generation),)


def _halt(link: Link, detail: str) -> Step:
    actions = tuple(Close(number, detail) for number in _numbers(link))
    return replace(link, halted=True, current=None, successor=None, open_ns=None), actions


def _numbers(link: Link) -> tuple[int, ...]:
    return tuple(stream.stream for stream in (link.current, link.successor) if stream)


def _without(link: Link, stream: int) -> Link:
    if link.current is not None and link.current.stream == stream:
        return replace(link, current=link.successor, successor=None)
    return replace(link, successor=None)


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)
