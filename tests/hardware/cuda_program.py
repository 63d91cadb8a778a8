"""A program that uses the first GPU through the driver's own libcuda: no other package is needed.

`hold`: takes 64 MiB, says `holding`, and keeps them until standard input ends.
`fault`: writes where no memory is, which ends its own context (XID 31) and harms nobody else.
"""

import ctypes
import sys
from typing import Final

_MIB: Final = 1 << 20
_ILLEGAL_ADDRESS: Final = 700
_PTX: Final = """.version 6.4
.target {target}
.address_size 64
.visible .entry stray()
{{
  .reg .b64 %where;
  .reg .b32 %what;
  mov.u64 %where, 16;
  mov.u32 %what, 1;
  st.global.u32 [%where], %what;
  ret;
}}
"""
_TARGETS: Final = ("sm_50", "sm_75")
"""The older one first; newer drivers may no longer compile for it."""


class Cuda:
    """A context on the first GPU in bus order."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.must("cuInit", 0)
        self.must("cuDeviceGet", ctypes.byref(device), 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.must("cuCtxSetCurrent", context)

    def ask(self, call: str, *arguments: object) -> int:
        """The call's CUresult."""
        return int(getattr(self._library, call)(*arguments))

    def must(self, call: str, *arguments: object) -> None:
        """As `ask`, where anything but success ends the program."""
        if code := self.ask(call, *arguments):
            sys.exit(f"{call} ended with CUDA error {code}")

    def hold(self) -> None:
        """Keep some memory for as long as somebody listens."""
        space = ctypes.c_uint64()
        self.must("cuMemAlloc_v2", ctypes.byref(space), ctypes.c_size_t(64 * _MIB))
        _say("holding")
        sys.stdin.read()

    def fault(self) -> None:
        """Run the stray write; the error it must end with is told as `faulted`."""
        function = ctypes.c_void_p()
        self.must("cuModuleGetFunction", ctypes.byref(function), self._stray(), b"stray")
        self.must("cuLaunchKernel", function, *[1] * 6, 0, None, None, None)
        code = self.ask("cuCtxSynchronize")
        if code != _ILLEGAL_ADDRESS:
            sys.exit(f"the stray write ended with CUDA error {code}, expected {_ILLEGAL_ADDRESS}")
        _say("faulted")

    def _stray(self) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        for target in _TARGETS:
            text = _PTX.format(target=target).encode()
            if self.ask("cuModuleLoadData", ctypes.byref(module), text) == 0:
                return module
        sys.exit(f"this driver compiles for none of {', '.join(_TARGETS)}")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cuda = Cuda()
    {"hold": cuda.hold, "fault": cuda.fault}[sys.argv[1]]()
