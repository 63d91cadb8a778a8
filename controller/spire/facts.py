"""Answers of the SPIRE side: steps 7 to 9 for the Verifier, and its condition for readiness.

All answers come from memory, the poller's last snapshot.
"""

from dataclasses import dataclass, replace
from typing import Final

from controller.spire.poller import SpirePoller
from controller.spire.snapshot import SpireSnapshot
from controller.spire.verification import (
    NEVER,
    SpireLimits,
    agent_in_force,
    agent_standing,
    entry_refusal,
    image_refusal,
    stale,
)
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.reasons import ReasonCode, Refusal

CAPPED: Final = (
    "spire.server is off: nobody confirms nodes beyond their SVID, every level ends at L0"
)
ADMIN_WARNING: Final = (
    "the SPIRE server lets this controller do more than read (admin: true or admin_ids): whoever"
    " takes the controller over can issue any SVID; use the policy of deploy/spire instead"
)
ABSENT: Final = frozenset(
    {
        ReasonCode.SPIRE_ENTRY_NOT_FOUND,
        ReasonCode.SPIRE_AGENT_NOT_FOUND,
        ReasonCode.SPIRE_AGENT_EXPIRED,
    }
)
"""Refusals that a newer answer about the one node may lift."""


@dataclass(frozen=True, slots=True)
class SpireCondition:
    """Lines for people; with an error the controller is not ready."""

    error: str | None = None
    warnings: tuple[str, ...] = ()
    configured: bool = True
    excessive: bool = False
    """The server lets this controller do more than read."""
    unregistered: bool = False
    """The server has no registration entry of this controller."""


def no_spire_server(_now_ns: int) -> SpireCondition:
    """No SPIRE server is configured: not an error, but reported."""
    return SpireCondition(warnings=(CAPPED,), configured=False)


def own_condition(
    snapshot: SpireSnapshot, limits: SpireLimits, now_ns: int, own_id: str
) -> SpireCondition:
    """What the SPIRE server knows of the controller of SPIFFE ID `own_id` and its SPIRE agents.

    All replicas share one identity, and an SVID does not say which of several SPIRE agents handed
    it out. So this controller is unready only when none of them is in force; one that is not is a
    warning.
    """
    entries = snapshot.entries.get(own_id, ())
    if not entries:
        text = f"the SPIRE server has no registration entry of {own_id}"
        return SpireCondition(warnings=(text,), unregistered=True)
    parents = sorted({x.parent_id for x in entries})
    found = [agent_in_force(snapshot, limits, now_ns, x) for x in parents]
    bad = tuple(f"own SPIRE agent: {x.detail}" for x in found if isinstance(x, Refusal))
    is_admin = any(x.admin for x in entries)
    admin = (ADMIN_WARNING,) if is_admin else ()
    if len(bad) == len(parents):
        return SpireCondition("; ".join(bad), admin, excessive=is_admin)
    return SpireCondition(None, (*bad, *admin), excessive=is_admin)


class LiveSpireFacts:
    """Implements `SpireFacts` over the poller's last snapshot.

    What the snapshot lacks is asked for afterwards, so that a node that has just been registered
    need not wait for the next poll.
    """

    def __init__(self, poller: SpirePoller, limits: SpireLimits, own_id: str) -> None:
        self._poller = poller
        self._limits = limits
        self._own_id = own_id

    def entry(self, question: SpireQuestion) -> Refusal | None:
        """Step 7."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return NEVER
        refusal = entry_refusal(snapshot, self._limits, question)
        self._ask_if_absent(question, refusal)
        return refusal

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        """Step 8."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return NEVER
        found = agent_standing(snapshot, self._limits, question)
        if isinstance(found, Refusal):
            self._ask_if_absent(question, found)
        return found

    def image(self, question: SpireQuestion) -> Refusal | None:
        """Step 9."""
        snapshot = self._poller.snapshot
        return NEVER if snapshot is None else image_refusal(snapshot, self._limits, question)

    def condition(self, now_ns: int) -> SpireCondition:
        """Whether the SPIRE server answers, and what it knows of this controller."""
        snapshot, trouble = self._poller.snapshot, self._poller.trouble
        if snapshot is None:
            return SpireCondition(str(trouble or "the SPIRE server was not asked yet"))
        if old := stale(snapshot, self._limits, now_ns):
            return SpireCondition(f"{old.detail}: {trouble}" if trouble else old.detail)
        own = own_condition(snapshot, self._limits, now_ns, self._own_id)
        failing = (f"SPIRE server: {trouble}; its last answer counts for now",) if trouble else ()
        excessive = (ADMIN_WARNING,) if self._poller.excessive else ()
        warnings = dict.fromkeys((*failing, *own.warnings, *excessive))
        return replace(
            own, warnings=tuple(warnings), excessive=own.excessive or self._poller.excessive
        )

    def _ask_if_absent(self, question: SpireQuestion, refusal: Refusal | None) -> None:
        if refusal is not None and refusal.code in ABSENT:
            self._poller.ask_about(question.peer)
