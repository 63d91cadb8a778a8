"""What is known of one pod, as far as reservations depend on it. Pure.

Bound and ended are final for a UID: neither is ever taken back, so an old sight of either
counts. That a pod is not bound, or not there, is true of one moment only.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The pod as the API server had it."""

    uid: str
    node: str
    """Empty while it is not bound."""
    reservation: str | None
    """The reservation id in its annotations, as it stands there."""
    has_ended: bool
    """Succeeded or Failed; its processes may still run."""


@dataclass(frozen=True, slots=True)
class PodGone:
    """Proven not to be there: its deletion was watched, or a quorum read found no such UID."""


PodSight = PodSeen | PodGone | None
"""None: nothing is known, which proves nothing."""


def is_over(pod: PodSight) -> bool:
    """Whether the pod has proven to be at its end, whatever still runs of it."""
    return isinstance(pod, PodGone) or (isinstance(pod, PodSeen) and pod.has_ended)
