"""What an installation configures about admission. Pure."""

from dataclasses import dataclass

from controller.scheduling.wish_keys import WishRules


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """One value for mutation, validation and the gate, so that they cannot disagree."""

    wishes: WishRules = WishRules()  # noqa: RUF009 -- frozen
    scheduler_name: str = "gpuwarden"
    """The scheduler that asks our extender (`schedulerName`)."""
    runtime_classes: tuple[str, ...] = ("nvidia",)
    """Runtime classes that guarded pods, and pods of enforced namespaces, may name."""

    host_paths: frozenset[str] = frozenset()
    """Host paths that such pods may mount, as they are written."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The managed resources."""
        return self.wishes.managed_resources
