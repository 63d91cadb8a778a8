"""`config print|validate|schema`: what the processes would start with."""

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.gpuwarden.cli.conftest import Cli

AGENT = ("--process", "agent", "--set", "trustDomain=example.org", "--set", "cluster=prod")
MORE = ("--set", "workloadApi=unix:///x", "--set", "agent.nodeName=n1")


def test_a_configuration_is_printed_with_its_sources(cli: Cli) -> None:
    ran = cli("config", "print", *AGENT, *MORE)
    assert 'trustDomain: "example.org"  # flag --set trustDomain\n' in ran.out
    found = json.loads(cli("config", "print", *AGENT, *MORE, "-o", "json").out)
    assert found["agent.nodeName"] == {"value": "n1", "source": "flag --set agent.nodeName"}
    assert "agent.nodeName\n" in cli("config", "print", *AGENT, *MORE, "-o", "name").out


def test_a_valid_configuration(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(cli("config", "print", *AGENT, *MORE).out)
    ran = cli("config", "validate", "--process", "agent", "--config", str(path))
    assert (ran.code, ran.out) == (0, f"{path}: valid AgentConfig\n")


def test_a_wrong_configuration_names_every_finding(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("apiVersion: config.gpuwarden.dev/v1alpha1\nkind: AgentConfig\nnope: 1\n")
    ran = cli("config", "validate", "-f", str(path), *AGENT, "--no-environment")
    assert ran.code == 2
    assert "nope" in ran.err
    assert "agent.nodeName: is required" in ran.err
    assert cli("config", "validate", *AGENT, "--set", "x").code == 2
    assert cli("config", "validate", *AGENT, "-f", "/nowhere").code == 2


def test_the_environment_counts_unless_switched_off(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWARDEN_CLUSTER", "from-environment")
    monkeypatch.setenv("GPUWARDEN_SERVER", "unix:/x")
    base = ("config", "print", "--process", "agent", "--set", "trustDomain=a", *MORE, "-o", "json")
    assert json.loads(cli(*base).out)["cluster"]["value"] == "from-environment"
    ran = cli(*base, "--no-environment")
    assert ran.code == 2
    assert "cluster: is required" in ran.err


@pytest.mark.parametrize("process", ["agent", "controller", "score"])
def test_the_schema_of_a_configuration(cli: Cli, process: str) -> None:
    found = json.loads(cli("config", "schema", "--process", process).out)
    assert found["properties"]["kind"]["const"].lower() == f"{process}config"
    assert yaml.safe_load(cli("config", "schema", "--process", process, "-o", "yaml").out) == found


HASH = "v1:sha256:" + "a" * 64
VERSION = "apiVersion: config.gpuwarden.dev/v1alpha1\n"
AGENT_FILE = (
    f"{VERSION}kind: AgentConfig\ntrustDomain: example.org\ncluster: prod\n"
    "workloadApi: unix:///x\nagent: {nodeName: n1}\n"
)
CONTROLLER_FILE = (
    f"{VERSION}kind: ControllerConfig\ntrustDomain: example.org\ncluster: prod\n"
    "workloadApi: unix:///x\n"
)
POLICY_FILE = f"{VERSION}kind: Policy\n"
CLASSES = f"classes: [{{name: a, hashes: [{{hash: '{HASH}'}}]}}]\n"

FAULTS = {
    # of the document
    "no YAML": ("a: [\n", "F (line 2): got expected the node content"),
    "an empty file": ("", "kind (file F): is required; expected one of AgentConfig, "),
    "a list": ("- kind: Policy\n", "F (line 1): got something else; expected a mapping of keys"),
    "no kind": (VERSION, "kind (file F): is required; expected one of AgentConfig, "),
    "a near kind": (
        f"{VERSION}kind: Polcy\n",
        "kind (file F, line 2): got 'Polcy'; expected one of AgentConfig, ControllerConfig, Score",
    ),
    "a kind of Kubernetes": (
        f"{VERSION}kind: NodeEnrollment\n",
        "kind (file F, line 2): got 'NodeEnrollment'; expected one of AgentConfig, ControllerConfi",
    ),
    "another version": (
        AGENT_FILE.replace("v1alpha1", "v9"),
        "apiVersion (file F, line 1): got 'config.gpuwarden.dev/v9'; expected config.gpuwarden.",
    ),
    "no version": (
        AGENT_FILE.removeprefix(VERSION),
        "apiVersion (file F): is required; expected config.gpuwarden.dev/v1alpha1",
    ),
    # of a configuration
    "a missing key": (
        AGENT_FILE.replace("cluster: prod\n", ""),
        "cluster: is required; expected a name of letters",
    ),
    "an unknown key": (f"{AGENT_FILE}zzz: 1\n", "zzz (file F, line 7): unknown key"),
    "a near key": (
        AGENT_FILE.replace("cluster", "cluter") + "cluster: prod\n",
        "cluter (file F, line 4): unknown key; did you mean cluster?",
    ),
    "a key in another style": (
        AGENT_FILE.replace("agent: {", "agent: {state_dir: /x, "),
        "agent.state_dir (file F, line 6): unknown key; did you mean agent.stateDir?",
    ),
    "a near section": (
        f"{AGENT_FILE}telemetri: {{otlp: 'http://x'}}\n",
        "telemetri (file F, line 7): unknown key; did you mean telemetry?",
    ),
    "a near key in a section": (
        f"{CONTROLLER_FILE}attestation: {{leese: 90s}}\n",
        "attestation.leese (file F, line 6): unknown key; did you mean attestation.lease?",
    ),
    "an unknown key in a section": (
        f"{CONTROLLER_FILE}clock: {{zzz: 1}}\n",
        "clock.zzz (file F, line 6): unknown key; expected one of warn, refuse",
    ),
    "a near key two sections down": (
        f"{CONTROLLER_FILE}extender: {{tls: {{clientCA: x}}}}\n",
        "extender.tls.clientCA (file F, line 6): unknown key; did you mean extender.tls.clientCa?",
    ),
    "a key outside its section": (
        f"{AGENT_FILE}nodeName: n1\n",
        "nodeName (file F, line 7): unknown key; did you mean agent.nodeName?",
    ),
    "sections joined by dots": (
        f"{AGENT_FILE}agent.stateDir: /x\n",
        "agent.stateDir (file F, line 7): unknown key; expected sections nested, not joined by",
    ),
    "a repeated key": (f"{AGENT_FILE}cluster: b\n", "F (line 7): got key 'cluster' again; expec"),
    "a wrong type": (
        f"{AGENT_FILE}log: {{level: [info]}}\n",
        "log.level (file F, line 7): got a li",
    ),
    "no section": (f"{AGENT_FILE}log: info\n", "log (file F, line 7): got 'info'; expected a sect"),
    "out of range": (
        f"{CONTROLLER_FILE}attestation: {{interval: 9h}}\n",
        "attestation.interval (file F, line 6): got '9h'; expected a duration from 100ms to 45s",
    ),
    "no such word": (
        f"{AGENT_FILE}log: {{level: loud}}\n",
        "log.level (file F, line 7): got 'loud'",
    ),
    "keys that do not fit together": (
        f"{CONTROLLER_FILE}clock: {{warn: 20s, refuse: 10s}}\n",
        "clock.warn (file F, line 6): got 20s; expected at most clock.refuse = 10s",
    ),
    "a secret's file that is not there": (
        f"{CONTROLLER_FILE}telemetry: {{otlpHeadersFile: /nowhere}}\n",
        "telemetry.otlpHeadersFile (file F, line 6): got <redacted>; expected a readable file",
    ),
    # of a policy
    "a policy's wrong version": (
        "apiVersion: v1\nkind: Policy\n",
        "apiVersion (file F): got 'v1'; expected config.gpuwarden.dev/v1alpha1",
    ),
    "a policy's missing key": (
        f"{POLICY_FILE}classes: [{{hashes: [{{hash: '{HASH}'}}]}}]\n",
        "classes[0].name (file F): is required; expected a text",
    ),
    "a policy's unknown key": (f"{POLICY_FILE}zzz: 1\n", "zzz (file F): unknown key; expected one"),
    "a policy's near key": (
        f"{POLICY_FILE}min_levl: L1\n",
        "min_levl (file F): unknown key; did you mean minLevel?",
    ),
    "a policy's near key in an element": (
        f"{POLICY_FILE}{CLASSES}".replace("{hash:", "{notBefor: x, hash:"),
        "classes[0].hashes[0].notBefor (file F): unknown key; did you mean notBefore?",
    ),
    "a near node attestor": (
        f"{POLICY_FILE}attestors: {{k8s_pstat: {{}}}}\n",
        "attestors.k8s_pstat (file F): unknown key; did you mean k8s_psat?",
    ),
    "a policy's repeated key": (
        f"{POLICY_FILE}minLevel: L0\nminLevel: L1\n",
        "F (line 4): got key 'minLevel' again; expected each key once",
    ),
    "a policy's wrong type": (
        f"{POLICY_FILE}pools: a\n",
        "pools (file F): got 'a'; expected a list",
    ),
    "a policy's empty list": (
        f"{POLICY_FILE}allowedHashes: []\n",
        "allowedHashes (file F): got a list of 0; expected 1 to 4096 elements",
    ),
    "a policy's wrong word": (
        f"{POLICY_FILE}minLevel: L9\n",
        "minLevel (file F): got 'L9'; expected",
    ),
    "a wrong selector": (
        f"{POLICY_FILE}labels: {{big: memori>=40Gi}}\n",
        "labels.big (file F): got 'memori>=40Gi'; expected a key out of model",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_the_key_as_it_was_written(
    cli: Cli, tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "F.yaml"
    path.write_text(text)
    ran = cli("config", "validate", "-f", str(path), "--no-environment")
    assert ran.code == 2
    assert ran.out == ""
    [line] = ran.err.replace(str(path), "F").splitlines()
    assert line.removeprefix("gpuwarden: ").removeprefix("error: ").startswith(expected)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (AGENT_FILE, "AgentConfig"),
        (CONTROLLER_FILE, "ControllerConfig"),
        (f"{VERSION}kind: ScoreConfig\nlisten: ':8080'\n", "ScoreConfig"),
        (POLICY_FILE, "Policy"),
    ],
)
def test_the_kind_that_was_found_is_told(cli: Cli, tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "F.yaml"
    path.write_text(text)
    ran = cli("config", "validate", "-f", str(path), "--no-environment")
    assert (ran.code, ran.out, ran.err) == (0, f"{path}: valid {kind}\n", "")


def test_flags_and_variables_are_named_as_they_were_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWARDEN_LOG_LEVL", "info")
    monkeypatch.setenv("GPUWARDEN_LOG_FORMAT", "xml")
    ran = cli("config", "validate", *AGENT, *MORE, "--set", "log.levle=info")
    assert ran.code == 2
    for expected in (
        "GPUWARDEN_LOG_LEVL (environment): unknown variable; did you mean GPUWARDEN_LOG_LEVEL?",
        "GPUWARDEN_LOG_FORMAT (environment, sets log.format): got 'xml'; expected json or text",
        "--set log.levle (flag): unknown key; did you mean --set log.level?",
    ):
        assert expected in ran.err


def test_a_file_of_another_kind_has_one_fault(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "F.yaml"
    path.write_text(POLICY_FILE + CLASSES)
    ran = cli("config", "validate", "-f", str(path), "--process", "agent", "--no-environment")
    assert ran.code == 2
    assert f"kind (file {path}, line 2): got 'Policy'; expected AgentConfig" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_the_policy_that_a_configuration_names_is_checked_too(cli: Cli, tmp_path: Path) -> None:
    policy, config = tmp_path / "policy.yaml", tmp_path / "c.yaml"
    config.write_text(f"{CONTROLLER_FILE}policy: {{file: {policy}}}\n")
    command = ("config", "validate", "-f", str(config), "--no-environment")
    assert cli(*command).out == (
        f"{config}: valid ControllerConfig\n"
        f"{policy}: policy.file is not on this machine, so it is not checked\n"
    )
    policy.write_text(POLICY_FILE)
    assert cli(*command).out == f"{config}: valid ControllerConfig\n{policy}: valid Policy\n"
    policy.write_text(f"{POLICY_FILE}allowedHashes: [abc]\n")
    ran = cli(*command)
    assert ran.code == 2
    assert f"allowedHashes[0] (file {policy}): got 'abc'; expected v1:sha256:" in ran.err
    static = ("--set", "insecureStaticHashes=true")
    assert cli(*command, *static).out.endswith(f"{policy}: valid Policy\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--config or --process is required"),
        (("-f", "/nowhere"), "--config: got '/nowhere'; expected a readable file (No such file"),
        (("-f", "{policy}", "--set", "cluster=a"), "--set: a policy has no keys to set"),
    ],
)
def test_what_is_to_be_checked_must_be_clear(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY_FILE)
    ran = cli("config", "validate", *(x.format(policy=policy) for x in arguments))
    assert ran.code == 2
    assert expected in ran.err


OBJECTS = f"""\
apiVersion: gpuwarden.dev/v1alpha1
kind: AttestationPolicy
metadata: {{name: cluster}}
spec: {{minLevel: L1}}
---
apiVersion: gpuwarden.dev/v1alpha1
kind: AttestationClass
metadata: {{name: h100}}
spec: {{hashes: [{{hash: '{HASH}'}}]}}
"""


def test_custom_resources_are_checked_as_the_controller_judges_them(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "F.yaml"
    path.write_text(OBJECTS)
    command = ("config", "validate", "-f", str(path), "--no-environment")
    ran = cli(*command)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"{path}: valid AttestationPolicy/cluster\n{path}: valid AttestationClass/h100\n"
    )
    assert "--set: a policy has no keys to set" in cli(*command, "--set", "a=b").err
    path.write_text(OBJECTS.replace("minLevel", "minLevle").replace("{hash:", "{hsh:"))
    ran = cli(*command)
    assert (ran.code, ran.out) == (2, "")
    for expected in (
        f"/cluster: spec.minLevle (file {path}): unknown key; did you mean minLevel?\n",
        f"/h100: spec.hashes[0].hsh (file {path}): unknown key; did you mean hash?\n",
        f"/h100: spec.hashes[0].hash (file {path}): is required; expected a text",
    ):
        assert expected in ran.err
    path.write_text(OBJECTS.replace("hash: 'v1", "hash: 'v2"))
    expected = f"AttestationClass/h100: spec.hashes[0].hash (file {path}): got 'v2:sha256:"
    assert expected in cli(*command).err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{OBJECTS}kind: Again\n", "the document (file F, line 10): got key 'kind' again"),
        (OBJECTS.replace("h100", "H"), "AttestationClass: metadata.name (file F, line 6): got 'H'"),
        ('{"kind": "AttestationClass", "spec": 1}', "AttestationClass: metadata.name (file F, li"),
    ],
)
def test_a_fault_around_a_custom_resource_names_file_and_line(
    cli: Cli, tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "F.yaml"
    path.write_text(text)
    ran = cli("config", "validate", "-f", str(path), "--no-environment")
    assert ran.code == 2
    assert expected in ran.err.replace(str(path), "F")


def test_a_near_kind_is_suggested(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "F.yaml"
    path.write_text("kind: agentconfg\n")
    assert "; did you mean AgentConfig?" in cli("config", "validate", "-f", str(path)).err
