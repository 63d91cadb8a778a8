"""`support-bundle`: one archive whatever works, with its gaps named, and never over a file."""

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.app import run
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.support.part import CONTROLLER_PARTS
from gpuwarden.wire.v1 import support_pb2 as sup
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli


def files_in(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        read = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in read.items() if file}


def manifest(path: Path) -> Any:
    return json.loads(files_in(path)["manifest.json"])


def gaps(path: Path) -> dict[str, str]:
    return {one["path"]: one["why"] for one in manifest(path)["missing"]}


@pytest.fixture
def told(fleet: FakeFleetServer) -> FakeFleetServer:
    fleet.support = [
        sup.CollectResponse(part=name, content=b"gpuwarden_ready 1\n")
        if name.endswith(".prom")
        else sup.CollectResponse(part=name, content=b'{"a":1}', withheld=["x"])
        for name in CONTROLLER_PARTS
    ]
    return fleet


def test_all_parts_of_a_controller_are_in_it(
    ask: Cli, told: FakeFleetServer, tmp_path: Path
) -> None:
    path = tmp_path / "bundle.tar.gz"
    ran = ask("support-bundle", "--output", str(path))
    assert (ran.code, ran.lines) == (0, [str(path)])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {f"controller/{name}" for name in CONTROLLER_PARTS} <= set(files_in(path))
    assert "local/versions.json" in files_in(path)
    assert manifest(path)["withheld"]["controller/audit.json"] == ["x"]
    assert len(told.asked) == 1


def test_chunks_are_joined_and_strange_parts_are_not_taken(
    ask: Cli, fleet: FakeFleetServer, tmp_path: Path
) -> None:
    fleet.support = [
        sup.CollectResponse(part="audit.json", content=b'{"a":'),
        sup.CollectResponse(part="audit.json", content=b"1}"),
        sup.CollectResponse(part="../../etc/passwd", content=b"{}"),
        sup.CollectResponse(part="store.json", missing="OSError \x1b[2J"),
        sup.CollectResponse(part="store.json", content=b"{}"),
        sup.CollectResponse(part="fleet.json", content=b"no json"),
    ]
    path = tmp_path / "bundle"
    ran = ask("support-bundle", "--output", str(path))
    assert ran.code == 0
    files = files_in(path)
    assert json.loads(files["controller/audit.json"]) == {"a": 1}
    assert not any("passwd" in name for name in files)
    found = gaps(path)
    assert found["controller/store.json"] == "OSError ?[2J"
    assert found["controller/fleet.json"].startswith("is not what its name says")
    assert found["controller/nodes.jsonl"] == "the controller did not send it"
    assert "missing in the bundle: controller/nodes.jsonl: the controller" in ran.err
    assert "\x1b" not in ran.err


def test_a_part_without_end_is_left_out(
    ask: Cli, told: FakeFleetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden.cli.connection.client.MAX_PART_BYTES", 10)
    told.support += [sup.CollectResponse(part="audit.json", content=b"x" * 9)] * 3
    assert ask("support-bundle", "--output", str(tmp_path / "bundle")).code == 0
    assert gaps(tmp_path / "bundle")["controller/audit.json"].startswith("larger than")


def test_what_came_before_a_controller_went_away_is_kept(
    ask: Cli, told: FakeFleetServer, tmp_path: Path
) -> None:
    told.support, told.breaks_support = told.support[:3], True
    assert ask("support-bundle", "--output", str(tmp_path / "bundle")).code == 0
    assert f"controller/{CONTROLLER_PARTS[2]}" in files_in(tmp_path / "bundle")
    assert gaps(tmp_path / "bundle")[f"controller/{CONTROLLER_PARTS[3]}"]


def test_without_a_controller_there_is_what_is_local_and_the_reason(
    cli: Cli, tmp_path: Path
) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text(
        "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: ControllerConfig\n"
        f"trustDomain: example.org\ncluster: c1\nworkloadApi: unix:///run/x\n"
        f"audit: {{dir: {tmp_path}}}\nlisten: {{ops: '127.0.0.1:1'}}\n"
    )
    path = tmp_path / "bundle"
    server = f"unix:{tmp_path}/none.sock"
    ran = cli("support-bundle", "--output", str(path), "--server", server, "-f", str(config))
    assert ran.code == 0
    assert "no controller listens" in ran.err
    assert json.loads(files_in(path)["local/files.json"])["audit.dir"]["there"] is True
    assert gaps(path)["controller/audit.json"].startswith("not reachable: no controller answers")
    assert gaps(path)["local/readyz.json"].endswith("ConnectionRefusedError ECONNREFUSED refused")


def test_a_caller_without_the_role_sees_the_reason(
    ask: Cli, told: FakeFleetServer, tmp_path: Path
) -> None:
    told.refusal = Refusal(ReasonCode.ROLE_DENIED, "agent may not call hunter2")
    ran = ask("support-bundle", "--output", str(tmp_path / "bundle"))
    assert ran.code == 0
    why = "not authorised: the controller refuses this caller ROLE_DENIED"
    assert gaps(tmp_path / "bundle")["controller/audit.json"] == why


def test_wrong_settings_are_named_by_key(ask: Cli, tmp_path: Path) -> None:
    ask("support-bundle", "--output", str(tmp_path / "bundle"))
    found = gaps(tmp_path / "bundle")
    assert found["local/settings.json"].endswith("cluster, trustDomain, workloadApi")
    assert found["local/readyz.json"].endswith("give --ops")


def test_an_existing_file_stays(ask: Cli, told: FakeFleetServer, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_text("mine")
    ran = ask("support-bundle", "--output", str(path))
    assert (ran.code, path.read_text()) == (2, "mine")
    assert told.asked == []


def test_a_folder_that_is_not_there_is_an_error(
    ask: Cli, told: FakeFleetServer, tmp_path: Path
) -> None:
    del told
    ran = ask("support-bundle", "--output", str(tmp_path / "none" / "bundle"))
    assert ran.code == 1
    assert "No such file or directory" in ran.err


def test_by_default_its_name_is_the_time(
    ask: Cli, told: FakeFleetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del told
    monkeypatch.chdir(tmp_path)
    [name] = ask("support-bundle").lines
    assert name.startswith("gpuwarden-support-2")
    assert name.endswith("Z.tar.gz")
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("terminal", [False, True])
def test_standard_output_takes_it_unless_it_is_a_terminal(
    told: FakeFleetServer, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    raw = io.BytesIO()
    pipe = io.TextIOWrapper(raw)
    monkeypatch.setattr(pipe, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", pipe)
    code = run(("support-bundle", "--output", "-", "--server", told.target))
    pipe.flush()
    assert (code, raw.getvalue()[:2]) == ((2, b"") if terminal else (0, b"\x1f\x8b"))


def test_an_address_is_an_address(ask: Cli, told: FakeFleetServer) -> None:
    ran = ask("support-bundle", "--ops", "nowhere")
    assert (ran.code, told.asked) == (2, [])
    assert "--ops: expected HOST:PORT, got nowhere" in ran.err


def test_another_option_is_no_file(ask: Cli, tmp_path: Path) -> None:
    ran = ask("support-bundle", "--output", "--process")
    assert ran.code == 2
    assert list(tmp_path.glob("*process*")) == []


def test_a_bundle_of_an_agent_asks_no_controller(
    ask: Cli, told: FakeFleetServer, tmp_path: Path
) -> None:
    path = tmp_path / "bundle"
    assert ask("support-bundle", "--process", "agent", "--output", str(path)).code == 0
    assert told.asked == []
    assert {name.partition("/")[0] for name in files_in(path)} == {"manifest.json", "local"}
