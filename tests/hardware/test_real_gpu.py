"""The agent on a real GPU, where this machine has one: `make hardware`.

`nvidia-smi` is the second opinion: it asks the same driver through its own code.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.model import GpuProcess, Inventory
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.demo.stage import Stage
from sandbox.laptop import Laptop, has_real_nvml
from sandbox.nodes import REAL
from tests.hardware.machine import HERE, cuda_program, environment, in_pod_cgroup
from tests.hardware.smi import ask, differences

pytestmark = pytest.mark.skipif(not has_real_nvml(), reason="this machine has no NVIDIA GPU")

PROBE = HERE.parent / "contracts" / "nvml_probe.py"
_PROBE_S = 50


class Reading(msgspec.Struct):
    inventory: Inventory
    processes: tuple[GpuProcess, ...]


def told_by(program: Path) -> bytes:
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment(),
        capture_output=True,
        check=False,
        timeout=_PROBE_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def reading() -> Reading:
    return msgspec.json.decode(told_by(PROBE), type=Reading)


def test_the_inventory_says_what_nvidia_smi_says() -> None:
    assert differences(reading().inventory, ask()) == ()


@pytest.fixture
def holder() -> Iterator[tuple[int, str | None]]:
    """A process with GPU memory, and the pod that its cgroup names."""
    with cuda_program("hold") as process, in_pod_cgroup(process.pid) as pod:
        yield process.pid, pod
        process.communicate(timeout=_PROBE_S)


def test_a_process_is_seen_on_its_gpu_with_its_pod(holder: tuple[int, str | None]) -> None:
    pid, pod = holder
    told = {gpu.facts["uuid"]: gpu.pids for gpu in ask().gpus}
    if not any(pid in pids for pids in told.values()):
        pytest.skip("nvidia-smi does not see this machine's process ids")
    ours = [process for process in reading().processes if process.pid == pid]
    assert [(x.gpu, x.pod_uid) for x in ours] == [
        (uuid, pod) for uuid, pids in told.items() if pid in pids
    ]


def test_a_process_that_has_ended_is_gone() -> None:
    with cuda_program("hold") as process:
        pid = process.pid
    assert pid not in {process.pid for process in reading().processes}


def test_a_fault_of_a_program_is_one_event() -> None:
    """One XID of the program's own fault on its own GPU; before it, silence."""
    first, *_ = ask().gpus
    told = msgspec.json.decode(told_by(HERE / "event_probe.py"), type=dict[str, Any])
    assert told["registered"] == sorted(gpu.uuid for gpu in reading().inventory.gpus)
    assert told["quiet"]
    assert told["happened"]
    for event in told["happened"]:
        assert (event["gpu"], event["type"]) == (first.facts["uuid"], 8)
        assert event["failure_notice"] == "xid", event


async def test_the_agent_joins_with_its_real_gpus() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:
        laptop = Laptop(Path(folder))
        try:
            await laptop.start_controller((REAL,))
            await laptop.start_real_agent()
            stage = Stage(laptop)
            try:
                node = await stage.until(REAL, _eligible, timeout_s=30)
                status, output = await stage.cli("gpus", "--server", laptop.server, "-o", "json")
            finally:
                await stage.close()
        finally:
            await laptop.close()
    assert _eligible(node), (node.code, node.detail)
    assert status == 0, output
    told = (await asyncio.to_thread(ask)).gpus
    shown = {(gpu["uuid"], gpu.get("serial") or None) for gpu in json.loads(output)["gpus"]}
    assert shown == {(gpu.facts["uuid"], gpu.facts["serial"]) for gpu in told}


def _eligible(node: pb.Node) -> bool:
    return node.state == "eligible"
