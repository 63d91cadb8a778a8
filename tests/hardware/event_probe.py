"""Registers for the events of every GPU, lets a program fault, and tells what came, as JSON.

A program of its own, because a process can have only one NVML library.
"""

import sys
import time
from typing import Any, Final

import msgspec

from agent.gpu.events import EventSet, Happening, failure_notice, register
from agent.gpu.facts import Failed
from agent.gpu.nvml import Nvml
from agent.gpu.survey import take
from agent.gpu.worker import CallWatch
from tests.hardware.machine import cuda_program

_WAIT_MS: Final = 200
_ENOUGH_S: Final = 15.0


def main() -> dict[str, Any]:
    nvml = Nvml(CallWatch())
    nvml.open()
    try:
        failures: list[Failed] = []
        events = register(nvml, take(nvml).devices, failures.append)
        if not isinstance(events, EventSet):
            return {"registered": [], "failed": str(failures), "happened": []}
        quiet = events.wait(nvml, _WAIT_MS)
        with cuda_program("fault"):
            happened = _first(events, nvml)
        events.free(nvml)
    finally:
        nvml.close()
    return {
        "registered": sorted(events.gpus),
        "quiet": quiet is None,
        "happened": [
            {
                "gpu": x.gpu,
                "type": x.type,
                "xid": x.data,
                "failure_notice": failure_notice(x).kind.value,
            }
            for x in happened
        ],
    }


def _first(events: EventSet, nvml: Nvml) -> list[Happening]:
    """The first event and what comes right after it."""
    found: list[Happening] = []
    end = time.monotonic() + _ENOUGH_S
    while time.monotonic() < end:
        outcome = events.wait(nvml, _WAIT_MS)
        assert not isinstance(outcome, Failed), outcome
        if outcome is not None:
            found.append(outcome)
        elif found:
            break
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main()))
