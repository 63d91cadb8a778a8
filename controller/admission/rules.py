"""What an installation configures about admission. Pure."""

from dataclasses import dataclass
from typing import Final

from controller.scheduling.wish_keys import WishRules

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""What the API server writes where a pod names none."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """One value for mutation, validation and the gate, so that they cannot disagree."""

    wishes: WishRules = WishRules()  # noqa: RUF009 -- frozen
    scheduler_name: str = "gpuwarden"
    """The scheduler that asks our extender (`schedulerName`)."""
    runtime_classes: tuple[str, ...] = ("nvidia",)
    """Runtime classes that guarded pods, and pods of enforced namespaces, may name."""
    by_affinity: bool = False
    """No scheduler asks the extender: pods are sent to nodes by a hint (`scheduling: affinity`)."""

    host_paths: frozenset[str] = frozenset()
    """Host paths that such pods may mount, as they are written."""

    @property
    def only_enforced(self) -> bool:
        """Whether the gate sees bindings in enforced namespaces alone.

        Elsewhere it is asked about those of our own scheduler, and there is none.
        """
        return self.by_affinity or self.scheduler_name == DEFAULT_SCHEDULER

    @property
    def resources(self) -> tuple[str, ...]:
        """The managed resources."""
        return self.wishes.managed_resources
