import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent import settings as agent_settings
from controller import settings as controller_settings
from gpuwarden import __version__
from gpuwarden.settings.agent import AgentSettings
from gpuwarden.settings.controller import ControllerSettings
from gpuwarden.settings.loader import AGENT, CONTROLLER, ConfigType, Inputs, load
from gpuwarden.settings.report import effective, json_schema, render
from gpuwarden.settings.start import read_secret_file, settings_or_exit

ENVIRONMENT = {
    "SPIFFE_ENDPOINT_SOCKET": "unix:///run/spire.sock",
    "GPUWARDEN_TRUST_DOMAIN": "example.org",
    "GPUWARDEN_CLUSTER": "lab",
    "GPUWARDEN_TELEMETRY_OTLP_HEADERS": "authorization=hunter2",
}


def start(*argv: str, **environment: str) -> ControllerSettings:
    return settings_or_exit(
        "gpuwarden-controller", CONTROLLER, argv, ENVIRONMENT | environment
    ).settings


def test_flags_of_every_form_are_taken_in_order() -> None:
    settings = start(
        "--attestation.interval",
        "5s",
        "--attestation.lease=40s",
        "--set",
        "attestation.interval=6s",
        "--insecure-static-hashes",
    )

    assert str(settings.attestation.interval) == "6s"
    assert str(settings.attestation.lease) == "40s"
    assert settings.insecure_static_hashes


def test_file_is_named_by_flag_or_environment(tmp_path: Path) -> None:
    for name, level in (("a.yaml", "warn"), ("b.yaml", "error")):
        (tmp_path / name).write_text(
            "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: ControllerConfig\n"
            f"log: {{level: {level}}}\n"
        )
    by_environment = {"GPUWARDEN_CONFIG": str(tmp_path / "a.yaml")}

    assert start(**by_environment).log.level == "warn"
    assert start("--config", str(tmp_path / "b.yaml"), **by_environment).log.level == "error"


def test_print_config_shows_everything_but_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        start("--print-config", "--attestation.interval", "5s")

    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert '  interval: "5s"  # flag --attestation.interval' in shown
    assert "hunter2" not in shown
    assert set(yaml.safe_load(shown)) >= {"apiVersion", "kind", "trustDomain", "attestation"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--attestation.intervall", "5s"],
            "(flag): unknown flag; did you mean --attestation.interval?",
        ),
        (["--attestation.intervall=5s", "--log.level", "loud"], "got 'loud'; expected debug"),
        (["--set", "nonsense=1"], "--set nonsense (flag): unknown key"),
        (["--set", "nonsense"], "expected KEY=VALUE"),
        (["stray"], "unexpected argument 'stray'"),
        (["--trustDomain"], "expected one argument"),
        (["--attestation.i", "5s"], "--attestation.i (flag): unknown flag"),
        (["--config", "/nonexistent/file"], "a readable file (No such file or directory)"),
        (["--config", "a\0b"], "a readable file"),
    ],
)
def test_bad_command_line_ends_with_2_and_says_why(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        start(*argv)

    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_every_finding_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        start("--bogus", "1", "--log.level", "loud", GPUWARDEN_AUDIT_DIR="x")

    assert len(capsys.readouterr().err.splitlines()) == 3


def test_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_or_exit("gpuwarden-agent", AGENT, ["--help"], {})

    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"--{key.name}" in shown for key in AGENT.keys)
    assert "--insecure-static-hashes" not in shown


def test_each_program_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    for program in ("gpuwarden-score", "gpuwarden-agent"):
        with pytest.raises(SystemExit) as ended:
            settings_or_exit(program, AGENT, ["--version"], {})
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"{program} {__version__}\n"


def test_secret_file_is_bounded_text(tmp_path: Path) -> None:
    good, big, binary = tmp_path / "good", tmp_path / "big", tmp_path / "binary"
    good.write_text("s\n")
    big.write_bytes(b"x" * 70_000)
    binary.write_bytes(b"\xff")

    assert read_secret_file(str(good)) == "s\n"
    with pytest.raises(ValueError, match="more than 65536 bytes"):
        read_secret_file(str(big))
    with pytest.raises(ValueError, match="UTF-8"):
        read_secret_file(str(binary))


def test_rendered_configuration_gives_the_same_settings() -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if "HEADERS" not in name}
    flags = [
        ("staticHashes", '{"n1":"a:b"}', "--x"),
        ("insecureStaticHashes", "true", "--x"),
        ("limits.streams", "300", "--x"),
        ("audit.reserve", "0", "--x"),
    ]
    first = load(CONTROLLER, Inputs(flags, environment))

    again = load(CONTROLLER, Inputs(file=("again.yaml", render(first).encode())))

    assert again.settings == first.settings


def test_effective_values_name_their_source() -> None:
    shown = effective(load(CONTROLLER, Inputs(environment=ENVIRONMENT)))

    assert shown["cluster"] == {"value": "lab", "source": "environment GPUWARDEN_CLUSTER"}
    assert shown["telemetry.otlpHeaders"]["value"] == "<redacted>"
    assert shown["policy.file"] == {"value": "none", "source": "default"}


@pytest.mark.parametrize("config", [AGENT, CONTROLLER], ids=lambda config: config.kind)
def test_schema_describes_every_key(config: ConfigType[Any]) -> None:
    schema = json_schema(config)

    for key in config.keys:
        node = schema
        for part in key.path:
            assert node["additionalProperties"] is False
            node = node["properties"][part]
        assert key.spec.help in node["description"]
    assert schema["properties"]["kind"] == {"const": config.kind}
    assert "otlpHeadersFile" in schema["properties"]["telemetry"]["properties"]
    json.dumps(schema)


def test_each_process_finds_its_settings_at_home() -> None:
    assert agent_settings.AgentSettings is AgentSettings
    assert controller_settings.ControllerSettings is ControllerSettings
