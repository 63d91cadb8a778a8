"""A SPIRE server's Agent and Entry APIs over real TLS; held to the real one's contract tests.

Insecure because its records are made up: nothing has attested. As there, the certificate has
only a URI SAN, a client certificate is demanded but any SVID of the trust domain connects, and
each method says who may call it. Records are plain values that change while it serves.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import grpc
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import Message
from grpc import aio

from gpuwarden.identity.peer import peer_facts
from gpuwarden.wire.spire import agents_pb2, agents_pb2_grpc, entries_pb2, entries_pb2_grpc
from gpuwarden.wire.spire import types_pb2 as pb
from sandbox.spiffe.ca import InsecureCa

READ = ("ListAgents", "GetAgent", "ListEntries")
EVERYTHING = (*READ, "CountAgents")
"""As `admin: true` allows it."""


M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class AgentRecord:
    """An attested SPIRE agent."""

    path: str
    attestor: str = "k8s_psat"
    selectors: tuple[str, ...] = ()
    expires: int = 1 << 40
    banned: bool = False
    serial: str = "1"


@dataclass(frozen=True)
class EntryRecord:
    """A registration entry."""

    path: str
    parent: str
    selectors: tuple[str, ...] = ("k8s:ns:gpuwarden", "k8s:sa:gpuwarden-agent")
    admin: bool = False
    downstream: bool = False
    expires: int = 0


@dataclass
class InsecureSpireServer:
    """`allowed` maps a caller's SPIFFE ID to the methods it may call; nobody else may call any."""

    ca: InsecureCa
    allowed: dict[str, Sequence[str]]
    bundle: Callable[[], Sequence[InsecureCa]] | None = None
    """The roots at each handshake, the one that issues first, where they change."""
    identity: str = "/spire/server"
    agents: list[AgentRecord] = field(default_factory=list)
    entries: list[EntryRecord] = field(default_factory=list)
    port: int = 0
    delay_s: float = 0.0
    """Before each answer."""
    connection_age_ms: int | None = None
    calls: list[str] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    """Records on each page that was asked for."""
    endless: bool = False
    """Pages that never end."""
    _server: aio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, on the same port as before if there was one."""
        credentials = self._credentials()
        options: list[tuple[str, Any]] = [("grpc.so_reuseport", 0)]
        if self.connection_age_ms is not None:
            options.append(("grpc.max_connection_age_ms", self.connection_age_ms))
        self._server = aio.server(options=options)
        agents_pb2_grpc.add_AgentServicer_to_server(_Agents(self), self._server)
        entries_pb2_grpc.add_EntryServicer_to_server(_Entries(self), self._server)
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self._server.start()

    def _credentials(self) -> grpc.ServerCredentials:
        if (bundle := self.bundle) is not None:
            return grpc.dynamic_ssl_server_credentials(
                _configuration(bundle(), self.identity),
                lambda: _configuration(bundle(), self.identity),
                require_client_authentication=True,
            )
        svid = self.ca.issue(f"spiffe://{self.ca.trust_domain}{self.identity}")
        roots = self.ca.certificate.public_bytes(Encoding.PEM)
        return grpc.ssl_server_credentials(
            [(svid.key_pem, svid.chain_pem)], roots, require_client_auth=True
        )

    async def stop(self) -> None:
        """End it; its records stay."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def change(self, path: str, **changes: Any) -> None:  # noqa: ANN401 - as `replace`
        """Change an agent."""
        self.agents = [replace(x, **changes) if x.path == path else x for x in self.agents]

    def ban(self, path: str) -> None:
        """Ban an agent."""
        self.change(path, banned=True, serial="")

    def attest_again(self, path: str) -> None:
        """What lifts a ban: its record is deleted, and the agent attests."""
        self.change(path, banned=False, serial="2")

    def evict(self, path: str) -> None:
        """Delete an agent's record."""
        self.agents = [x for x in self.agents if x.path != path]

    async def admit(self, method: str, context: aio.ServicerContext[Any, Any]) -> None:
        """Abort the call unless its caller may call `method`."""
        self.calls.append(method)
        facts = peer_facts({k: tuple(v) for k, v in context.auth_context().items()})
        caller = facts.uri_sans[0] if len(facts.uri_sans) == 1 else ""
        if method not in self.allowed.get(caller, ()):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"authorization denied for method {method}"
            )
        if self.delay_s:
            await asyncio.sleep(self.delay_s)

    def page(self, records: Sequence[Any], size: int, token: str) -> tuple[Sequence[Any], str]:
        """Pages as SPIRE makes them: a full one has a token, 0 turns them off."""
        if self.endless:
            return records[:1], "again"
        begin = int(token or 0)
        found = records[begin : begin + size] if size else records
        self.pages.append(len(found))
        return found, str(begin + size) if size and len(found) == size else ""


def _configuration(
    roots: Sequence[InsecureCa], identity: str
) -> grpc.ServerCertificateConfiguration:
    """A new SVID of the server, and the bundle that callers must chain to."""
    svid = roots[0].issue(f"spiffe://{roots[0].trust_domain}{identity}")
    bundle = b"".join(x.certificate.public_bytes(Encoding.PEM) for x in roots)
    return grpc.ssl_server_certificate_configuration([(svid.key_pem, svid.chain_pem)], bundle)


@dataclass
class _Agents(agents_pb2_grpc.AgentServicer):
    fake: InsecureSpireServer

    async def ListAgents(  # noqa: N802 - generated
        self, request: agents_pb2.ListAgentsRequest, context: aio.ServicerContext[Any, Any]
    ) -> agents_pb2.ListAgentsResponse:
        await self.fake.admit("ListAgents", context)
        found, token = self.fake.page(self.fake.agents, request.page_size, request.page_token)
        return agents_pb2.ListAgentsResponse(
            agents=[self._message(x, request.output_mask) for x in found], next_page_token=token
        )

    async def GetAgent(  # noqa: N802, RET503 - generated; `abort` raises
        self, request: agents_pb2.GetAgentRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.Agent:
        await self.fake.admit("GetAgent", context)
        for record in self.fake.agents:
            if record.path == request.id.path:
                return self._message(record, request.output_mask)
        await context.abort(grpc.StatusCode.NOT_FOUND, "agent not found")

    async def CountAgents(  # noqa: N802 - generated
        self, request: agents_pb2.CountAgentsRequest, context: aio.ServicerContext[Any, Any]
    ) -> agents_pb2.CountAgentsResponse:
        del request
        await self.fake.admit("CountAgents", context)
        return agents_pb2.CountAgentsResponse(count=len(self.fake.agents))

    def _message(self, record: AgentRecord, mask: pb.AgentMask) -> pb.Agent:
        message = pb.Agent(
            id=pb.SPIFFEID(trust_domain=self.fake.ca.trust_domain, path=record.path),
            attestation_type=record.attestor,
            x509svid_serial_number=record.serial,
            x509svid_expires_at=record.expires,
            selectors=_selectors(record.selectors),
            banned=record.banned,
        )
        return _masked(message, mask)


@dataclass
class _Entries(entries_pb2_grpc.EntryServicer):
    fake: InsecureSpireServer

    async def ListEntries(  # noqa: N802 - generated
        self, request: entries_pb2.ListEntriesRequest, context: aio.ServicerContext[Any, Any]
    ) -> entries_pb2.ListEntriesResponse:
        await self.fake.admit("ListEntries", context)
        records = self.fake.entries
        if request.HasField("filter"):
            records = [x for x in records if x.path == request.filter.by_spiffe_id.path]
        found, token = self.fake.page(records, request.page_size, request.page_token)
        return entries_pb2.ListEntriesResponse(
            entries=[self._message(x, request.output_mask) for x in found], next_page_token=token
        )

    def _message(self, record: EntryRecord, mask: pb.EntryMask) -> pb.Entry:
        domain = self.fake.ca.trust_domain
        message = pb.Entry(
            id=f"entry-{self.fake.entries.index(record)}",
            spiffe_id=pb.SPIFFEID(trust_domain=domain, path=record.path),
            parent_id=pb.SPIFFEID(trust_domain=domain, path=record.parent),
            selectors=_selectors(record.selectors),
            admin=record.admin,
            downstream=record.downstream,
            expires_at=record.expires,
        )
        return _masked(message, mask)


def _selectors(texts: Sequence[str]) -> list[pb.Selector]:
    pairs = [text.partition(":") for text in texts]
    return [pb.Selector(type=kind, value=value) for kind, _, value in pairs]


def _masked(message: M, mask: Message) -> M:
    for name in mask.DESCRIPTOR.fields_by_name:
        if not getattr(mask, name):
            message.ClearField(name)
    return message
