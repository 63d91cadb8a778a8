"""What NVML returns at its edges: the stand-in as the real one was seen to, and the real one here.

Returns that differ by hardware or driver without a difference for the agent stand together.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

from sandbox.laptop import has_real_nvml
from sandbox.nvml.build import ROOT, build
from sandbox.nvml.models import h100_sxm, h200_passthrough
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from tests.hang import HANG_S

_NO_LINK: Final = {"NOT_SUPPORTED", "INVALID_ARGUMENT"}
_NO_MIG: Final = {"NOT_FOUND", "NOT_SUPPORTED", "INVALID_ARGUMENT"}
_NO_VERSION: Final = {"FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"}
ALLOWED: Final[dict[str, set[str]]] = {
    "count before init": {"UNINITIALIZED"},
    "shutdown before init": {"UNINITIALIZED"},
    "second init, one shutdown": {"SUCCESS"},
    "count while one init is left": {"SUCCESS"},
    "last shutdown": {"SUCCESS"},
    "count after it": {"UNINITIALIZED"},
    "handle beyond the last": {"INVALID_ARGUMENT"},
    "UUID into 4 bytes": {"INSUFFICIENT_SIZE"},
    "link 99": _NO_LINK,
    "peer of link 99": _NO_LINK,
    "MIG device 99": _NO_MIG,
    "MIG devices at most": {"SUCCESS"},
    "attributes of a whole GPU": {"NOT_SUPPORTED"},
    "processes without room": {"SUCCESS", "INSUFFICIENT_SIZE"},
    "processes, version 2": {"SUCCESS"},
    "memory, version 1": {"SUCCESS"},
    "memory, version 127": _NO_VERSION,
    "fabric, version 127": _NO_VERSION,
    "platform, version 127": {"version 2", "NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH"},
    "platform, version 1": {"SUCCESS", "NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH"},
    "settings, version 127": _NO_VERSION,
    "wait on an empty set": {"TIMEOUT"},
    "register for no event": {"SUCCESS"},
    "register for unknown events": {"NOT_SUPPORTED"},
    "register for all": {"SUCCESS"},
    "register once more": {"SUCCESS"},
    "wait for nothing": {"TIMEOUT"},
    "UUID outside a session": {"UNINITIALIZED"},
    "UUID by a handle of an earlier session": {"INVALID_ARGUMENT"},
}
SEEN: Final = {
    **{what: next(iter(returns)) for what, returns in ALLOWED.items() if len(returns) == 1},
    "link 99": "NOT_SUPPORTED",
    "peer of link 99": "NOT_SUPPORTED",
    "MIG device 99": "NOT_FOUND",
    "processes without room": "SUCCESS",
    "memory, version 127": "FUNCTION_NOT_FOUND",
    "fabric, version 127": "ARGUMENT_VERSION_MISMATCH",
    "platform, version 127": "version 2",
    "platform, version 1": "SUCCESS",
    "settings, version 127": "ARGUMENT_VERSION_MISMATCH",
}
"""Driver 580.159.04 with one H100 or H200 in a virtual machine."""


def returns(**environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("nvml_edges_probe.py"))],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=dict[str, str])


def of_the_stand_in(path: Path, scenario: Scenario) -> dict[str, str]:
    write(path, scenario)
    return returns(LD_LIBRARY_PATH=str(build()), **{VARIABLE: str(path)})


def test_the_stand_in_returns_what_real_hardware_returned(tmp_path: Path) -> None:
    scenario = Scenario(driver="580.159.04", cuda=13000, gpus=(h200_passthrough(0),))
    assert of_the_stand_in(tmp_path / "scenario", scenario) == SEEN


@pytest.mark.parametrize("where", ["board", "real"])
def test_returns_at_the_edges(where: str, tmp_path: Path) -> None:
    if where == "board":
        gpus = tuple(h100_sxm(number) for number in range(8))
        found = of_the_stand_in(tmp_path / "scenario", Scenario(cuda=12080, gpus=gpus))
    elif has_real_nvml():
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        found = returns(**kept)
    else:
        pytest.skip("this machine has no NVIDIA GPU")
    assert found.keys() == ALLOWED.keys()
    assert {what: told for what, told in found.items() if told not in ALLOWED[what]} == {}
