"""What each NVML call costs with each return: the one table from (call, return) to consequence.

A GPU that answers with an error costs that GPU, or the fact alone where trust does not need it.
Only what makes the inventory as a whole undecidable is the node's: that the GPUs cannot be counted,
that the driver is gone, or a fact of the host that the class needs.

Pure. Must not conclude anything from more than one call: `survey` and `inventory` do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.gpu.facts import ABSENT, DRIVER_GONE, LOST, TIMED_OUT


class Consequence(StrEnum):
    """What a failed call comes to."""

    NO_SUCH_FACT = "no such fact"
    """Null, and no failure: here there is none, or an older call is asked for it."""
    FACT = "fact"
    """The fact is not known: a warning. Trust does not need it."""
    GPU_UNHEALTHY = "GPU unhealthy"
    """A fact of the GPU that class or enrollment needs is not known: it is not offered."""
    GPU_LOST = "GPU lost"
    """The GPU does not answer, or not with a name: it is not offered."""
    NODE = "node"
    """The inventory is undecidable: the node gives no evidence that could be accepted."""
    PROCESS = "process"
    """The driver went away or changed: only a new process can read again."""
    NO_EVENTS = "no events"
    """Failure notices of the driver do not arrive until a later reading registers for them."""
    READ_AGAIN = "read again"
    """A failure notice about the node; the reading that follows at once decides."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Row:
    """One call: what a failure of it costs."""

    failure: Consequence
    absent: frozenset[str] = ABSENT
    """Returns that are no failure."""
    of_gpu: bool = False
    """It asks one GPU: a return that says more than that is not believed of the others."""


_OLDER_STRUCT: Final = frozenset({"ARGUMENT_VERSION_MISMATCH"})
"""No failure where a call takes versioned structs and the driver may only know an older one."""
_NO_SUCH_LINK: Final = frozenset({"INVALID_ARGUMENT"})
_NO_SUCH_MIG: Final = frozenset({"NOT_FOUND", "INVALID_ARGUMENT"})
_NO_ECC: Final = frozenset({"VGPU_ECC_NOT_SUPPORTED"})
_NO_LIBCUDA: Final = frozenset({"LIBRARY_NOT_FOUND"})
"""Libcuda's, which a node need not have."""

MEMORY_V2: Final = "nvmlDeviceGetMemoryInfo_v2"
"""The binding reaches it through `nvmlDeviceGetMemoryInfo` too."""


def _host(failure: Consequence, absent: frozenset[str] = frozenset()) -> Row:
    return Row(failure, ABSENT | absent)


def _gpu(failure: Consequence, absent: frozenset[str] = frozenset()) -> Row:
    return Row(failure, ABSENT | absent, of_gpu=True)


def _name(failure: Consequence) -> Row:
    """Without it there is nothing to speak of, so that there is none is a failure too."""
    return Row(failure, frozenset(), of_gpu=True)


ROWS: Final[Mapping[str, Row]] = {
    # library and host
    "nvmlInitWithFlags": Row(Consequence.NODE, frozenset()),
    "nvmlShutdown": Row(Consequence.NOTHING),
    "nvmlSystemGetDriverVersion": _host(Consequence.NODE),
    "nvmlSystemGetCudaDriverVersion_v2": _host(Consequence.FACT, _NO_LIBCUDA),
    "nvmlSystemGetConfComputeState": _host(Consequence.NODE),
    "nvmlSystemGetConfComputeSettings": _host(Consequence.NODE, _OLDER_STRUCT),
    "nvmlDeviceGetCount": Row(Consequence.NODE, frozenset()),
    # the name of a GPU
    "nvmlDeviceGetHandleByIndex": _name(Consequence.GPU_LOST),
    "nvmlDeviceGetPciInfo_v3": _name(Consequence.GPU_LOST),
    "nvmlDeviceGetUUID": _name(Consequence.GPU_LOST),
    # facts of a GPU that class or enrollment needs
    "nvmlDeviceGetSerial": _gpu(Consequence.GPU_UNHEALTHY),
    "nvmlDeviceGetVbiosVersion": _gpu(Consequence.GPU_UNHEALTHY),
    "nvmlDeviceGetGspFirmwareMode": _gpu(Consequence.GPU_UNHEALTHY),
    "nvmlDeviceGetGspFirmwareVersion": _gpu(Consequence.GPU_UNHEALTHY),
    MEMORY_V2: _gpu(Consequence.GPU_UNHEALTHY, _OLDER_STRUCT),
    "nvmlDeviceGetMemoryInfo": _gpu(Consequence.GPU_UNHEALTHY),
    "nvmlDeviceGetEccMode": _gpu(Consequence.GPU_UNHEALTHY, _NO_ECC),
    "nvmlDeviceGetMigMode": _gpu(Consequence.GPU_UNHEALTHY),
    "nvmlDeviceGetVirtualizationMode": _gpu(Consequence.GPU_UNHEALTHY),
    # other facts of a GPU
    "nvmlDeviceGetBoardPartNumber": _gpu(Consequence.FACT),
    "nvmlDeviceGetName": _gpu(Consequence.FACT),
    "nvmlDeviceGetCudaComputeCapability": _gpu(Consequence.FACT),
    "nvmlDeviceGetArchitecture": _gpu(Consequence.FACT),
    "nvmlDeviceGetComputeMode": _gpu(Consequence.FACT),
    "nvmlDeviceGetPersistenceMode": _gpu(Consequence.FACT),
    "nvmlDeviceGetModuleId": _gpu(Consequence.FACT),
    "nvmlDeviceGetMaxMigDeviceCount": _gpu(Consequence.FACT),
    "nvmlDeviceGetMigDeviceHandleByIndex": _gpu(Consequence.FACT, _NO_SUCH_MIG),
    "nvmlDeviceGetAttributes_v2": _gpu(Consequence.FACT),
    "nvmlDeviceGetNvLinkState": _gpu(Consequence.FACT, _NO_SUCH_LINK),
    "nvmlDeviceGetNvLinkRemotePciInfo": _gpu(Consequence.FACT, _NO_SUCH_LINK),
    "nvmlDeviceGetNvLinkRemoteDeviceType": _gpu(Consequence.FACT, _NO_SUCH_LINK),
    "nvmlDeviceGetGpuFabricInfo": _gpu(Consequence.FACT),
    "nvmlDeviceGetGpuFabricInfoV": _gpu(Consequence.FACT, _OLDER_STRUCT),
    "nvmlDeviceGetPlatformInfo": _gpu(Consequence.FACT, _OLDER_STRUCT),
    "nvmlDeviceGetComputeRunningProcesses_v2": _gpu(Consequence.FACT),
    "nvmlDeviceGetComputeRunningProcesses_v3": _gpu(Consequence.FACT),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": _gpu(Consequence.FACT),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _gpu(Consequence.FACT),
    # events
    "nvmlEventSetCreate": _host(Consequence.NO_EVENTS),
    "nvmlDeviceGetSupportedEventTypes": _gpu(Consequence.NO_EVENTS),
    "nvmlDeviceRegisterEvents": _gpu(Consequence.NO_EVENTS),
    "nvmlEventSetWait_v2": Row(Consequence.READ_AGAIN, frozenset({TIMED_OUT})),
    "nvmlEventSetFree": Row(Consequence.NOTHING),
}
"""By the binding's name of the call."""

_FACTS: Final = frozenset({Consequence.FACT, Consequence.GPU_UNHEALTHY})
_ENDING: Final = frozenset({Consequence.NODE, Consequence.FACT, Consequence.NO_EVENTS})
"""Of calls about the host: where the driver is gone, the process has to end."""


def consequence(call: str, error: str) -> Consequence:
    """What it costs that `call` returned `error`, of a library that was initialised.

    That the driver is gone is believed of a call about the host. A GPU that says so is lost, and
    a new session begins: if the driver is gone, `nvmlInitWithFlags` reports it.
    """
    row = ROWS[call]
    if error in row.absent:
        return Consequence.NO_SUCH_FACT
    if error in DRIVER_GONE and not row.of_gpu and call != "nvmlInitWithFlags":
        return Consequence.PROCESS if row.failure in _ENDING else row.failure
    if error in LOST | DRIVER_GONE and row.of_gpu and row.failure in _FACTS:
        return Consequence.GPU_LOST
    return row.failure
