"""What any NVML must do for the agent: the stand-in here, the real one where a machine has it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.class_document import CLASS_FACTS
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import FailedRead, Inventory
from gpuwarden.evidence.node_identity import IDENTITY_FACTS
from sandbox.nvml.build import LIBRARY, ROOT, build
from sandbox.nvml.models import A100_1G, A100_3G, a100_mig, gb200, h100_sxm, h200_passthrough
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from tests.hang import HANG_S


class Probe(msgspec.Struct):
    state: str
    inventory: Inventory
    again: Inventory
    failed_reads: tuple[FailedRead, ...]
    processes: tuple[dict[str, Any], ...] | None


def probe(**environment: str) -> Probe:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("nvml_probe.py"))],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Probe)


@pytest.fixture(params=["h100", "mixed", "passthrough", "real"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Probe:
    if request.param == "real":
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        result = probe(**kept)
        if result.state != "READY":
            pytest.skip(f"this machine has no NVML: {result.failed_reads[0].error}")
        return result
    gpus = {
        "h100": [h100_sxm(i) for i in range(8)],
        "passthrough": [h200_passthrough(0)],
        "mixed": [gb200(0), gb200(1), a100_mig(1, "a", A100_3G, A100_1G)],
    }[request.param]
    path = tmp_path / "scenario"
    write(path, Scenario(gpus=tuple(gpus), cuda=12080))
    return probe(LD_LIBRARY_PATH=str(build()), **{VARIABLE: str(path)})


def test_an_inventory_is_well_formed_and_stays_the_same(found: Probe) -> None:
    inventory = found.inventory
    assert inventory_findings(inventory) == ()
    assert inventory.gpus
    assert [gpu.index for gpu in inventory.gpus] == list(range(len(inventory.gpus)))
    assert inventory.lost == ()
    assert inventory.host.driver
    assert found.again == inventory


def test_every_fact_that_trust_needs_was_read(found: Probe) -> None:
    needed = CLASS_FACTS | IDENTITY_FACTS
    assert [read for read in found.failed_reads if read.fact in needed] == []
    for gpu in found.inventory.gpus:
        assert gpu.pci
        assert gpu.pci.startswith("10de:")
        assert gpu.vbios


def test_a_library_that_cannot_be_loaded_is_a_state_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_text("not a library")
    result = probe(LD_LIBRARY_PATH=str(tmp_path))
    assert result.state == "NVML_UNAVAILABLE"
    assert result.failed_reads == (
        FailedRead(fact="gpus", gpu=None, call="nvmlInitWithFlags", error="LIBRARY_NOT_FOUND"),
    )
    assert result.inventory.gpus == ()
