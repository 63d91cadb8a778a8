"""NVML through NVIDIA's binding: the only module that imports pynvml.

Every call goes through `Nvml.ask`, which marks it in the watch and turns whatever comes
out into an Outcome, or raises DriverReloadedError when nothing will answer in this
process again. Whoever calls runs on the one NVML thread; only waiting for events may
run on the event thread, with a watch of its own.

This module must not draw conclusions from what it reads.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pynvml

from agent.gpu import decode
from agent.gpu.consequences import Consequence, consequence
from agent.gpu.facts import (
    NO_VALUE,
    DriverReloadedError,
    Failed,
    NvmlUnavailableError,
    Outcome,
)
from agent.gpu.worker import CallWatch

T = TypeVar("T")

_NAMES: Final[dict[int, str]] = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}


def error_name(code: int) -> str:
    """`GPU_IS_LOST` for 15; `ERROR_77` for a code that this binding does not know."""
    return _NAMES.get(code, f"ERROR_{code}")


def address(handle: Any) -> int:  # noqa: ANN401 - a ctypes pointer
    """What makes two handles the same one."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _same(value: T) -> T:
    return value


class Nvml:
    """The library, as one thread asks it."""

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch

    def open(self) -> None:
        """Initialise: what is there is enumerated now. Raises NvmlUnavailableError."""
        call = "nvmlInitWithFlags"
        try:
            with self._watch.calling(call):
                pynvml.nvmlInitWithFlags(0)
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(Failed(call, error_name(error.value))) from None

    def close(self) -> None:
        """Shut down; that the driver is gone is no matter then."""
        with self._watch.calling("nvmlShutdown"):
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return

    def ask(
        self,
        call: str,
        *arguments: object,
        to: Callable[[Any], T | None] = _same,
        row: str | None = None,
    ) -> Outcome[T]:
        """`pynvml.call(*arguments)` read as a fact by `to`, which may raise ValueError.

        What is null and what a failure is in the table of `consequences`, by `row` where it is not
        by `call`. Functions that the binding lacks are returned as the library would.
        """
        function = getattr(pynvml, call, None)
        if function is None:
            return self._failure(call, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, row or call)
        try:
            with self._watch.calling(call):
                answer = function(*arguments)
            return to(answer)
        except pynvml.NVMLError as error:
            return self._failure(call, error.value, row or call)
        except ValueError:
            return Failed(call, NO_VALUE)

    def fill(
        self,
        call: str,
        handle: object,
        struct: str,
        *,
        to: Callable[[Any], T | None],
    ) -> Outcome[T]:
        """Like `ask`, for calls that fill a struct, given by the binding's name for it."""
        shape = getattr(pynvml, struct, None)
        if shape is None:
            return None
        space = shape()
        return self.ask(call, handle, ctypes.byref(space), to=lambda _: to(space))

    def cc_settings(self) -> Outcome[str]:
        """Confidential-compute mode from the settings call, whose code the binding returns."""
        call = "nvmlSystemGetConfComputeSettings"
        settings = pynvml.c_nvmlSystemConfComputeSettings_v1_t()
        code: Outcome[int] = self.ask(call, ctypes.byref(settings))
        if code is None or isinstance(code, Failed):
            return code
        if code != pynvml.NVML_SUCCESS:
            return self._failure(call, code, call)
        try:
            return decode.cc(settings.ccFeature, settings.devToolsMode, settings.multiGpuMode)
        except ValueError:
            return Failed(call, NO_VALUE)

    def _failure(self, call: str, code: int, row: str) -> Failed | None:
        failed = Failed(call, error_name(code))
        match consequence(row, failed.error):
            case Consequence.NO_SUCH_FACT:
                return None
            case Consequence.PROCESS:
                raise DriverReloadedError(failed)
            case _:
                return failed
