"""A pod that is bound and has not ended, as the comparison with its node needs it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from controller.ledger.record import PodRef
from controller.scheduling.requirements import Requirements, RequirementsInvalid


@dataclass(frozen=True, slots=True)
class BoundPod:
    """From the copy of the pods."""

    pod: PodRef
    """With name and UID."""
    node: str
    needs: Requirements | RequirementsInvalid | None
    """None for a pod that asks for nothing of ours."""


class BoundPods(Protocol):
    """The bound pods of the cluster that have not ended, from the copy."""

    def named(self, namespace: str, name: str) -> BoundPod | None:
        """The pod of that name."""

    def with_uid(self, uid: str) -> BoundPod | None:
        """The pod of that UID."""

    def guarded(self, node: str) -> Iterable[BoundPod]:
        """Those of a node that ask for something of ours."""
