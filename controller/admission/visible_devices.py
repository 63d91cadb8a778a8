"""Variables by which the NVIDIA container toolkit chooses what a container sees. Pure.

Source: nvidia-container-toolkit, internal/config/image. A container's own environment,
`envFrom` included, is put after the device plugin's, so it wins.
"""

from typing import Final

from controller.admission.pod_view import Variable, VariableSource
from controller.admission.supply import NVIDIA

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
