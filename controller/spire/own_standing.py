"""What the SPIRE server says about this controller itself: its own SPIRE agent, its own rights.

All replicas share one identity, and an SVID does not say which of several SPIRE agents
handed it out. So this controller is unready only when none of them is in force; one that
is not is a warning. Pure.
"""

from dataclasses import dataclass
from typing import Final

from controller.spire.judgement import SpireLimits, agent_in_force
from controller.spire.snapshot import SpireSnapshot
from gpuwarden.reasons import Refusal

ADMIN_WARNING: Final = (
    "the SPIRE server lets this controller do more than read (admin: true or admin_ids): whoever"
    " takes the controller over can issue any SVID; use the policy of deploy/spire instead"
)


@dataclass(frozen=True, slots=True)
class OwnStanding:
    """Lines for people."""

    error: str | None = None
    """Why nobody should rely on this controller."""
    warnings: tuple[str, ...] = ()


def own_standing(
    snapshot: SpireSnapshot, limits: SpireLimits, now_ns: int, own_id: str
) -> OwnStanding:
    """How the controller of SPIFFE ID `own_id` stands."""
    entries = snapshot.entries.get(own_id, ())
    if not entries:
        return OwnStanding(warnings=(f"the SPIRE server has no registration entry of {own_id}",))
    parents = sorted({x.parent_id for x in entries})
    found = [agent_in_force(snapshot, limits, now_ns, x) for x in parents]
    bad = tuple(f"own SPIRE agent: {x.detail}" for x in found if isinstance(x, Refusal))
    admin = (ADMIN_WARNING,) if any(x.admin for x in entries) else ()
    if len(bad) == len(parents):
        return OwnStanding("; ".join(bad), admin)
    return OwnStanding(None, (*bad, *admin))
