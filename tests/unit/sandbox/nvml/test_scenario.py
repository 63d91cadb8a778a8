import re
from pathlib import Path

import msgspec
import pytest

from sandbox.nvml import build as building
from sandbox.nvml.build import LIBRARY, SOURCE, BuildError, build
from sandbox.nvml.models import A100_1G, A100_3G, a100_mig, gb10, gb200, geforce, h100_sxm
from sandbox.nvml.scenario import (
    CALLS,
    FakeEvent,
    Faults,
    Scenario,
    ScenarioError,
    load,
    render,
    write,
)


def lines(scenario: Scenario) -> dict[str, str]:
    pairs = (line.partition("=") for line in render(scenario).splitlines())
    return {key: value for key, _, value in pairs}


def test_facts_are_lines_and_missing_ones_are_left_out() -> None:
    shown = lines(Scenario(gpus=(geforce(0),)))
    assert shown["gpu.0.name"] == "NVIDIA GeForce RTX 4090"
    assert shown["gpu.0.gsp_enabled"] == "0"
    assert shown["host.gpus"] == "1"
    assert "gpu.0.serial" not in shown
    assert "host.cuda" not in shown


def test_parts_have_their_own_lines() -> None:
    gpu = a100_mig(0, "a", A100_3G, A100_1G)
    shown = lines(Scenario(gpus=(h100_sxm(1), gpu), events=(FakeEvent(pci_bus_id="x", data=48),)))
    assert shown["gpu.1.mig.1.memory_mb"] == "4864"
    assert shown["gpu.0.link.17.peer_type"] == "2"
    assert shown["gpu.0.links"] == "18"
    assert shown["event.1"] == "x 8 48"


def test_faults_are_lines() -> None:
    faults = Faults(rc={"*": 15}, delay_ms={"nvmlDeviceGetUUID": 20}, hang=("nvmlEventSetWait_v2",))
    shown = lines(Scenario(faults=faults))
    assert shown["host.rc.*"] == "15"
    assert shown["host.delay_ms.nvmlDeviceGetUUID"] == "20"
    assert shown["host.hang.nvmlEventSetWait_v2"] == "1"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"pci_bus_id": "1B:00.0"}, "pci_bus_id"),
        ({"pci_bus_id": "00000000:18:00.0"}, "pci_bus_id"),
        ({"serial": "1\n2"}, "gpu.0.serial"),
        ({"name": "x" * 600}, "gpu.0.name"),
        ({"faults": Faults(rc={"nvmlDeviceGetSeriel": 3})}, "nvmlDeviceGetSeriel"),
        ({"faults": Faults(hang=("nvmlNo",))}, "nvmlNo"),
    ],
)
def test_what_the_library_cannot_act_out_is_refused(change: dict[str, object], names: str) -> None:
    gpu = msgspec.structs.replace(h100_sxm(0), **change)
    with pytest.raises(ScenarioError, match=re.escape(names)):
        render(Scenario(gpus=(gpu, h100_sxm(1))))


def test_too_many_gpus_are_refused() -> None:
    with pytest.raises(ScenarioError, match="at most 64"):
        render(Scenario(gpus=(geforce(0),) * 65))


def test_a_scenario_from_yaml() -> None:
    text = "driver: '580.1'\ngpus: [{uuid: GPU-1, pci_bus_id: '00000000:1B:00.0', name: X}]\n"
    assert load(text).gpus[0].uuid == "GPU-1"
    with pytest.raises(ScenarioError, match="drivr"):
        load("drivr: '580.1'")


@pytest.mark.parametrize(
    "text", ["driver: !!binary aGk=", "driver: 570.1\nnvml: &a x", "? [a]\n: 1", "cuda: .inf"]
)
def test_yaml_that_is_not_plain_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="scenario: line "):
        load(text)


def test_a_scenario_survives_yaml() -> None:
    scenario = Scenario(gpus=(h100_sxm(0), gb200(3), gb10(), a100_mig(1, "a", A100_1G)))
    assert load(msgspec.yaml.encode(scenario).decode()) == scenario


def test_writing_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write(tmp_path / "scenario", Scenario())
    write(tmp_path / "scenario", Scenario(driver="1"))
    assert [path.name for path in tmp_path.iterdir()] == ["scenario"]
    assert "host.driver=1\n" in (tmp_path / "scenario").read_text()


def test_models_are_the_same_every_time_and_differ_by_seed() -> None:
    assert h100_sxm(3) == h100_sxm(3)
    assert h100_sxm(3).uuid != h100_sxm(3, seed="other").uuid
    assert len({h100_sxm(i).serial for i in range(8)}) == 8


def test_every_call_of_the_library_can_be_made_to_fail() -> None:
    exported = set(re.findall(r"^API \S+ \*?(nvml\w+)\(", SOURCE.read_text(), re.MULTILINE))
    assert exported - {"nvmlInit_v2", "nvmlErrorString"} == CALLS


def test_the_library_is_built_once(tmp_path: Path) -> None:
    first = (build(tmp_path) / LIBRARY).stat().st_mtime_ns
    assert (build(tmp_path) / LIBRARY).stat().st_mtime_ns == first
    (tmp_path / "source.sha256").write_text("another")
    assert (build(tmp_path) / LIBRARY).stat().st_mtime_ns != first


def test_a_failing_compiler_says_why(tmp_path: Path) -> None:
    compiler = building.Compiler(("/bin/sh", "-c", "echo no room >&2; exit 3"), {})
    with pytest.raises(BuildError, match="ended with 3: no room"):
        building._compile(compiler, (), tmp_path)
    assert not (tmp_path / LIBRARY).exists()


def test_a_machine_without_a_compiler_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="looked for cc, gcc and clang"):
        build(tmp_path / "out", use_zig=False)
