"""The agent of an evaluation: its own GPUs on every node, and it says what it is."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sandbox.evaluation import WARNING, main, scenario
from sandbox.nvml.scenario import VARIABLE, render


def test_it_becomes_the_agent_with_the_nodes_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began: list[tuple[tuple[str, ...], Mapping[str, str]]] = []

    def execute(program: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        assert program == command[0]
        began.append((command[1:], environment))

    given = {"NODE_NAME": "worker-1", "A": "b"}
    assert main(["--config", "x"], given, state=tmp_path, execute=execute) == 0
    ((command, environment),) = began
    assert command == ("-I", "-m", "agent", "--config", "x")
    file = tmp_path / "evaluation.scenario"
    assert environment == {**given, VARIABLE: str(file)}
    assert file.read_text() == render(scenario("worker-1"))
    assert capsys.readouterr().err == f"{WARNING}\n"


def test_no_two_nodes_show_the_same_gpu_and_one_always_does() -> None:
    first, second = ({x.uuid for x in scenario(name).gpus} for name in ("worker-1", "worker-2"))
    assert len(first) == len(second) == 2
    assert first & second == set()
    assert first == {x.uuid for x in scenario("worker-1").gpus}
    serials = [x.serial for name in ("worker-1", "worker-2") for x in scenario(name).gpus]
    assert len(set(serials)) == 4


@pytest.mark.parametrize("environment", [{}, {"NODE_NAME": ""}])
def test_without_a_node_there_is_no_agent(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began: list[object] = []
    assert main([], environment, state=tmp_path, execute=lambda *x: began.append(x)) == 2
    assert began == []
    assert capsys.readouterr().err.startswith("NODE_NAME is not set")
