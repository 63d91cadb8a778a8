"""Who gives a container its GPUs, and so which variables are ours (placement design, section 6).

Decided per container at the pod's creation, from the pod alone. Pure.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from controller.admission.pod_view import AdmittedContainer, Variable
from controller.scheduling.pod import requested
from controller.scheduling.requirements import Requirements
from controller.scheduling.wish_keys import ASSIGNED_UUIDS

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
"""The container toolkit gives such a container nothing, whatever its image says."""
ASSIGNED_PATH: Final = f"metadata.annotations['{ASSIGNED_UUIDS}']"


class Supply(Enum):
    """Where a container's GPUs come from."""

    KUBELET = auto()
    """A device plugin or DRA driver: nothing from us, a UUID that is not the chosen one would
    leave CUDA without a device."""
    REFERENCE = auto()
    """What the gate writes into the pod's annotation: an `env` node."""
    NONE = auto()
    """Nobody may give it any: the image's default would show every card."""
    UNTOUCHED = auto()
    """Not guarded by us: another container of a pod outside enforced namespaces."""


def is_env_pod(needs: Requirements) -> bool:
    """Whether the pod's GPUs come from nobody but us."""
    return needs.count > 0 and not needs.requests and not needs.claims


def supply_of(
    container: AdmittedContainer,
    needs: Requirements,
    resources: Iterable[str],
    *,
    enforced: bool,
) -> Supply:
    """Where this container's GPUs come from; `resources` are the managed ones.

    An amount that is no number makes the pod's wishes invalid before anybody asks here.
    """
    asked = container.resources
    if asked is not None:
        if asked.claims:
            return Supply.KUBELET
        for each in resources:
            if requested(asked, each):
                return Supply.KUBELET
    return supply_without_request(needs, enforced=enforced)


def supply_without_request(needs: Requirements, *, enforced: bool) -> Supply:
    """The same for a container that requests none, such as every ephemeral one (core/v1)."""
    if is_env_pod(needs):
        return Supply.REFERENCE
    return Supply.NONE if enforced else Supply.UNTOUCHED


def wanted_variables(supply: Supply) -> tuple[str, ...]:
    """Names of the variables that such a container has from us."""
    if supply is Supply.REFERENCE:
        return (CUDA, NVIDIA)
    return (NVIDIA,) if supply is Supply.NONE else ()


def is_ours(entry: Variable, supply: Supply) -> bool:
    """Whether an entry is what we write, with or without what the API server adds."""
    source = entry.value_from
    if supply is Supply.NONE:
        return source is None and entry.value == VOID
    if source is None or source.field_ref is None or entry.value:
        return False
    reference = source.field_ref
    return reference.field_path == ASSIGNED_PATH and reference.api_version in {None, "", "v1"}
