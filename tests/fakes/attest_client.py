"""A client of AttestationService that does as it is told: honest by default, wrong on request.

It goes through the real tunnel and signs for real, so that what a test changes is
the only thing that is wrong.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from grpc import aio

from gpuwarden.clock import SystemClock
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.envelope import evidence_digest, sign
from gpuwarden.evidence.model import (
    PROTOCOL,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    WANT_PODS,
    ZERO_DIGEST,
    Challenge,
    Evidence,
    EvidenceHeader,
    EvidenceWithPods,
    FailureNotice,
    Hello,
    Inventory,
)
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import PrivateKey, Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.wire.v1 import attestation_pb2 as pb
from gpuwarden.wire.v1 import attestation_pb2_grpc as pb_grpc
from tests.builders.inventory import inventory
from tests.hang import HANG_S

WAIT_S = HANG_S


_ATTEST = "/gpuwarden.wire.v1.AttestationService/Attest"


@dataclass
class Ended:
    """How the controller ended the stream."""

    status: str
    details: str
    reason: str | None


class AttestClient:
    def __init__(
        self,
        svid: Svid,
        port: int,
        *,
        node: str,
        instance: str = "1" * 32,
        boot_id: str = "boot-1",
        controller: str = "spiffe://example.org/gpuwarden/controller",
    ) -> None:
        self.svid = svid
        self.node = node
        self.instance = instance
        self.boot_id = boot_id
        self.seq = 0
        self.prev = ZERO_DIGEST
        self.sent: list[pb.AttestRequest] = []
        self._tunnel = Tunnel(svid, "127.0.0.1", port, parse_spiffe_id(controller))
        self._stack = AsyncExitStack()
        self._call: Any = None
        self.channel: Any = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._tunnel)
        self.channel = await self._stack.enter_async_context(self._tunnel.channel())
        self._call = pb_grpc.AttestationServiceStub(self.channel).Attest()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.cancel()
        await self._stack.aclose()

    async def send(self, request: pb.AttestRequest) -> None:
        self.sent.append(request)
        await asyncio.wait_for(self._call.write(request), WAIT_S)

    async def status_of_raw(self, data: bytes) -> Ended:
        """Send bytes that need be no message, on a stream of their own without client caps."""
        async with aio.insecure_channel(self._tunnel.target) as channel:
            call: Any = channel.stream_stream(_ATTEST)()
            try:
                async with asyncio.timeout(WAIT_S):
                    await call.write(data)
                    while await call.read() is not aio.EOF:
                        pass
            except (aio.AioRpcError, asyncio.InvalidStateError):
                pass
            return await _ended(call)

    async def hello(self, **changes: Any) -> None:
        document = Hello(
            protocol=PROTOCOL,
            agent_version="0.1.0",
            instance_id=self.instance,
            boot_id=self.boot_id,
            node_name=self.node,
            checkpoints=(),
        )
        changed = msgspec.structs.replace(document, **changes)
        await self.send(pb.AttestRequest(hello=pb.Hello(document=canonical_json(changed))))

    async def read(self) -> pb.AttestResponse | Ended:
        try:
            message = await asyncio.wait_for(self._call.read(), WAIT_S)
        except aio.AioRpcError:
            return await _ended(self._call)
        return message if isinstance(message, pb.AttestResponse) else Ended("OK", "", None)

    async def challenge(self) -> pb.Challenge:
        message = await self.read()
        assert isinstance(message, pb.AttestResponse), message
        assert message.WhichOneof("message") == "challenge", message
        return message.challenge

    async def verdict(self) -> pb.Verdict:
        """The next verdict; challenges that come before it are passed over."""
        while True:
            message = await self.read()
            assert isinstance(message, pb.AttestResponse), message
            if message.WhichOneof("message") == "verdict":
                return message.verdict

    async def ended(self) -> Ended:
        """How the stream ends; whatever comes before is passed over."""
        while True:
            message = await self.read()
            if isinstance(message, Ended):
                return message

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def admitted(self) -> pb.Challenge:
        """Say hello and take the first challenge."""
        await self.hello()
        return await self.challenge()

    async def accepted(self, content: Inventory | None = None) -> pb.Verdict:
        """Hello, one round, accepted."""
        await self.answer(await self.admitted(), content=content)
        verdict = await self.verdict()
        assert verdict.outcome == pb.OUTCOME_ACCEPTED, verdict
        return verdict

    async def answer(
        self, challenge: pb.Challenge, content: Inventory | None = None, **changes: Any
    ) -> None:
        await self.send(self.evidence(challenge, content, **changes))

    def evidence(
        self,
        challenge: pb.Challenge,
        content: Inventory | None = None,
        *,
        key: PrivateKey | None = None,
        pods: tuple[str, ...] = (),
        **changes: Any,
    ) -> pb.AttestRequest:
        """`pods` that run are told where the challenge wants them."""
        document = Evidence(
            **self._header(challenge, spare=False),
            checkpoints=(),
            inventory=content or inventory(),
            allocations=None,
            processes=None,
            hardware_reports=(),
            failed_reads=(),
            log_alarms=(),
        )
        document = msgspec.structs.replace(document, **changes)
        asked = msgspec.json.decode(challenge.envelope.payload, type=Challenge)
        if WANT_PODS not in asked.want:
            return self._signed(challenge, document, TYPE_EVIDENCE, key)
        told = EvidenceWithPods(**msgspec.structs.asdict(document), pods=pods)
        return self._signed(challenge, told, TYPE_EVIDENCE_WITH_PODS, key)

    def failure_notice(
        self, challenge: pb.Challenge, kind: str = "xid", **changes: Any
    ) -> pb.AttestRequest:
        document = FailureNotice(
            **self._header(challenge, spare=True), kind=kind, gpu=None, xid=79, detail=""
        )
        return self._signed(
            challenge, msgspec.structs.replace(document, **changes), TYPE_FAILURE_NOTICE, None
        )

    def _header(self, challenge: pb.Challenge, *, spare: bool) -> dict[str, Any]:
        asked = msgspec.json.decode(challenge.envelope.payload, type=Challenge)
        clock = SystemClock()
        return {
            "protocol": PROTOCOL,
            "audience": asked.controller,
            "trust_domain": asked.trust_domain,
            "node_name": self.node,
            "stream_id": asked.stream_id,
            "challenge_id": asked.challenge_id,
            "nonce": asked.spare_nonce if spare else asked.nonce,
            "challenge_sha256": sha256_hex(challenge.envelope.payload),
            "seq": self.seq + 1,
            "prev": self.prev,
            "instance_id": self.instance,
            "boot_id": self.boot_id,
            "wall_ms": str(clock.wall_ns() // 1_000_000),
            "boottime_ms": str(clock.boottime_ns() // 1_000_000),
        }

    def _signed(
        self,
        challenge: pb.Challenge,
        document: EvidenceHeader,
        payload_type: str,
        key: PrivateKey | None,
    ) -> pb.AttestRequest:
        asked = msgspec.json.decode(challenge.envelope.payload, type=Challenge)
        payload = canonical_json(document)
        self.seq, self.prev = self.seq + 1, evidence_digest(payload_type, payload)
        nonce = asked.spare_nonce if payload_type == TYPE_FAILURE_NOTICE else asked.nonce
        return pb.AttestRequest(
            evidence=pb.Evidence(
                stream_id=bytes.fromhex(asked.stream_id),
                challenge_id=bytes.fromhex(asked.challenge_id),
                nonce=bytes.fromhex(nonce),
                envelope=pb.Envelope(
                    payload=payload,
                    payload_type=payload_type,
                    signature=sign(key or self.svid.private_key, payload_type, payload),
                ),
            )
        )


async def _ended(call: Any) -> Ended:
    metadata = dict(await call.trailing_metadata() or ())
    reason = metadata.get("gpuwarden-reason")
    details = await call.details() or ""
    return Ended((await call.code()).name, details, None if reason is None else str(reason))
