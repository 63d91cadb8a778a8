"""`python -m tests.whole_run FOLDER [PATH …] -- OPTION …`: pytest, held to what it collected.

Runs, compares what ended with what pytest collected before the first test, and says how many
passed, what was left out and why. Files stay in FOLDER. With SECOND_LOOK=1 (as `.ci/run` sets
it) a few tests that failed are run again by themselves, twice: where they pass both times the
run passes and names them as unsteady, which is a fault to look for, not one that may stop
everybody. More than a few failed tests, or one that fails again, fail the run.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.whole_run.outcomes import COLLECTED, OUTCOMES
from tests.whole_run.verdict import Line, Verdict, verdict

FEW: Final = 3
TIMES: Final = 2
_TESTS_FAILED: Final = 1


def _pytest(folder: Path, arguments: Sequence[str]) -> int:
    plugin = ("-p", "tests.whole_run.outcomes", "--outcomes", str(folder))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *arguments], check=False
    ).returncode


def _lines(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _say(line: str) -> None:
    sys.stdout.write(f"whole run: {line}\n")
    sys.stdout.flush()


def _is_steady(folder: Path, tests: Sequence[str], options: Sequence[str]) -> bool:
    """Whether these tests pass by themselves, each time."""
    again = ["--cov-append"] if "--cov" in options else []
    for number in range(TIMES):
        look = folder / f"second-look-{number}"
        code = _pytest(look, [*options, *again, "-n0", *tests])
        found = verdict([{"test": test} for test in tests], _lines(look / OUTCOMES))
        if code != 0 or found.passed != len(tests):
            return False
    return True


def run(folder: Path, paths: Sequence[str], options: Sequence[str], *, second_look: bool) -> int:
    """0 where every collected test passed or was left out for a known reason."""
    _say("each process collects first; the share that is done stands at the end of each line")
    code = _pytest(folder, [*options, *paths])
    found = verdict(_lines(folder / COLLECTED), _lines(folder / OUTCOMES))
    unsteady: Sequence[str] = ()
    only_failed = code == _TESTS_FAILED and len(found.differences) == len(found.failed)
    if second_look and only_failed and len(found.failed) <= FEW:
        _say(f"a second look at {', '.join(found.failed)}")
        if _is_steady(folder, found.failed, options):
            unsteady, code = found.failed, 0
    _tell(found, unsteady)
    is_explained = found.is_whole or bool(unsteady)
    return code or int(not is_explained)


def _tell(found: Verdict, unsteady: Sequence[str]) -> None:
    for reason in sorted({reason for _, reason in found.left_out}):
        tests = [test for test, why in found.left_out if why == reason]
        _say(f"left out, {len(tests)} of them: {reason}")
        for test in tests:
            _say(f"  {test}")
    for line in found.differences:
        _say(f"difference: {line}")
    for test in unsteady:
        _say(f"UNSTEADY: {test} failed once, then passed {TIMES} times by itself")
    _say(f"{found.collected} collected, {found.passed} passed, {len(found.left_out)} left out")


def main() -> int:
    arguments, options = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.whole_run", description=__doc__)
    parser.add_argument("folder", type=Path, help="where collected and outcomes are written")
    parser.add_argument("path", nargs="*", help="what to collect, as pytest takes it")
    chosen = parser.parse_args(arguments)
    second_look = os.environ.get("SECOND_LOOK") == "1"
    return run(chosen.folder, chosen.path, options, second_look=second_look)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
