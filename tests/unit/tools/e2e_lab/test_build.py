"""Building the lab's programs: what is broken off goes on, what does not build is told at once."""

from pathlib import Path

import pytest
from tenacity import wait_none

from tests.e2e.lab.build import BrokenOffError, BuildError, install
from tests.e2e.lab.upstreams import upstream

PROJECT = upstream("probe")


def go(folder: Path, script: str) -> Path:
    """A Go that does what the script says, and counts its calls."""
    program = folder / "go"
    program.write_text(f"#!/bin/sh\necho call >> {folder}/calls\n{script}\n")
    program.chmod(0o755)
    return program


def calls(folder: Path) -> int:
    return (folder / "calls").read_text().count("call")


def built(folder: Path, script: str, limit_s: float = 60) -> None:
    install(go(folder, script), PROJECT, folder, limit_s=limit_s, pause=wait_none())


@pytest.mark.parametrize(
    "said",
    [
        "go: cobra@v1: Get: dial tcp: lookup: no such host",
        "compile: signal: killed",
        "go: x: reading: 503 Service Unavailable",
    ],
)
def test_a_build_that_was_broken_off_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    built(
        tmp_path,
        f'test "$(wc -l < {tmp_path}/calls)" -ge 2 && exec touch "$GOBIN/probe"\n'
        f"echo '{said}' >&2; exit 1",
    )
    assert (tmp_path / "probe").exists()
    told = capsys.readouterr().err
    assert said in told
    assert "attempt 2 of 3" in told


def test_after_three_attempts_the_error_tells_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BrokenOffError, match="run this again when the network"):
        built(tmp_path, "echo 'i/o timeout' >&2; exit 1")
    assert calls(tmp_path) == 3


def test_a_build_that_hangs_is_ended_and_told(tmp_path: Path) -> None:
    with pytest.raises(BrokenOffError, match=r"probe was not built within 0 s: run this again"):
        built(tmp_path, "exec sleep 60", limit_s=0.05)


def test_what_does_not_build_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"probe does not build: main\.go:1: syntax error"):
        built(tmp_path, "echo 'main.go:1: syntax error' >&2; exit 1")
    assert calls(tmp_path) == 1
