"""How long a test waits for what must happen is one number: `tests.hang`. Others were too short.

A busy machine took 60 seconds for what takes two, and the test failed. A second or more in a test
is such a limit; less is a pause, or shows that something does not happen.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.test_names import ROOT

ELSEWHERE = ("bench", "contracts", "e2e", "hardware", "soak")
"""Contracts try the product's own short limits; the others wait for whole programs."""
A_LIMIT_S = 1.0
DEFAULT_S = 600
"""A test's own limit, as pyproject.toml has it: a mark may only give more."""
SECOND = ("asyncio.wait_for",)
ONLY = ("asyncio.timeout",)
RUNS = ("asyncio.wait", "subprocess.run", "subprocess.check_output", "subprocess.check_call")


def limits(source: str) -> Iterator[tuple[int, float]]:
    """Line and seconds of each limit that is a number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            for value in _told(ast.unparse(node.func), node):
                if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                    yield node.lineno, value.value


def _told(name: str, call: ast.Call) -> list[ast.expr]:
    by_name = [x.value for x in call.keywords if x.arg == "timeout"]
    if name in SECOND:
        return by_name + call.args[1:2]
    if name in ONLY:
        return call.args[:1]
    if name in RUNS:
        return by_name
    if name.endswith(("until", ".event")):
        return [x.value for x in call.keywords if x.arg == "timeout_s"]
    if name.endswith((".wait", ".communicate")):
        return by_name + call.args[:1]
    return []


def short_marks(source: str) -> list[int]:
    """Lines of marks that give a test less time than the others have."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("mark.timeout")
        and isinstance(node.args[0], ast.Constant)
        and int(str(node.args[0].value)) < DEFAULT_S
    ]


def test_no_test_has_a_limit_of_its_own() -> None:
    found = []
    for path in sorted(ROOT.glob("tests/**/*.py")):
        name = path.relative_to(ROOT)
        if name.parts[1] in ELSEWHERE:
            continue
        source = path.read_text()
        found += [f"{name}:{line}: {s} s" for line, s in limits(source) if s >= A_LIMIT_S]
        found += [f"{name}:{line}: mark.timeout" for line in short_marks(source)]
    assert found == [], "wait for HANG_S of tests/hang.py"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("asyncio.wait_for(done.wait(), 5)", [5]),
        ("asyncio.wait_for(done.wait(), timeout=5.0)", [5.0]),
        ("asyncio.timeout(20)", [20]),
        ("subprocess.run(['x'], timeout=60)", [60]),
        ("done.wait(10)", [10]),
        ("await program.event('x', timeout_s=20)", [20]),
        ("process.communicate(timeout=50)", [50]),
        ("done.wait(HANG_S)", []),
        ("settings(timeout=5)", []),
    ],
)
def test_the_rule_finds(source: str, expected: list[float]) -> None:
    assert [seconds for _, seconds in limits(source)] == expected


def test_the_rule_finds_marks() -> None:
    assert short_marks("@pytest.mark.timeout(120)\ndef test_x(): ...") == [1]
    assert short_marks("pytestmark = pytest.mark.timeout(600)") == []
