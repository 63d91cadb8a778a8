"""Steps 7 to 9 and 17 as questions: what a SPIRE server and the hardware itself confirm.

An implementation answers from memory (facts at most 5 minutes old for the entry, from
the last poll for the agent) and raises nothing. Where none is configured the answer
is level L0, never more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from controller.fleet.directory import KnownNode
from controller.fleet.enrollment import PinnedGpu
from controller.fleet.view import Level
from controller.policy import Policy
from controller.verifier.context import StreamState
from gpuwarden.evidence.model import Evidence
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.reasons import Refusal

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
    """Steps 7, 8 and 9."""

    def entry(self, question: SpireQuestion) -> Refusal | None:
        """Step 7: the registration entries of the peer."""

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        """Step 8: the SPIRE agent that is their parent."""

    def image(self, question: SpireQuestion) -> Refusal | None:
        """Step 9: the image of our agent, and the age of these facts."""


@dataclass(frozen=True, slots=True)
class HardwareQuestion:
    """Evidence whose hardware reports are to be judged."""

    evidence: Evidence
    stream: StreamState
    pins: Mapping[str, PinnedGpu]
    standing: Standing
    now_ns: int


class HardwareAppraisal(Protocol):
    """Step 17."""

    def appraise(self, question: HardwareQuestion) -> Standing | Refusal:
        """The standing with what the reports add to it."""


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


class NoHardware:
    """No hardware evidence is configured: the standing stays what it was."""

    def appraise(self, question: HardwareQuestion) -> Standing | Refusal:
        """As it was."""
        return question.standing
