"""A controller small enough to misbehave on request: real gRPC, real challenges, real checks.

By default it does what a controller does: challenge, verify the signature and the
chain of evidence, accept, challenge again. Tests change its knobs.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.challenge import SignedChallenge
from gpuwarden.evidence.envelope import evidence_digest, verify
from gpuwarden.evidence.model import (
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    ZERO_DIGEST,
    Challenge,
    Evidence,
    EvidenceWithPods,
    FailureNotice,
    FailureNotices,
    Hello,
)
from gpuwarden.evidence.strict_json import decode
from gpuwarden.identity.svid import Svid
from gpuwarden.wire.error_metadata import REASON_KEY
from gpuwarden.wire.transport import server_options
from gpuwarden.wire.v1 import attestation_pb2 as wire
from gpuwarden.wire.v1 import attestation_pb2_grpc as wire_grpc
from tests.builders.challenges import challenge, signed

HASH = "v1:sha256:" + "0" * 64
Context = grpc.aio.ServicerContext[wire.AttestRequest, wire.AttestResponse]


@dataclass
class FakeStream:
    """What came on one stream."""

    leaf: x509.Certificate
    hello_bytes: bytes
    stream_id: str = field(default_factory=lambda: secrets.token_hex(16))
    challenges: list[Challenge] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    news: list[FailureNotice | FailureNotices] = field(default_factory=list)
    seq: int = 0
    prev: str = ZERO_DIGEST
    accepted: bool = False
    ended: bool = False

    @property
    def hello(self) -> Hello:
        return decode(self.hello_bytes, Hello, max_bytes=65_536)


class FakeController(wire_grpc.AttestationServiceServicer):
    """`svid` signs challenges; without TLS, `agent_leaf` stands in for the peer's certificate."""

    def __init__(self, svid: Svid, agent_leaf: x509.Certificate | None = None) -> None:
        self.svid = svid
        self.agent_leaf = agent_leaf
        self.streams: list[FakeStream] = []
        self.interval_ms = 60_000
        self.ttl_ms = 15_000
        self.alter: Callable[[Challenge], Challenge] = lambda document: document
        self.forge: Callable[[SignedChallenge], SignedChallenge] = lambda message: message
        self.judge: Callable[[Evidence], dict[str, Any]] = lambda _evidence: {}
        self.greeting: wire.AttestResponse | None = None
        """Sent instead of the first challenge."""
        self.refusal: tuple[str, str] | None = None
        """Reason code and text with which every stream is refused, once its Hello has come."""
        self.refuse_notice: str | None = None
        """Reason code with which failure notices are refused."""
        self.silent = False
        self.changed = asyncio.Condition()
        self.server: grpc.aio.Server | None = None
        self._contexts: dict[str, Context] = {}
        self._writing: dict[str, asyncio.Lock] = {}

    @property
    def failures(self) -> list[tuple[str, int | None]]:
        """Kind and XID of all that was reported, in order."""
        return [
            (each.kind, each.xid)
            for news in self.all_news
            for each in (news.failures if isinstance(news, FailureNotices) else (news,))
        ]

    @property
    def all_evidence(self) -> list[Evidence]:
        return [entry for stream in self.streams for entry in stream.evidence]

    @property
    def all_news(self) -> list[FailureNotice | FailureNotices]:
        return [entry for stream in self.streams for entry in stream.news]

    async def start(
        self, address: str | Path, credentials: grpc.ServerCredentials | None = None
    ) -> int:
        """Listen on a unix socket in the clear, or on host:port with TLS; returns the port."""
        self.server = grpc.aio.server(options=server_options())
        wire_grpc.add_AttestationServiceServicer_to_server(self, self.server)
        if credentials is None:
            port = self.server.add_insecure_port(f"unix:{address}")
        else:
            port = self.server.add_secure_port(str(address), credentials)
        await self.server.start()
        return port

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    async def until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(holds)

    async def challenge(self, stream: FakeStream) -> None:
        """Challenge once more, now."""

        der = stream.leaf.public_bytes(Encoding.DER)
        document = self.alter(
            challenge(
                stream.hello_bytes,
                der,
                stream_id=stream.stream_id,
                ttl_ms=self.ttl_ms,
                interval_ms=self.interval_ms,
            )
        )
        stream.challenges.append(document)
        await self.send(stream, self.forge(signed(document, self.svid)))

    async def send(self, stream: FakeStream, message: SignedChallenge) -> None:
        """Send exactly this challenge."""
        await self.write(
            stream,
            wire.AttestResponse(
                challenge=wire.Challenge(
                    envelope=wire.Envelope(
                        payload=message.payload,
                        payload_type=message.payload_type,
                        signature=message.signature,
                    ),
                    certificate_chain=list(message.chain_der),
                )
            ),
        )

    async def write(self, stream: FakeStream, message: wire.AttestResponse) -> None:
        # gRPC takes one message of a stream at a time, and tests challenge beside the handler.
        async with self._writing[stream.stream_id]:
            await self._contexts[stream.stream_id].write(message)

    async def Attest(  # type: ignore[override]  # noqa: N802 -- the reader-writer form of the generated method
        self, request_iterator: Any, context: Context
    ) -> None:
        del request_iterator
        hello = await _read(context)
        assert isinstance(hello, wire.AttestRequest)
        if self.refusal is not None:
            code, text = self.refusal
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"{code}: {text}", ((REASON_KEY, code),)
            )
        stream = FakeStream(self._leaf(context), hello.hello.document)
        self._contexts[stream.stream_id] = context
        self._writing[stream.stream_id] = asyncio.Lock()
        await self._note(lambda: self.streams.append(stream))
        try:
            await self._converse(stream, context)
        finally:
            await self._note(lambda: setattr(stream, "ended", True))

    async def _converse(self, stream: FakeStream, context: Context) -> None:
        if self.greeting is not None:
            await context.write(self.greeting)
        elif not self.silent:
            await self.challenge(stream)
        pacer = asyncio.create_task(self._pace(stream))
        try:
            while isinstance(message := await _read(context), wire.AttestRequest):
                await self._take(stream, message.evidence)
        finally:
            pacer.cancel()

    async def _pace(self, stream: FakeStream) -> None:
        while not self.silent:
            await asyncio.sleep(self.interval_ms / 1000)
            await self.challenge(stream)

    async def _take(self, stream: FakeStream, message: wire.Evidence) -> None:
        envelope = message.envelope
        verify(stream.leaf, envelope.payload_type, envelope.payload, envelope.signature)
        document: Evidence | FailureNotice | FailureNotices
        if envelope.payload_type == TYPE_EVIDENCE:
            document = decode(envelope.payload, Evidence, max_bytes=1 << 18)
        elif envelope.payload_type == TYPE_EVIDENCE_WITH_PODS:
            document = decode(envelope.payload, EvidenceWithPods, max_bytes=1 << 18)
        elif envelope.payload_type == TYPE_FAILURES:
            document = decode(envelope.payload, FailureNotices, max_bytes=1 << 18)
        else:
            assert envelope.payload_type == TYPE_FAILURE_NOTICE
            document = decode(envelope.payload, FailureNotice, max_bytes=1 << 18)
        assert (document.seq, document.prev) == (stream.seq + 1, stream.prev)
        assert document.nonce == message.nonce.hex()
        stream.seq = document.seq
        stream.prev = evidence_digest(envelope.payload_type, envelope.payload)
        verdict: dict[str, Any] = {
            "challenge_id": message.challenge_id,
            "outcome": wire.OUTCOME_ACCEPTED,
            "code": "ACCEPTED",
            "next_challenge_ms": self.interval_ms,
        }
        if isinstance(document, Evidence):
            verdict |= {"attestation_hash": HASH, "level": "L0", "fresh_for_ms": 90_000}
            verdict |= self.judge(document)
        elif self.refuse_notice is not None:
            verdict |= {"outcome": wire.OUTCOME_REFUSED, "code": self.refuse_notice}
        # Kept first: whoever hears the verdict finds the evidence it is about.
        await self._note(lambda: self._keep(stream, document))
        await self.write(stream, wire.AttestResponse(verdict=wire.Verdict(**verdict)))

    def _keep(
        self, stream: FakeStream, document: Evidence | FailureNotice | FailureNotices
    ) -> None:
        if isinstance(document, Evidence):
            stream.evidence.append(document)
            stream.accepted = True
        else:
            stream.news.append(document)

    async def _note(self, change: Callable[[], Any]) -> None:
        async with self.changed:
            change()
            self.changed.notify_all()

    def _leaf(self, context: Context) -> x509.Certificate:
        if self.agent_leaf is not None:
            return self.agent_leaf
        [pem] = context.auth_context()["x509_pem_cert"]
        return x509.load_pem_x509_certificate(pem)


async def _read(context: Context) -> object:
    return await context.read()


def changed(document: Challenge, **changes: Any) -> Challenge:
    """A challenge with other values."""
    return msgspec.structs.replace(document, **changes)
