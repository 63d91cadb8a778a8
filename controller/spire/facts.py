"""Steps 7 to 9 for the Verifier, from the poller's snapshot; and readiness from the same.

Each question is answered from memory. What is missing in the snapshot is asked for
afterwards, so that a node that has just been registered need not wait for the next poll.
"""

from typing import Final

from controller.spire.condition import SpireCondition
from controller.spire.judgement import (
    NEVER,
    SpireLimits,
    agent_standing,
    entry_refusal,
    image_refusal,
    stale,
)
from controller.spire.own_standing import ADMIN_WARNING, own_standing
from controller.spire.poller import SpirePoller
from controller.verifier.seams import SpireQuestion, Standing
from gpuwarden.reasons import ReasonCode, Refusal

ABSENT: Final = frozenset(
    {
        ReasonCode.SPIRE_ENTRY_NOT_FOUND,
        ReasonCode.SPIRE_AGENT_NOT_FOUND,
        ReasonCode.SPIRE_AGENT_EXPIRED,
    }
)
"""Refusals that a newer answer about the one node may lift."""


class LiveSpireFacts:
    """A `SpireFacts` over the snapshot of now."""

    def __init__(self, poller: SpirePoller, limits: SpireLimits, own_id: str) -> None:
        self._poller = poller
        self._limits = limits
        self._own_id = own_id

    def entry(self, question: SpireQuestion) -> Refusal | None:
        """Step 7."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return NEVER
        return self._asking(question, entry_refusal(snapshot, self._limits, question))

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        """Step 8."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return NEVER
        found = agent_standing(snapshot, self._limits, question)
        if isinstance(found, Refusal):
            self._asking(question, found)
        return found

    def image(self, question: SpireQuestion) -> Refusal | None:
        """Step 9."""
        snapshot = self._poller.snapshot
        return NEVER if snapshot is None else image_refusal(snapshot, self._limits, question)

    def condition(self, now_ns: int) -> SpireCondition:
        """How the SPIRE server answers, and how this controller itself stands with it."""
        snapshot, trouble = self._poller.snapshot, self._poller.trouble
        if snapshot is None:
            return SpireCondition(str(trouble or "the SPIRE server was not asked yet"))
        if old := stale(snapshot, self._limits, now_ns):
            return SpireCondition(f"{old.detail}: {trouble}" if trouble else old.detail)
        own = own_standing(snapshot, self._limits, now_ns, self._own_id)
        failing = (f"SPIRE server: {trouble}; its last answer counts for now",) if trouble else ()
        excessive = (ADMIN_WARNING,) if self._poller.excessive else ()
        warnings = dict.fromkeys((*failing, *own.warnings, *excessive))
        return SpireCondition(own.error, tuple(warnings))

    def _asking(self, question: SpireQuestion, refusal: Refusal | None) -> Refusal | None:
        if refusal is not None and refusal.code in ABSENT:
            self._poller.ask_about(question.peer)
        return refusal
