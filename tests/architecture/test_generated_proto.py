"""The checked-in protobuf code is what the .proto files say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.generate_proto import ROOT, generate

WIRE = "gpuwarden/wire/v1"


def test_generated_code_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    generate(tmp_path)
    fresh = {path.name: path.read_text() for path in (tmp_path / WIRE).iterdir()}
    checked_in = {
        path.name: path.read_text()
        for path in (ROOT / WIRE).iterdir()
        if "_pb2" in path.name and path.is_file()
    }
    assert fresh == checked_in, "run `make proto`"


def test_proto_is_lint_clean() -> None:
    buf = Path(sys.executable).parent / "buf"
    run = subprocess.run(
        [buf, "lint"], cwd=ROOT / "proto", capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout) == (0, "")
