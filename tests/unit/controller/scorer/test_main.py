"""Settings of the service: its own names, and those of the older service."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.scorer import app
from controller.scorer.__main__ import main, misspelled, with_listen
from controller.scorer.app import parameters_of
from controller.scoring.parameters import Parameters
from gpuwarden.settings.loader import SCORE, Inputs, Loaded, SettingsError, load
from gpuwarden.settings.score import ScoreSettings
from gpuwarden.settings.shared import LogLevel
from gpuwarden.settings.values import Address


def loaded(environment: Mapping[str, str]) -> Loaded[ScoreSettings]:
    return load(SCORE, Inputs(environment=with_listen(environment)))


def test_defaults_are_those_of_the_score() -> None:
    settings = loaded({}).settings
    assert parameters_of(settings.score) == Parameters()
    assert settings.listen == Address("127.0.0.1", 8080)


def test_names_of_the_older_service_are_taken() -> None:
    settings = loaded(
        {
            "SCHEDULER_LAMBDA_UNCERTAINTY": "0.1",
            "SCHEDULER_BETA_EXPLORATION": "0.2",
            "SCHEDULER_GAMMA_INTERFERENCE": "0",
            "SCHEDULER_TAU_SQUARED": "1e-3",
            "SCHEDULER_EXPLORATION_CAP": "1",
            "SCHEDULER_ENABLE_INTERFERENCE": "False",
            "SCHEDULER_ENABLE_SINKHORN": "1",
            "SCHEDULER_RETENTION_OBSERVATIONS": "500",
            "SCHEDULER_CHECKPOINT_INTERVAL": "60",
            "SCHEDULER_HOST": "0.0.0.0",  # noqa: S104 -- what the variable may hold
            "SCHEDULER_PORT": "9000",
            "SCHEDULER_LOG_LEVEL": "warn",
            "SCHEDULER_SQLITE_PATH": "/data/s.db",
            "SCHEDULER_REDIS_URL": "redis://none",
        }
    ).settings
    assert parameters_of(settings.score) == Parameters(
        lambda_uncertainty=0.1,
        beta_exploration=0.2,
        gamma_interference=0.0,
        tau_squared=0.001,
        exploration_cap=1.0,
        enable_interference=False,
        enable_sinkhorn=True,
        retention_observations=500,
    )
    assert (settings.checkpoint_interval, str(settings.database)) == (60, "/data/s.db")
    assert str(settings.listen) == "0.0.0.0:9000"
    assert settings.log.level is LogLevel.WARN


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({"SCHEDULER_PORT": "9000"}, "127.0.0.1:9000"),
        ({"SCHEDULER_HOST": "::"}, "[::]:8080"),
        ({"SCHEDULER_PORT": "tcp://10.0.0.7:8080"}, "127.0.0.1:8080"),
        ({"SCHEDULER_PORT": "odd"}, "127.0.0.1:8080"),
    ],
)
def test_host_and_port_are_one_address(given: dict[str, str], address: str) -> None:
    assert str(loaded(given).settings.listen) == address


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SCHEDULER_TAU_SQURED", "unknown variable; did you mean SCHEDULER_TAU_SQUARED?"),
        ("SCHEDULER_PORTS", "unknown variable; did you mean SCHEDULER_PORT?"),
        ("SCHEDULER_COLOUR", "unknown variable"),
    ],
)
def test_a_misspelled_variable_is_told(name: str, said: str) -> None:
    assert [str(x) for x in misspelled({name: "1"})] == [f"{name} (environment): {said}"]


@pytest.mark.parametrize(
    "name",
    [
        "SCHEDULER_TAU_SQUARED",
        "SCHEDULER_LISTEN",
        "SCHEDULER_PORT",
        "SCHEDULER_REDIS_URL",
        "SCHEDULER_SERVICE_HOST",
        "SCHEDULER_SERVICE_PORT_HTTP",
        "SCHEDULER_PORT_8080_TCP_ADDR",
        "SCHEDULER_EXTENDER_PORT",
        "PATH",
    ],
)
def test_what_is_known_and_what_kubernetes_sets_is_no_mistake(name: str) -> None:
    assert misspelled({name: "1"}) == ()


def test_it_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run(loaded: Loaded[ScoreSettings], **_: object) -> int:
        return await app.run(loaded, announce=print, stop=ended())

    monkeypatch.setenv("SCHEDULER_TAU_SQURED", "1")
    monkeypatch.setattr("controller.scorer.__main__.run", run)
    assert main(["--listen", "127.0.0.1:0", "--database", str(tmp_path / "s.db")]) == 0
    assert "did you mean SCHEDULER_TAU_SQUARED?" in "".join(capfd.readouterr())


def ended() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LAMBDA_UNCERTAINTY", "-1"),
        ("LAMBDA_UNCERTAINTY", "nan"),
        ("BETA_EXPLORATION", "inf"),
        ("TAU_SQUARED", "0"),
        ("EXPLORATION_CAP", "1.1"),
        ("EXPLORATION_CAP", "many"),
        ("ENABLE_SINKHORN", "perhaps"),
        ("RETENTION_OBSERVATIONS", "0"),
    ],
)
def test_a_wrong_value_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as error:
        loaded({f"SCHEDULER_{name}": value})
    [finding] = error.value.findings
    assert finding.key == f"SCHEDULER_{name}"
    assert value in str(finding)


@pytest.mark.parametrize(
    ("text", "types"),
    [("", {}), ("A100-80GB=79.6, L4=22", {"A100-80GB": 79.6, "L4": 22.0})],
)
def test_gpu_types(text: str, types: dict[str, float]) -> None:
    found = loaded({"GPUWARDEN_SCORE_GPU_TYPES": text})
    assert found.settings.score.gpu_types == types
    key = next(x for x in SCORE.keys if x.name == "score.gpuTypes")
    assert key.spec.kind.parse(key.shown(types)) == types


@pytest.mark.parametrize("text", ["A100", "A100=", "A100=0", "A100=nan", "a b=1", "a=1,a=2", "=1"])
def test_gpu_types_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="A100-80GB=80"):
        loaded({"GPUWARDEN_SCORE_GPU_TYPES": text})


def test_help_names_flags_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for text in ("--listen", "--database", "--score.explorationCap", "gpuwarden-score export"):
        assert text in shown
