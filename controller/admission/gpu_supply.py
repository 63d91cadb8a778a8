"""Who gives a container its GPUs, and the variables by which its runtime gives it devices.

Decided per container at the pod's creation, from the pod alone. Source of the variables:
nvidia-container-toolkit, internal/config/image. A container's own environment, `envFrom` included,
is put after the device plugin's, so it wins.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from controller.admission.pod import (
    AdmittedContainer,
    Variable,
    VariableSource,
)
from controller.placement.keys import ASSIGNED_UUIDS
from controller.placement.pod import requested
from controller.placement.requirements import Requirements

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
"""The container toolkit gives such a container nothing, whatever its image says."""
ASSIGNED_PATH: Final = f"metadata.annotations['{ASSIGNED_UUIDS}']"


class Supply(Enum):
    """Where a container's GPUs come from."""

    KUBELET = auto()
    """A device plugin or DRA driver: gpuwarden adds nothing, for a UUID that is not the chosen one
    would leave CUDA without a device."""
    REFERENCE = auto()
    """What the binding webhook writes into the pod's annotation: an `env` node."""
    NONE = auto()
    """Nobody may give it any: the image's default would show every card."""


def is_env_pod(needs: Requirements) -> bool:
    """Whether only gpuwarden gives the pod its GPUs."""
    return needs.count > 0 and not needs.requests and not needs.claims


def supply_of(
    container: AdmittedContainer, needs: Requirements, resources: Iterable[str]
) -> Supply:
    """Where this container's GPUs come from; `resources` are the managed ones.

    The container is one of a managed pod, or of an enforced namespace.

    An amount that is no number makes the pod's requirements invalid before anybody asks here.
    """
    asked = container.resources
    if asked is not None:
        if asked.claims:
            return Supply.KUBELET
        for each in resources:
            if requested(asked, each):
                return Supply.KUBELET
    return supply_without_request(needs)


def supply_without_request(needs: Requirements) -> Supply:
    """The same for a container that requests none, such as every ephemeral one (core/v1)."""
    return Supply.REFERENCE if is_env_pod(needs) else Supply.NONE


def wanted_variables(supply: Supply) -> tuple[str, ...]:
    """Names of the variables that gpuwarden adds to such a container."""
    if supply is Supply.REFERENCE:
        return (CUDA, NVIDIA)
    return (NVIDIA,) if supply is Supply.NONE else ()


def is_ours(entry: Variable, supply: Supply) -> bool:
    """Whether an entry is what gpuwarden writes, with or without what the API server adds."""
    source = entry.value_from
    if supply is Supply.NONE:
        return source is None and entry.value == VOID
    if source is None or source.field_ref is None or entry.value:
        return False
    reference = source.field_ref
    return reference.field_path == ASSIGNED_PATH and reference.api_version in {None, "", "v1"}


def is_replaced(entry: Variable, supply: Supply) -> bool:
    """Whether a pod's own entry that opens devices does not stay, so that it is no violation.

    A copy of a pod without its annotations has the reference of the one it was made of: nobody
    writes what that refers to.
    """
    is_left_over = supply is Supply.NONE and is_ours(entry, Supply.REFERENCE)
    return supply is Supply.REFERENCE or is_left_over


DEVICE_VARIABLES: Final = (
    NVIDIA,
    "DOCKER_RESOURCE_GPU",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_NVSWITCH",
)
"""`DOCKER_RESOURCE_GPU` is the usual name of the toolkit's configurable one (swarm-resource)."""
_HARMLESS: Final = frozenset({None, "", "none", "void"})
"""Values with which no device is given; a later `$(…)` is in none of them."""


def opens_devices(entry: Variable) -> bool:
    """Whether the entry could give its container devices; a value from elsewhere could."""
    return entry.name in DEVICE_VARIABLES and (
        entry.value_from is not None or entry.value not in _HARMLESS
    )


def could_open_devices(source: VariableSource) -> bool:
    """Whether some key of the source, behind its prefix, is one of the variables."""
    prefix = source.prefix or ""
    return any(name.startswith(prefix) for name in DEVICE_VARIABLES)
