"""`gpuwarden-agent support-bundle`: what is told of this node's agent, as its flags say."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agent.__main__ import main
from tests.hang import HANG_S

FLAGS = (
    "--trustDomain=example.org",
    "--cluster=c1",
    "--workloadApi=unix:///run/x",
    "--agent.nodeName=node-1",
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUWARDEN_CONFIG", "SPIFFE_ENDPOINT_SOCKET", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)


def manifest(path: Path) -> Any:
    with tarfile.open(path) as tar:
        file = tar.extractfile(tar.getmembers()[0])
        assert file is not None
        return json.loads(file.read())


def collect(path: Path, *flags: str) -> int:
    return main(["support-bundle", "--output", str(path), *FLAGS, *flags])


def test_an_agent_that_does_not_run_has_settings_and_files(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    assert collect(path, "--listen.ops=:1", f"--agent.stateDir={tmp_path}") == 0
    found = manifest(path)
    assert [one["path"] for one in found["files"]] == [
        "local/versions.json",
        "local/settings.json",
        "local/files.json",
    ]
    why = {one["path"]: one["why"] for one in found["missing"]}
    assert set(why) == {"local/readyz.json", "local/metrics.prom"}
    assert all("ECONNREFUSED" in text for text in why.values())


def test_a_listener_on_any_free_port_has_to_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(tmp_path / "bundle", "--listen.ops=127.0.0.1:0") == 0
    assert "see --ops" in capsys.readouterr().err


def test_it_goes_through_a_pipe_out_of_a_pod_without_a_disk() -> None:
    command = [sys.executable, "-I", "-m", "agent", "support-bundle", "--output", "-"]
    done = subprocess.run(
        [*command, *FLAGS, "--listen.ops=127.0.0.1:0"],
        capture_output=True,
        timeout=HANG_S,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        assert any(name.endswith("/local/settings.json") for name in tar.getnames())


def test_settings_that_are_wrong_end_it_as_they_end_the_agent(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["support-bundle", "--output", str(tmp_path / "bundle"), "--cluster=c1"])
    assert ended.value.code == 2


def test_an_existing_file_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bundle"
    path.write_text("mine")
    assert collect(path, "--listen.ops=127.0.0.1:0") == 1
    assert path.read_text() == "mine"
    assert "cannot write the file: File exists" in capsys.readouterr().err
