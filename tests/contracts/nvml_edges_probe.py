"""What this machine's NVML returns at its edges, as JSON: the name of the return by what was asked.

A program of its own, because a process can have only one NVML library. Asks the library itself:
what the agent makes of it is not looked at here.
"""

import sys
from collections.abc import Callable
from ctypes import byref, c_char, c_uint
from typing import Any, Final

import msgspec
import pynvml

from agent.gpu.nvml import error_name

_NO_SUCH: Final = 99
_UNKNOWN_EVENTS: Final = 1 << 40
_WRONG: Final = 0x7F000000
"""Version 127 of a struct."""


def raw(name: str, *arguments: Any) -> str:
    """The return of a call that the binding would prepare differently."""
    code = pynvml._nvmlGetFunctionPointer(name)(*arguments)
    return error_name(code) if code else "SUCCESS"


def told(ask: Callable[[], Any]) -> str:
    try:
        ask()
    except pynvml.NVMLError as error:
        return error_name(error.value)
    return "SUCCESS"


def versioned(call: str, struct: Any, *before: Any) -> str:
    """A call with a struct of a version that nobody has; an answer says its own version."""
    struct.version = _WRONG | (struct.version & 0xFFFFFF)
    answer = raw(call, *before, byref(struct))
    return f"version {struct.version >> 24}" if answer == "SUCCESS" else answer


def library() -> dict[str, str]:
    """Initialising is counted, and nothing answers outside it."""
    pynvml._LoadNvmlLibrary()
    found = {"count before init": told(pynvml.nvmlDeviceGetCount)}
    found["shutdown before init"] = raw("nvmlShutdown")
    pynvml.nvmlInitWithFlags(0)
    pynvml.nvmlInitWithFlags(0)
    found["second init, one shutdown"] = raw("nvmlShutdown")
    found["count while one init is left"] = told(pynvml.nvmlDeviceGetCount)
    found["last shutdown"] = raw("nvmlShutdown")
    found["count after it"] = told(pynvml.nvmlDeviceGetCount)
    return found


def devices(handle: Any) -> dict[str, str]:
    count = pynvml.nvmlDeviceGetCount()
    room = c_uint(0)
    return {
        "handle beyond the last": told(lambda: pynvml.nvmlDeviceGetHandleByIndex(count)),
        "UUID into 4 bytes": raw("nvmlDeviceGetUUID", handle, (c_char * 4)(), c_uint(4)),
        "link 99": told(lambda: pynvml.nvmlDeviceGetNvLinkState(handle, _NO_SUCH)),
        "peer of link 99": told(lambda: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, _NO_SUCH)),
        "MIG device 99": told(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, _NO_SUCH)),
        "MIG devices at most": told(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)),
        "attributes of a whole GPU": told(lambda: pynvml.nvmlDeviceGetAttributes_v2(handle)),
        "processes without room": raw(
            "nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(room), None
        ),
        "processes, version 2": told(
            lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
        ),
        "memory, version 1": told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle)),
        "memory, version 127": versioned(
            "nvmlDeviceGetMemoryInfo_v2", pynvml.c_nvmlMemory_v2_t(version=0x02000028), handle
        ),
        "fabric, version 127": versioned(
            "nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t(), handle
        ),
        "platform, version 127": versioned(
            "nvmlDeviceGetPlatformInfo", pynvml.c_nvmlPlatformInfo_v2_t(), handle
        ),
        "platform, version 1": raw(
            "nvmlDeviceGetPlatformInfo", handle, byref(pynvml.c_nvmlPlatformInfo_v1_t())
        ),
        "settings, version 127": versioned(
            "nvmlSystemGetConfComputeSettings", pynvml.c_nvmlSystemConfComputeSettings_v1_t()
        ),
    }


def events(handle: Any) -> dict[str, str]:
    types = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
    chosen = pynvml.nvmlEventSetCreate()
    found = {
        "wait on an empty set": told(lambda: pynvml.nvmlEventSetWait_v2(chosen, 1)),
        "register for no event": told(lambda: pynvml.nvmlDeviceRegisterEvents(handle, 0, chosen)),
        "register for unknown events": told(
            lambda: pynvml.nvmlDeviceRegisterEvents(handle, _UNKNOWN_EVENTS, chosen)
        ),
        "register for all": told(lambda: pynvml.nvmlDeviceRegisterEvents(handle, types, chosen)),
        "register once more": told(lambda: pynvml.nvmlDeviceRegisterEvents(handle, types, chosen)),
        "wait for nothing": told(lambda: pynvml.nvmlEventSetWait_v2(chosen, 1)),
    }
    pynvml.nvmlEventSetFree(chosen)
    return found


def main() -> dict[str, str]:
    found = library()
    pynvml.nvmlInitWithFlags(0)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found |= devices(handle) | events(handle)
    pynvml.nvmlShutdown()
    found["UUID outside a session"] = told(lambda: pynvml.nvmlDeviceGetUUID(handle))
    pynvml.nvmlInitWithFlags(0)
    found["UUID by a handle of an earlier session"] = told(lambda: pynvml.nvmlDeviceGetUUID(handle))
    pynvml.nvmlShutdown()
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main()))
