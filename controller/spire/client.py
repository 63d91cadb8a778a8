"""Calls the SPIRE server: read only, bounded in pages, records, bytes and time.

One client per SVID, through a tunnel that presents it and accepts exactly
`spiffe://<trust domain>/spire/server` at the other end. Retries nothing; decides nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import grpc
from grpc import aio

from controller.spire.snapshot import (
    Entries,
    SpireAgent,
    SpireEntry,
    read_agent,
    read_entries,
)
from gpuwarden.identity.spiffe_id import SpiffeId, SpiffeIdError, parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.moment import Moment
from gpuwarden.settings.values import Address
from gpuwarden.wire.spire import agents_pb2, entries_pb2
from gpuwarden.wire.spire import types_pb2 as pb
from gpuwarden.wire.spire.agents_pb2_grpc import AgentStub
from gpuwarden.wire.spire.entries_pb2_grpc import EntryStub
from gpuwarden.wire.transport import client_options

T = TypeVar("T")
SERVER_PATH: Final = "/spire/server"
READ_RULE: Final = (
    "allow this controller to call ListAgents, GetAgent and ListEntries (deploy/spire)"
)
_TEXT: Final = 200
_AGENT_MASK: Final = pb.AgentMask(
    attestation_type=True,
    x509svid_serial_number=True,
    x509svid_expires_at=True,
    selectors=True,
    banned=True,
)
_ENTRY_MASK: Final = pb.EntryMask(
    spiffe_id=True, parent_id=True, selectors=True, admin=True, downstream=True, expires_at=True
)


class SpireFailure(StrEnum):
    """Why the SPIRE server gave no usable answer; a metric label."""

    NO_SVID = "no-svid"
    """We have no SVID to call with."""
    UNREACHABLE = "unreachable"
    """No connection, or not to the SPIRE server; the text says why."""
    DENIED = "denied"
    """It does not let us read."""
    SLOW = "slow"
    """No answer in time."""
    UNUSABLE = "unusable"
    """An answer beyond our bounds, or an error of the server."""


class SpireServerError(Exception):
    """No usable answer; the text is one line for people."""

    def __init__(self, failure: SpireFailure, text: str) -> None:
        super().__init__(f"{failure}: {ascii(text)[1:-1][:_TEXT]}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Bounds of what is asked and taken; seconds and counts."""

    call_s: float = 5.0
    page_size: int = 500
    agents: int = 100_000
    entries: int = 2_000_000
    """All of the trust domain; only ours are kept."""
    own_entries: int = 200_000


class SpireServerClient:
    """The calls, on an open channel."""

    def __init__(
        self, channel: aio.Channel, limits: CallLimits, why: Callable[[], object | None]
    ) -> None:
        """`why` the last connection did not come about, for the text of an error."""
        self._agents = AgentStub(channel)
        self._entries = EntryStub(channel)
        self._limits = limits
        self._why = why

    async def agents(self, moment: Moment) -> dict[str, SpireAgent]:
        """Every attested agent by SPIFFE ID, banned ones included."""
        found: dict[str, SpireAgent] = {}
        token, seen = "", 0
        while True:
            request = agents_pb2.ListAgentsRequest(
                output_mask=_AGENT_MASK, page_size=self._limits.page_size, page_token=token
            )
            page = await self._list_agents(request)
            seen += len(page.agents)
            _bounded("agents", seen, self._limits.agents)
            for message in page.agents:
                agent = read_agent(message, moment)
                found[agent.agent_id] = agent
            token = _next(token, page.next_page_token, len(page.agents))
            if not token:
                return found

    async def entries(self, beginning: str, moment: Moment) -> Entries:
        """The registration entries of every SPIFFE ID with that beginning."""
        found: dict[str, tuple[SpireEntry, ...]] = {}
        token, seen, kept = "", 0, 0
        while True:
            request = entries_pb2.ListEntriesRequest(
                output_mask=_ENTRY_MASK, page_size=self._limits.page_size, page_token=token
            )
            page = await self._list_entries(request)
            seen += len(page.entries)
            _bounded("entries", seen, self._limits.entries)
            for spiffe_id, entries in read_entries(page.entries, beginning, moment).items():
                found[spiffe_id] = (*found.get(spiffe_id, ()), *entries)
                kept += len(entries)
            _bounded("entries of ours", kept, self._limits.own_entries)
            token = _next(token, page.next_page_token, len(page.entries))
            if not token:
                return found

    async def entries_of(self, spiffe_id: SpiffeId, moment: Moment) -> tuple[SpireEntry, ...]:
        """The registration entries of one SPIFFE ID; more than a page of them is no answer."""
        request = entries_pb2.ListEntriesRequest(
            filter=entries_pb2.ListEntriesRequest.Filter(
                by_spiffe_id=pb.SPIFFEID(trust_domain=spiffe_id.trust_domain, path=spiffe_id.path)
            ),
            output_mask=_ENTRY_MASK,
            page_size=self._limits.page_size,
        )
        page = await self._list_entries(request)
        _bounded("entries of one identity", len(page.entries), self._limits.page_size - 1)
        text = str(spiffe_id)
        return read_entries(page.entries, text, moment).get(text, ())

    async def agent(self, agent_id: str, moment: Moment) -> SpireAgent | None:
        """One agent; None where the server has none of this ID."""
        try:
            parsed = parse_spiffe_id(agent_id)
        except SpiffeIdError:
            return None
        request = agents_pb2.GetAgentRequest(
            id=pb.SPIFFEID(trust_domain=parsed.trust_domain, path=parsed.path),
            output_mask=_AGENT_MASK,
        )
        call = self._agents.GetAgent(request, timeout=self._limits.call_s)
        try:
            return read_agent(await call, moment)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise self._error(error) from error

    async def may_do_more(self) -> bool:
        """Whether the server lets us call what we never need: then it does not tell us apart."""
        request = agents_pb2.CountAgentsRequest()
        try:
            await self._agents.CountAgents(request, timeout=self._limits.call_s)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                return False
            raise self._error(error) from error
        return True

    async def _list_entries(
        self, request: entries_pb2.ListEntriesRequest
    ) -> entries_pb2.ListEntriesResponse:
        seconds = self._limits.call_s
        return await self._call(lambda: self._entries.ListEntries(request, timeout=seconds))

    async def _list_agents(
        self, request: agents_pb2.ListAgentsRequest
    ) -> agents_pb2.ListAgentsResponse:
        seconds = self._limits.call_s
        return await self._call(lambda: self._agents.ListAgents(request, timeout=seconds))

    async def _call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asked once more where the connection ended under the first: servers end old ones."""
        try:
            return await ask()
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise self._error(error) from error
        try:
            return await ask()
        except aio.AioRpcError as error:
            raise self._error(error) from error

    def _error(self, error: aio.AioRpcError) -> SpireServerError:
        text = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
                return SpireServerError(SpireFailure.DENIED, f"{text}; {READ_RULE}")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return SpireServerError(
                    SpireFailure.SLOW, f"no answer within {self._limits.call_s} s"
                )
            case grpc.StatusCode.UNAVAILABLE:
                cause = str(self._why() or text).removeprefix(f"{SpireFailure.UNREACHABLE}: ")
                return SpireServerError(SpireFailure.UNREACHABLE, cause)
            case _:
                return SpireServerError(SpireFailure.UNUSABLE, text)


@asynccontextmanager
async def connected(
    svid: Svid, address: Address, limits: CallLimits = CallLimits()
) -> AsyncIterator[SpireServerClient]:
    """A client that presents `svid`; connects at its first call."""
    expected = SpiffeId(svid.spiffe_id.trust_domain, SERVER_PATH)
    async with Tunnel(svid, address.host, address.port, expected) as tunnel:
        channel = tunnel.channel(client_options())
        try:
            yield SpireServerClient(channel, limits, lambda: tunnel.last_error)
        finally:
            await channel.close()


def _bounded(what: str, count: int, most: int) -> None:
    if count > most:
        raise SpireServerError(SpireFailure.UNUSABLE, f"more than {most} {what}")


def _next(token: str, following: str, count: int) -> str:
    """The next page's token; a server that does not move on would keep us forever."""
    if following and (following == token or not count):
        raise SpireServerError(SpireFailure.UNUSABLE, "its pages do not end")
    return following
