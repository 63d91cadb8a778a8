"""What the Verifier is told: settings, facts about a session, snapshots, received bytes, time."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509

from controller.fleet.directory import DirectorySnapshot
from controller.fleet.enrollment import EnrollmentSnapshot
from controller.policy import DEFAULT_POLICY, Policy
from controller.verifier.judged import JudgedInventory
from gpuwarden.evidence.model import ZERO_DIGEST, Hello, WitnessedCheckpoint
from gpuwarden.identity.chain import ChainProof
from gpuwarden.identity.spiffe_id import SpiffeId, controller_id

SECOND_NS: Final = 1_000_000_000
WANT_INVENTORY: Final = "inventory"
WANT_REPORT: Final = "hardware-report"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one peer and all peers together may use."""

    streams: int = 20_000
    streams_per_peer: int = 8
    """Two per process during a rotation, twice that for a process that was replaced, and slack."""
    message_bytes: int = 256 * 1024
    message_bytes_with_reports: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """What does not change while the process runs."""

    trust_domain: str
    cluster: str
    path_prefix: str = "/gpuwarden"
    enrollment_required: bool = False
    interval_ns: int = 25 * SECOND_NS
    lease_ns: int = 90 * SECOND_NS
    challenge_ttl_ns: int = 15 * SECOND_NS
    skew_warn_ms: int = 30_000
    skew_refuse_ms: int = 300_000
    limits: Limits = field(default_factory=Limits)
    audience: str = field(init=False)
    """The identity that evidence must be addressed to: this controller's."""

    def __post_init__(self) -> None:
        audience = str(controller_id(self.trust_domain, self.path_prefix))
        object.__setattr__(self, "audience", audience)  # frozen from here on


@dataclass(frozen=True, slots=True)
class Now:
    """One moment on both clocks of the controller."""

    boottime_ns: int
    """CLOCK_BOOTTIME: decides trust."""
    wall: datetime
    """UTC: certificates, and the comparison with the node's clock."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What TLS and the server know about a new stream. DER throughout, nothing parsed."""

    chain: tuple[bytes, ...]
    """The peer's certificates, leaf first; empty where it showed none."""
    uri_sans: tuple[str, ...]
    """URI SANs of the leaf."""
    peer_spiffe_id: str | None
    """What the TLS library calls the peer's identity."""
    resumed: bool
    """The session was resumed: no certificate was checked in this handshake."""
    open_streams: int = 0
    """Streams of this server besides this one, unaccepted ones included."""
    peer_streams: int = 0
    """Those of them that come from this peer."""
    rate_exceeded: bool = False


@dataclass(frozen=True, slots=True)
class Snapshots:
    """What the controller knows at one moment. Taken together, used for one decision."""

    roots: tuple[x509.Certificate, ...]
    """Trust bundle of the own trust domain only."""
    directory: DirectorySnapshot
    enrollment: EnrollmentSnapshot
    policy: Policy = DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One `Evidence` message as it arrived; the outer fields are not signed."""

    stream_id: bytes
    challenge_id: bytes
    nonce: bytes
    payload: bytes
    payload_type: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """One admitted stream: its session, and how far its evidence has come."""

    stream_id: str
    """32 lower-case hex digits, drawn by the shell."""
    node: str
    peer: SpiffeId
    chain: tuple[bytes, ...]
    leaf: x509.Certificate
    """The only certificate that may sign on this stream."""
    leaf_sha256: str
    hello: Hello
    hello_sha256: str
    proof: ChainProof
    """That `chain` was verified when the stream was opened."""
    superseded_at_open: bool
    """Another process had taken over before: whatever this one answers makes it a duplicate."""
    seq: int = 0
    """Of the last message that got through step 15."""
    prev: str = ZERO_DIGEST
    """Its evidence digest."""
    boottime_ms: int | None = None
    """The node's CLOCK_BOOTTIME in it."""
    judged: JudgedInventory | None = None
    """Of the last evidence that passed."""
    witnessed: tuple[WitnessedCheckpoint, ...] = ()
    """Audit checkpoints that the agent last said it knows."""
