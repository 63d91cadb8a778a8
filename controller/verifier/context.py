"""What the Verifier is given: settings, facts about a session, snapshots, received bytes, time.

Steps 7 to 9 and 17 are questions to others. An implementation answers from memory and raises
nothing. Where none is configured the answer is level L0, never more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from cryptography import x509

from controller.fleet.attestation_result import StreamState
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.enrollment import EnrolledGpu, EnrollmentSnapshot
from controller.policy import DEFAULT_POLICY, Level, Policy
from gpuwarden.evidence.model import Evidence
from gpuwarden.identity.spiffe_id import SpiffeId, controller_id
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import Refusal

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
    evaluation: bool = False
    """Made-up GPUs are taken, and no node's level is more than `none`."""
    interval_ns: int = 25 * NS_PER_S
    lease_ns: int = 90 * NS_PER_S
    challenge_ttl_ns: int = 15 * NS_PER_S
    skew_warn_ms: int = 30_000
    skew_refuse_ms: int = 300_000
    limits: Limits = field(default_factory=Limits)
    audience: str = field(init=False)
    """The identity that evidence must be addressed to: this controller's."""

    def __post_init__(self) -> None:
        audience = str(controller_id(self.trust_domain, self.path_prefix))
        object.__setattr__(self, "audience", audience)  # frozen from here on


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


_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Standing:
    """How strongly a node's evidence is confirmed, and by what."""

    level: Level
    attestor: str | None = None
    """SPIRE node attestor, None at L0."""
    spire_agent: str | None = None
    spdm: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """GPU UUID -> digest of its verified measurements."""
    identity_keys: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """GPU UUID -> digest of its device identity key."""


@dataclass(frozen=True, slots=True)
class SpireQuestion:
    """Whose standing is asked for."""

    peer: SpiffeId
    node_name: str
    node: KnownNode
    policy: Policy
    now_ns: int


class SpireFacts(Protocol):
    """Steps 7, 8 and 9, answered from `controller.spire` or by `NoSpire`."""

    def entry(self, question: SpireQuestion) -> Refusal | None:
        """Step 7: the registration entries of the peer, at most 5 minutes old."""

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        """Step 8: the SPIRE agent that is their parent, from the last poll."""

    def image(self, question: SpireQuestion) -> Refusal | None:
        """Step 9: the image of our agent, and the age of these facts."""


@dataclass(frozen=True, slots=True)
class HardwareQuestion:
    """Evidence whose hardware reports are to be appraised."""

    evidence: Evidence
    stream: StreamState
    enrolled_gpus: Mapping[str, EnrolledGpu]
    standing: Standing
    now_ns: int


HardwareAppraisal = Callable[[HardwareQuestion], Standing | Refusal]
"""Step 17: the standing with what the reports add to it."""


class NoSpire:
    """No SPIRE server is configured: nothing is confirmed beyond the SVID."""

    def entry(self, question: SpireQuestion) -> Refusal | None:  # noqa: ARG002 - the Protocol's
        """Nothing to ask."""
        return None

    def agent(self, question: SpireQuestion) -> Standing | Refusal:  # noqa: ARG002 - the Protocol's
        """L0."""
        return Standing(Level.L0)

    def image(self, question: SpireQuestion) -> Refusal | None:  # noqa: ARG002 - the Protocol's
        """Nothing to ask."""
        return None


def no_hardware(question: HardwareQuestion) -> Standing | Refusal:
    """No hardware evidence is configured: the standing stays what it was."""
    return question.standing
