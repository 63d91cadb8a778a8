"""What a door looks at. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controller.admission.early import Granted
from controller.admission.pod_view import AdmittedContainer, AdmittedPod
from controller.admission.rules import AdmissionRules
from controller.admission.supply import Supply, supply_of
from controller.scheduling.requirements import Requirements
from gpuwarden.reasons import Refusal


@dataclass(frozen=True, slots=True)
class Case:
    """One pod with what is known about it."""

    pod: AdmittedPod
    needs: Requirements
    rules: AdmissionRules
    enforced: bool
    """Whether its namespace is."""
    granted: Granted | None = None
    """The reservation that was made for it at its creation."""
    to_be_reserved: bool = False
    """Whether one is made next, on the node that the pod names, unless a door stands open."""

    def supply_of(self, container: AdmittedContainer) -> Supply:
        """Where the container's GPUs come from."""
        return supply_of(container, self.needs, self.rules.resources, enforced=self.enforced)


Door = Callable[[Case], Iterator[Refusal]]
"""Gives a refusal for each way in that stands open."""
