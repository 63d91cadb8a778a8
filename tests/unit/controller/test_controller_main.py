"""The stock program: settings are checked, and without a directory it does not run."""

import pytest

from controller.__main__ import main, run_to_end
from controller.app import StartError

GOOD = ["--trustDomain", "example.org", "--cluster", "c", "--workloadApi", "unix:///x"]


def test_it_says_that_there_is_no_directory_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GOOD) == 1
    assert "no node directory" in capsys.readouterr().err


def test_bad_settings_end_with_2_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "trustDomain" in capsys.readouterr().err


def test_a_start_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def fails() -> int:
        raise StartError("listen.agents: taken", 1)

    async def runs() -> int:
        return 7

    assert run_to_end("program", fails) == 1
    assert capsys.readouterr().err == "program: listen.agents: taken\n"
    assert run_to_end("program", runs) == 7
