"""The checked-in protobuf code is what the .proto files say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.generate_proto import ROOT, generate
from tests.hang import HANG_S

WIRES = ("gpuwarden/wire/v1", "gpuwarden/wire/spire", "gpuwarden/wire/kubelet")


def generated(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text()
        for wire in WIRES
        for path in (root / wire).iterdir()
        if "_pb2" in path.name and path.is_file()
    }


def test_generated_code_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    generate(tmp_path)
    fresh, checked_in = generated(tmp_path), generated(ROOT)
    assert {path.parent.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py")} == {
        Path(wire) for wire in WIRES
    }
    assert fresh == checked_in, "run `make proto`"


def test_proto_is_lint_clean() -> None:
    buf = Path(sys.executable).parent / "buf"
    run = subprocess.run(
        [buf, "lint"],
        cwd=ROOT / "proto",
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "")
