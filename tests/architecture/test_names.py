"""File and class names say what a thing is; catch-all names are refused."""

import ast
from pathlib import Path

import pytest

from tests.architecture.sources import tree

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "controller", "gpuwarden", "sandbox")
BANNED_FILES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "types"}
BANNED_SUFFIXES = ("Manager", "Helper", "Util", "Utils", "Data", "Info", "Impl")
GENERATED = ("wire/v1", "wire/spire", "wire/kubelet")


def sources() -> list[Path]:
    return sorted(
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not any(wire in path.as_posix() for wire in GENERATED)
    )


def test_there_are_sources() -> None:
    assert len(sources()) > 30


def test_no_catch_all_file_names() -> None:
    assert [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stem in BANNED_FILES or BANNED_FILES & set(path.relative_to(ROOT).parts)
    ] == []


def test_no_catch_all_class_names() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and node.name.endswith(BANNED_SUFFIXES)
    ]
    assert offenders == []


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(tree(path))
    assert docstring
    assert docstring != "To be described."
