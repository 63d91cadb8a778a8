"""The Attester: signs what was read from the GPUs as the answer to a verified challenge.

An agent holds several streams; all that one must remember about what it has said
is the frozen `AttestedStream`. Each challenge is answered at most once, `seq` and
`prev` chain all that is signed on a stream, and a failure notice uses the spare nonce of
the open challenge at most once.

Pure: no clock, no IO, no waiting. GPUs are read behind `GpuInventorySource`.
"""

from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.challenge import (
    ChallengeRefusal,
    Expectation,
    OpenChallenge,
    SignedChallenge,
    verify_challenge,
)
from agent.gpu.reading import GpuEvent, InventoryReading
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.envelope import evidence_digest
from gpuwarden.evidence.model import (
    PROTOCOL,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    WANT_FAILURES,
    WANT_PODS,
    ZERO_DIGEST,
    Evidence,
    EvidenceHeader,
    EvidenceWithPods,
    Failure,
    FailureNotice,
    FailureNotices,
    Hello,
    LogAlarm,
    WitnessedCheckpoint,
)
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.wire.v1 import attestation_pb2 as wire

MAX_EVIDENCE_BYTES: Final = 256 * 1024
"""Cap of a signed payload while there are no hardware reports."""


class GpuInventorySource(Protocol):
    """Reads the node's GPUs; the real one is NVML."""

    async def read(self) -> InventoryReading:
        """A complete pass that begins after this call; bounded in time by the source itself.

        A missing library or driver is a reading with state UNAVAILABLE. Raises only
        where this process can never read again, so that it must end.
        """


class GpuEventSource(Protocol):
    """Tells about GPUs that go bad between two readings."""

    def events(self) -> AsyncIterator[GpuEvent]:
        """Events as they come; does not end by itself."""


class Signer(Protocol):
    """Signs with the key of the TLS session of one stream."""

    @property
    def leaf(self) -> x509.Certificate:
        """The leaf that this TLS session presented."""

    def sign(self, payload_type: str, payload: bytes) -> bytes:
        """DSSE signature over type and payload."""


class NotChallengedError(Exception):
    """No open nonce allows the evidence or notice that was asked for: a fault of the caller."""


class EvidenceTooLargeError(Exception):
    """The payload is larger than any controller takes."""


@dataclass(frozen=True, slots=True)
class SigningTime:
    """The node's clocks at the moment of signing; recorded, never relied on."""

    wall_ms: int
    boottime_ms: int


@dataclass(frozen=True, slots=True)
class AttestedStream:
    """What one stream has been asked and has said so far."""

    hello_sha256: str
    leaf_sha256: str
    challenge: OpenChallenge | None = None
    """The latest one; kept after its answer: a failure notice may still use its spare nonce."""
    answered: bool = False
    spare_used: bool = False
    seq: int = 0
    """Of the last signed message; 0 before the first."""
    prev: str = ZERO_DIGEST
    nonces: frozenset[str] = frozenset()
    """Of all challenges of this stream."""


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """A message ready to be sent and its evidence digest."""

    request: wire.AttestRequest
    digest: str
    stream: AttestedStream
    """The stream as it is once the message counts as said; there is no way back."""


@dataclass(frozen=True, slots=True)
class Attester:
    """What stays the same for the life of this process."""

    node_name: str
    trust_domain: str
    cluster: str
    controller: SpiffeId
    instance_id: str
    boot_id: str
    agent_version: str

    def hello(self, checkpoints: tuple[WitnessedCheckpoint, ...]) -> bytes:
        """The Hello document, RFC 8785 JSON."""
        return canonical_json(
            Hello(
                protocol=PROTOCOL,
                agent_version=self.agent_version,
                instance_id=self.instance_id,
                boot_id=self.boot_id,
                node_name=self.node_name,
                checkpoints=checkpoints,
            )
        )

    def open_stream(self, hello: bytes, leaf: x509.Certificate) -> AttestedStream:
        """A stream on which `hello` was sent through a TLS session with `leaf`."""
        return AttestedStream(sha256_hex(hello), sha256_hex(leaf.public_bytes(Encoding.DER)))

    def challenged(
        self,
        stream: AttestedStream,
        signed: SignedChallenge,
        *,
        roots: Sequence[x509.Certificate],
        now: datetime,
        used_stream_ids: Container[str] = frozenset(),
    ) -> AttestedStream | ChallengeRefusal:
        """The stream with this challenge open, or why the challenge proves nothing."""
        before = stream.challenge
        expected = Expectation(
            controller=self.controller,
            trust_domain=self.trust_domain,
            cluster=self.cluster,
            hello_sha256=stream.hello_sha256,
            leaf_sha256=stream.leaf_sha256,
            stream_id=before.document.stream_id if before else None,
            used_stream_ids=used_stream_ids,
            used_nonces=stream.nonces,
        )
        judged = verify_challenge(signed, expected, roots=roots, now=now)
        if isinstance(judged, ChallengeRefusal):
            return judged
        document = judged.document
        return replace(
            stream,
            challenge=judged,
            answered=False,
            spare_used=False,
            nonces=stream.nonces | {document.nonce, document.spare_nonce},
        )

    def evidence(
        self,
        stream: AttestedStream,
        reading: InventoryReading,
        checkpoints: tuple[WitnessedCheckpoint, ...],
        *,
        alarms: tuple[LogAlarm, ...] = (),
        signer: Signer,
        at: SigningTime,
    ) -> SignedMessage:
        """Answer the open challenge with `reading`, once; raises NotChallengedError otherwise.

        Raises EvidenceTooLargeError, after which the stream is as before.
        """
        if stream.challenge is None or stream.answered:
            raise NotChallengedError("no challenge is open")
        challenge = stream.challenge.document
        header = self._header(stream, stream.challenge, challenge.nonce, at)
        document = Evidence(
            **msgspec.structs.asdict(header),
            checkpoints=checkpoints,
            inventory=reading.inventory,
            allocations=reading.allocations.allocations,
            processes=reading.processes,
            hardware_reports=(),
            failed_reads=(
                *reading.failed_reads,
                *reading.allocations.failed_reads,
                *reading.pods.failed_reads,
            ),
            log_alarms=alarms,
        )
        kind = TYPE_EVIDENCE
        if WANT_PODS in challenge.want:
            kind, fields = TYPE_EVIDENCE_WITH_PODS, msgspec.structs.asdict(document)
            document = EvidenceWithPods(**fields, pods=reading.pods.pods)
        message = _signed(stream, header, kind, canonical_json(document), signer)
        return replace(message, stream=replace(message.stream, answered=True))

    def failure_notice(
        self, stream: AttestedStream, events: Sequence[GpuEvent], *, signer: Signer, at: SigningTime
    ) -> SignedMessage:
        """Report `events` under the spare nonce, once; raises NotChallengedError otherwise.

        A challenge that does not want `failures` takes one event at a time.
        """
        if stream.challenge is None or stream.spare_used:
            raise NotChallengedError("no spare nonce is left")
        header = self._header(stream, stream.challenge, stream.challenge.document.spare_nonce, at)
        kind, document = _notice(header, stream.challenge, events)
        message = _signed(stream, header, kind, canonical_json(document), signer)
        return replace(message, stream=replace(message.stream, spare_used=True))

    def _header(
        self, stream: AttestedStream, challenge: OpenChallenge, nonce: str, at: SigningTime
    ) -> EvidenceHeader:
        return EvidenceHeader(
            protocol=PROTOCOL,
            audience=str(self.controller),
            trust_domain=self.trust_domain,
            node_name=self.node_name,
            stream_id=challenge.document.stream_id,
            challenge_id=challenge.document.challenge_id,
            nonce=nonce,
            challenge_sha256=challenge.digest,
            seq=stream.seq + 1,
            prev=stream.prev,
            instance_id=self.instance_id,
            boot_id=self.boot_id,
            wall_ms=str(at.wall_ms),
            boottime_ms=str(at.boottime_ms),
        )


def _notice(
    header: EvidenceHeader, challenge: OpenChallenge, events: Sequence[GpuEvent]
) -> tuple[str, FailureNotice | FailureNotices]:
    fields = msgspec.structs.asdict(header)
    if WANT_FAILURES in challenge.document.want:
        failures = tuple(
            Failure(
                kind=x.kind.value,
                gpu=x.gpu,
                xid=x.xid,
                detail=x.detail,
                happened_ms=str(x.happened_ms),
                count=x.count,
            )
            for x in events
        )
        return TYPE_FAILURES, FailureNotices(**fields, failures=failures)
    [event] = events
    return TYPE_FAILURE_NOTICE, FailureNotice(
        **fields, kind=event.kind.value, gpu=event.gpu, xid=event.xid, detail=event.detail
    )


def _signed(
    stream: AttestedStream,
    header: EvidenceHeader,
    payload_type: str,
    payload: bytes,
    signer: Signer,
) -> SignedMessage:
    if len(payload) > MAX_EVIDENCE_BYTES:
        raise EvidenceTooLargeError(
            f"{payload_type} has {len(payload)} bytes, at most {MAX_EVIDENCE_BYTES}"
        )
    digest = evidence_digest(payload_type, payload)
    request = wire.AttestRequest(
        evidence=wire.Evidence(
            stream_id=bytes.fromhex(header.stream_id),
            challenge_id=bytes.fromhex(header.challenge_id),
            nonce=bytes.fromhex(header.nonce),
            envelope=wire.Envelope(
                payload=payload,
                payload_type=payload_type,
                signature=signer.sign(payload_type, payload),
            ),
        )
    )
    return SignedMessage(request, digest, replace(stream, seq=header.seq, prev=digest))
