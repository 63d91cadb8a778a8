"""A node, its stream and its evidence, good by default; a test spoils what it wants to see refused.

`Scene.run` goes the whole way: open the stream, challenge it, sign evidence, appraise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller.fleet.attestation_result import (
    Accepted,
    FailureNoticeAccepted,
    Refused,
    StreamState,
)
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.enrollment import EnrollmentSnapshot
from controller.policy import DEFAULT_POLICY, Policy
from controller.verifier.challenge import (
    ChallengeStore,
    IssuedChallenge,
    Nonces,
    build_challenge,
)
from controller.verifier.context import (
    WANT_INVENTORY,
    HardwareAppraisal,
    ReceivedMessage,
    Snapshots,
    SpireFacts,
    StreamFacts,
    VerifierSettings,
    no_hardware,
)
from controller.verifier.verifier import Verifier
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import (
    PROTOCOL,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    WANT_FAILURES,
    WANT_PODS,
    Evidence,
    EvidenceWithPods,
    Failure,
    FailureNotice,
    FailureNotices,
    Hello,
)
from gpuwarden.identity.svid import PrivateKey
from gpuwarden.moment import NS_PER_S, Moment, wall_ns
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.builders.inventory import gpu_uuid, inventory

NODE = "gpu-1"
CLUSTER = "lab"
WALL = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
BOOTTIME_NS = 1_000 * NS_PER_S
NODE_BOOTTIME_MS = 500_000
INSTANCE = "a1" * 16
BOOT = "8d4f1c6e-3c0f-4c5e-9a51-0a2b6e1d7f10"
SETTINGS = VerifierSettings(trust_domain=TRUST_DOMAIN, cluster=CLUSTER)

Result = Accepted | FailureNoticeAccepted | Refused


def agent_uri(node: str = NODE, trust_domain: str = TRUST_DOMAIN) -> str:
    return f"spiffe://{trust_domain}/gpuwarden/agent/{node}"


def der(chain: tuple[x509.Certificate, ...]) -> tuple[bytes, ...]:
    return tuple(x.public_bytes(Encoding.DER) for x in chain)


def nonces(number: int) -> Nonces:
    """Ids and nonces that differ per number and are easy to tell apart."""
    return Nonces(
        number.to_bytes(16, "big"),
        bytes([1]) + number.to_bytes(31, "big"),
        bytes([2]) + number.to_bytes(31, "big"),
    )


@dataclass
class Scene:
    """Everything that one appraisal depends on. Fields are replaced, never shared by tests."""

    node: str = NODE
    ca: SpiffeCa = field(default_factory=lambda: SpiffeCa(at=WALL))
    settings: VerifierSettings = SETTINGS
    boottime_ns: int = BOOTTIME_NS
    wall: datetime = WALL
    directory: DirectorySnapshot = field(
        default_factory=lambda: DirectorySnapshot({NODE: KnownNode("uid-1")})
    )
    enrollment: EnrollmentSnapshot = field(default_factory=EnrollmentSnapshot)
    policy: Policy = DEFAULT_POLICY
    spire: SpireFacts | None = None
    hardware: HardwareAppraisal = no_hardware
    stream_id: bytes = b"s" * 16
    facts: dict[str, Any] = field(default_factory=dict)
    hello: dict[str, Any] = field(default_factory=dict)
    hello_bytes: bytes | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    """Fields of the payload that differ from the good one."""
    payload: bytes | None = None
    """Signed instead of the document."""
    message: dict[str, Any] = field(default_factory=dict)
    """Fields of the message, replaced after signing."""
    stream: dict[str, Any] = field(default_factory=dict)
    """Fields of the stream's state, replaced after it was opened."""
    issued: dict[str, Any] = field(default_factory=dict)
    """Fields of the remembered challenge, replaced after the evidence was made."""
    failure_notice: bool = False
    wants_pods: bool = False
    """Whether the challenge asks for pods; `pods` in `evidence` tells them."""
    wants_failures: bool = True
    """Whether the challenge takes notices that name several; `failures` in `evidence` are them."""
    key: PrivateKey | None = None
    """Signs instead of the session's key."""
    answers_after_ns: int = NS_PER_S
    presented_before: bool = False
    between: list[Callable[["Scene"], None]] = field(default_factory=list)
    """Run after the stream was opened, before the message is appraised."""

    def __post_init__(self) -> None:
        self.own_key, self.chain = self.ca.issue(agent_uri(self.node))
        self.roots = self.ca.roots

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.settings, spire=self.spire, hardware=self.hardware)

    @property
    def known(self) -> Snapshots:
        return Snapshots(self.roots, self.directory, self.enrollment, self.policy)

    @property
    def now(self) -> Moment:
        return Moment(self.boottime_ns, wall_ns(self.wall))

    def advance(self, seconds: float) -> None:
        self.boottime_ns += int(seconds * NS_PER_S)
        self.wall += timedelta(seconds=seconds)

    def identify(self, *uris: str, lifetime: timedelta = timedelta(hours=1)) -> None:
        """Take another certificate of the same authority."""
        self.own_key, self.chain = self.ca.issue("", lifetime, uris=uris)

    def stream_facts(self) -> StreamFacts:
        names = self.chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = tuple(names.value.get_values_for_type(x509.UniformResourceIdentifier))
        good = StreamFacts(
            chain=der(self.chain), uri_sans=uris, peer_spiffe_id=uris[0], resumed=False
        )
        return replace(good, **self.facts)

    def hello_document(self) -> Hello:
        good = Hello(
            protocol=PROTOCOL,
            agent_version="0.1.0",
            instance_id=INSTANCE,
            boot_id=BOOT,
            node_name=self.node,
            checkpoints=(),
        )
        return msgspec.structs.replace(good, **self.hello)

    def open(self) -> StreamState | Refused:
        data = self.hello_bytes or canonical_json(self.hello_document())
        return self.verifier.appraise_stream(
            self.stream_facts(), data, stream_id=self.stream_id, known=self.known, now=self.now
        )

    def opened(self) -> StreamState:
        stream = self.open()
        assert isinstance(stream, StreamState), stream
        return stream

    def challenge(self, stream: StreamState, number: int = 1) -> IssuedChallenge:
        _, issued = build_challenge(
            self.settings,
            stream,
            nonces(number),
            now=self.now,
            want=(
                WANT_INVENTORY,
                *((WANT_PODS,) if self.wants_pods else ()),
                *((WANT_FAILURES,) if self.wants_failures else ()),
            ),
        )
        return issued

    def document(
        self, stream: StreamState, issued: IssuedChallenge
    ) -> Evidence | FailureNotice | FailureNotices:
        header: dict[str, Any] = {
            "protocol": PROTOCOL,
            "audience": self.settings.audience,
            "trust_domain": self.settings.trust_domain,
            "node_name": self.node,
            "stream_id": stream.stream_id,
            "challenge_id": issued.challenge_id,
            "nonce": issued.spare_nonce if self.failure_notice else issued.nonce,
            "challenge_sha256": issued.sha256,
            "seq": stream.seq + 1,
            "prev": stream.prev,
            "instance_id": stream.hello.instance_id,
            "boot_id": stream.hello.boot_id,
            "wall_ms": str(self.now.wall_ms),
            "boottime_ms": str(NODE_BOOTTIME_MS + self.boottime_ns // 1_000_000),
        }
        if self.failure_notice and "failures" in self.evidence:
            return FailureNotices(**(header | self.evidence))
        if self.failure_notice:
            news: dict[str, Any] = {"kind": "xid", "gpu": None, "xid": 79, "detail": "fell off"}
            return FailureNotice(**(header | news | self.evidence))
        body: dict[str, Any] = {
            "checkpoints": (),
            "inventory": inventory(),
            "allocations": None,
            "processes": None,
            "hardware_reports": (),
            "failed_reads": (),
            "log_alarms": (),
        }
        kind = EvidenceWithPods if "pods" in self.evidence else Evidence
        return kind(**(header | body | self.evidence))

    def signed(self, stream: StreamState, issued: IssuedChallenge) -> ReceivedMessage:
        kind = TYPE_FAILURE_NOTICE if self.failure_notice else TYPE_EVIDENCE
        if "pods" in self.evidence:
            kind = TYPE_EVIDENCE_WITH_PODS
        if "failures" in self.evidence:
            kind = TYPE_FAILURES
        payload = self.payload or canonical_json(self.document(stream, issued))
        good = ReceivedMessage(
            stream_id=bytes.fromhex(stream.stream_id),
            challenge_id=bytes.fromhex(issued.challenge_id),
            nonce=bytes.fromhex(issued.spare_nonce if self.failure_notice else issued.nonce),
            payload=payload,
            payload_type=kind,
            signature=sign(self.key or self.own_key, kind, payload),
        )
        return replace(good, **self.message)

    def appraise(
        self, stream: StreamState, message: ReceivedMessage, issued: IssuedChallenge
    ) -> Result:
        store = ChallengeStore().issue(replace(issued, **self.issued))
        if self.presented_before:
            store, _ = store.pop(message, self.boottime_ns)
        _, popped = store.pop(message, self.boottime_ns)
        return self.verifier.appraise_message(
            stream, message, popped, known=self.known, now=self.now
        )

    def answer(self, stream: StreamState, number: int = 1) -> Result:
        """One round on an open stream."""
        stream = replace(stream, **self.stream)
        issued = self.challenge(stream, number)
        self.boottime_ns += self.answers_after_ns
        self.wall += timedelta(microseconds=self.answers_after_ns // 1_000)
        for step in self.between:
            step(self)
        return self.appraise(stream, self.signed(stream, issued), issued)

    def run(self) -> Result:
        """Open, challenge, answer."""
        stream = self.open()
        return stream if isinstance(stream, Refused) else self.answer(stream)

    def accepted(self) -> Accepted:
        result = self.run()
        assert isinstance(result, Accepted), result
        return result

    def remember(self, accepted: Accepted) -> None:
        """Write what acceptance wants to have in the store."""
        if accepted.enrollment is not None:
            self.enrollment = self.enrollment.with_record(accepted.enrollment.new)


def failure(xid: int | None = 48, *, happened_ms: int = 1, **changes: Any) -> Failure:
    """A failure of the GPU that `inventory()` shows."""
    good: dict[str, Any] = {"kind": "xid", "gpu": gpu_uuid(1), "detail": "", "count": 1}
    return Failure(**(good | changes), xid=xid, happened_ms=str(happened_ms))


def with_fields(payload: bytes, changes: Mapping[str, Any]) -> bytes:
    """JSON of `payload` with top-level members added or replaced."""
    return msgspec.json.encode(msgspec.json.decode(payload) | dict(changes))
