"""What the images leave out of packages: nothing that is imported, and only what is there."""

import ast
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.architecture.sources import tree
from tests.architecture.test_names import ROOT
from tests.architecture.test_requirement_sets import modules_of, pinned
from tests.hang import HANG_S

UNUSED = tuple(
    line
    for line in (ROOT / "requirements/unused.list").read_text().splitlines()
    if line and not line.startswith("#")
)
ALSO = {"agent": (), "controller": ("kubernetes.aio.stream", "kubernetes.stream")}
"""The second is what `kubectl port-forward` is in this client."""
PROGRAM = """
import importlib, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def imports_of(*folders: str) -> set[str]:
    """Modules that sources of these folders import anywhere, inside functions too."""
    found = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return found


@cache
def files(requirements: str) -> dict[str, str]:
    """Installed files of a requirement set by their place, each as the list names it."""
    found = {}
    for name in pinned(requirements):
        try:
            installed = distribution(name)
        except ModuleNotFoundError:
            continue  # for another system
        for file in installed.files or ():
            found[str(Path(str(file.locate())).resolve())] = str(file)
    return found


def is_unused(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in UNUSED)


@pytest.mark.parametrize("part", ["agent", "controller"])
def test_nothing_that_is_imported_is_left_out(part: str) -> None:
    folders = ("agent",) if part == "agent" else ("controller", "gpuwarden")
    wanted = {*modules_of(*folders), *imports_of(*folders), *ALSO[part]}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(sorted(wanted - {"__future__"}))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    installed = files(f"{part}.txt")
    loaded = {str(Path(x).resolve()) for x in run.stdout.splitlines() if x}
    names = {name for place, name in installed.items() if place in loaded}
    assert any(x.startswith("grpc/") for x in names)
    assert {x for x in names if is_unused(x)} == set()


def test_each_line_names_something() -> None:
    names = {*files("controller.txt").values(), *files("agent.txt").values()}
    assert [x for x in UNUSED if not any(fnmatchcase(name, x) for name in names)] == []


def test_the_classes_of_the_kubernetes_api_are_left_out() -> None:
    """They are nine tenths of the largest package."""
    names = [x for x in files("controller.txt").values() if x.startswith("kubernetes/")]
    kept = [x for x in names if not is_unused(x) and x.endswith(".py")]
    assert len(names) > 1500
    assert 50 < len(kept) < 150
