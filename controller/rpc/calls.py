"""What one gRPC call is made of: its peer's facts, its requests, and the status that ends it.

Decides nothing.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from controller.access import (
    Occupancy,
)
from controller.verifier.context import (
    StreamFacts,
)
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.identity.chain import ChainError, parse_chain, uri_sans
from gpuwarden.identity.peer import PeerFacts, peer_facts
from gpuwarden.identity.spiffe_id import SpiffeIdError
from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from gpuwarden.wire.error_metadata import FIELD_KEY, REASON_KEY

Context = aio.ServicerContext[Any, Any]

_LAST_IDENTITY_STEP = 4
_LAST_ROLE_STEP = 5
_LIMIT_STEP = 1

_STATUS: dict[ReasonCode, grpc.StatusCode] = {
    ReasonCode.ROLE_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ReasonCode.TOKEN_INVALID: grpc.StatusCode.UNAUTHENTICATED,
    ReasonCode.CERTIFICATE_INVALID: grpc.StatusCode.UNAUTHENTICATED,
    ReasonCode.TOKEN_REVIEW_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.ACCESS_REVIEW_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.REQ_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.NODE_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.CLASS_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.POD_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.CONTROLLER_NOT_READY: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.AUDIT_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.ENROLLMENT_STALE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.DIRECTORY_STALE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.STREAM_SUPERSEDED: grpc.StatusCode.ABORTED,
    ReasonCode.MSG_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.MSG_MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.TYPE_UNEXPECTED: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.PROTOCOL_UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
}


def status_of(code: ReasonCode) -> grpc.StatusCode:
    """The gRPC status that fits a reason code."""
    if code in _STATUS:
        return _STATUS[code]
    step = STEP_OF.get(code, 0)
    if step == _LIMIT_STEP:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if _LIMIT_STEP < step <= _LAST_IDENTITY_STEP:
        return grpc.StatusCode.UNAUTHENTICATED
    if step == _LAST_ROLE_STEP:
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.FAILED_PRECONDITION


async def abort_with(context: Context, refusal: Refusal, *, field: str = "") -> NoReturn:
    """End the call with the status of `refusal`; never returns.

    This is the one place where reason codes become status codes. Clients get the code in trailing
    metadata (`gpuwarden/wire/error_metadata.py`) and in front of the message.
    """
    metadata: tuple[tuple[str, str], ...] = ((REASON_KEY, refusal.code.value),)
    if field:
        metadata = (*metadata, (FIELD_KEY, field))
    text = f"{refusal.code}: {refusal.detail}" if refusal.detail else refusal.code.value
    await context.abort(status_of(refusal.code), text, metadata)


async def reject_field(context: Context, field: str, detail: str) -> NoReturn:
    """End the call with REQ_INVALID because of one field of its request."""
    await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field=field)


# --- requests


_LEFT: Final[set[asyncio.Task[Any]]] = set()
"""Reads that no caller waits for any more; kept alive until their calls are over."""


class RequestReader:
    """Reads the requests of one call without ever cancelling a read.

    A session waits for the same request again and again, each time until something else
    is due; a wait that cancelled its read could lose a request that was just arriving. So
    a read runs in a task of its own: whoever stops waiting just leaves it, and it ends by
    itself when the call does. (Cancelling one did no harm to gRPC in a run under valgrind,
    17 reads cancelled while pending: this is about requests, not about memory.)
    """

    def __init__(self, context: Context, ended: Callable[[object], None] | None = None) -> None:
        """`ended` is called when a read is over."""
        self._context = context
        self._ended = ended
        self._reading: asyncio.Task[Any] | None = None

    def pending(self) -> asyncio.Task[Any]:
        """The read that runs now, begun if there is none; never cancel it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
            if self._ended is not None:
                self._reading.add_done_callback(self._ended)
        return self._reading

    def take(self) -> Any:  # noqa: ANN401 - any message, or grpc.aio.EOF
        """The result of the read that has ended; the next `pending` begins another."""
        reading = self.pending()
        self._reading = None
        return reading.result()

    def leave(self) -> None:
        """Wait no more; the read ends with its call."""
        if self._reading is not None:
            _LEFT.add(self._reading)
            self._reading.add_done_callback(_forget)
            self._reading = None


async def wait_for_left_reads(seconds: float) -> bool:
    """Wait until the reads that were left are over; False if some are not in time.

    To be called when a server has stopped and before its event loop closes, which
    would cancel them.
    """
    loop = asyncio.get_running_loop()
    left = {reading for reading in _LEFT if reading.get_loop() is loop}
    if left:
        _, left = await asyncio.wait(left, timeout=seconds)
    return not left


async def read_requests(context: Context) -> AsyncIterator[Any]:
    """All requests of a call, in the place of gRPC's own iterator."""
    reader = RequestReader(context)
    try:
        while True:
            await asyncio.wait({reader.pending()})
            message = reader.take()
            if message is aio.EOF:
                return
            yield message
    finally:
        reader.leave()


def _forget(reading: asyncio.Task[Any]) -> None:
    _LEFT.discard(reading)
    if not reading.cancelled():
        reading.exception()  # read, so that asyncio does not log it as never retrieved


class Wakeup:
    """Lets one task wait for anything that may concern it: a message, the end, time.

    `asyncio.wait` would do, but it registers with each future and forgets it again, for every
    wait of every stream. Made and used in one event loop; one `wait` at a time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, _cause: object = None, /) -> None:
        """Wake who waits now; a callback for futures and timers."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return at the next `ring`, or when the time is over."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, self.ring)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


# --- the peer

_ALONE = Occupancy(0, 0, rate_exceeded=False)


def stream_facts(
    auth_context: Mapping[str, Iterable[bytes]], occupancy: Occupancy = _ALONE
) -> StreamFacts:
    """The facts that the Verifier judges a stream by, from gRPC's `auth_context`. Never raises.

    The names are read twice, once by TLS and once from the leaf itself, so that the Verifier can
    see whether both mean the same peer.
    """
    peer = _peer(auth_context)
    return StreamFacts(
        chain=peer.chain,
        uri_sans=_names_in_leaf(peer),
        peer_spiffe_id=peer.uri_sans[0] if len(peer.uri_sans) == 1 else None,
        resumed=peer.resumed,
        open_streams=occupancy.open_streams,
        peer_streams=occupancy.peer_streams,
        rate_exceeded=occupancy.rate_exceeded,
    )


def peer_key(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Under which name a peer's usage is counted: its one SPIFFE ID, else its certificate."""
    peer = _peer(auth_context)
    if len(peer.uri_sans) == 1:
        return peer.uri_sans[0]
    return sha256_hex(peer.leaf_der) if peer.leaf_der else ""


def _peer(auth_context: Mapping[str, Iterable[bytes]]) -> PeerFacts:
    return peer_facts({name: tuple(values) for name, values in auth_context.items()})


def _names_in_leaf(peer: PeerFacts) -> tuple[str, ...]:
    try:
        return uri_sans(parse_chain(peer.chain)[0])
    except (ChainError, SpiffeIdError):
        # The leaf is refused for its chain; its names as TLS has read them let step 4 say so.
        return peer.uri_sans
