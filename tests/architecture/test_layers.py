"""docs/architecture.md agrees with the import contracts, and the contracts notice a violation.

The contracts are checked over a copy of the packages into which violations were seeded. So a
contract that names a module wrongly, or leaves it out, is found.
"""

import ast
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import tree
from tests.architecture.test_names import PACKAGES, ROOT

LINTER = Path(sys.executable).with_name("lint-imports")
CIRCLES = "no modules import each other in a circle"
PURITY = "pure modules do no IO and read no clock"
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]["contracts"]
FORBIDDEN: list[str] = next(x for x in CONTRACTS if x["name"] == PURITY)["forbidden_modules"]
LAYERED = {x["containers"][0]: x["layers"] for x in CONTRACTS if x["type"] == "layers"}


PURE: list[str] = next(x for x in CONTRACTS if x["name"] == PURITY)["source_modules"]
"""Dotted: folders, and modules of other folders."""
IMPORTS: dict[str, list[str]] = tomllib.loads(
    (ROOT / "tests/architecture/imports.toml").read_text()
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of folders."""

    folder: str
    """Dotted."""
    is_pure: bool
    start: str


@cache
def rows() -> tuple[Row, ...]:
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.partition("| start with |\n|---|---|---|\n")[2].partition("\n\n")[0]
    return tuple(_row(*(cell.strip() for cell in x.split("|")[1:-1])) for x in table.splitlines())


def _row(folder: str, does: str, start: str) -> Row:
    name = folder.strip("`").replace("/", ".")
    return Row(name, does.endswith(" (pure)"), start.strip("`"))


def modules_of(name: str, root: Path = ROOT) -> list[Path]:
    """The files of a package or module, `__init__` last."""
    path = root / name.replace(".", "/")
    if path.is_dir():
        return sorted(path.rglob("*.py"), key=lambda x: (x.stem == "__init__", x))
    return [path.with_suffix(".py")]


# --- the page and the contracts


@pytest.mark.parametrize("package", LAYERED)
def test_the_table_lists_the_layers_in_their_order(package: str) -> None:
    listed = [x.folder for x in rows() if x.folder.startswith(f"{package}.")]
    for layer in LAYERED[package]:
        equals = {f"{package}.{name}" for name in layer.split(" | ")}
        assert {*listed[: len(equals)]} == equals
        del listed[: len(equals)]
    assert listed == []


def test_the_table_names_what_is_pure() -> None:
    assert {x.folder for x in rows() if x.is_pure} == {x.folder for x in rows()} & {*PURE}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.folder)
def test_what_a_folder_imports_is_listed(row: Row) -> None:
    path = ROOT / row.folder.replace(".", "/")
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    found = {name for file in files for name in _effects(file)}
    assert sorted(found) == IMPORTS.get(row.folder, [])
    assert not row.start or (path / row.start).is_file()


def _effects(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    outside = {name.partition(".")[0] for name in names} & {*FORBIDDEN}
    told = any(name.startswith("gpuwarden.telemetry.") for name in names & {*FORBIDDEN})
    return outside | ({"telemetry"} if told else set())


def test_every_folder_whose_imports_are_listed_is_in_the_table() -> None:
    assert {*IMPORTS} <= {row.folder for row in rows()}


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_calls_no_clock_and_opens_no_file(name: str) -> None:
    """What no import shows: `datetime.now()`, `SystemClock`, `open()`."""
    for file in modules_of(name):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Name):
                assert node.id not in {"open", "input", "print", "SystemClock"}, file
            elif isinstance(node, ast.Attribute):
                of_class = isinstance(node.value, ast.Name) and node.value.id in {
                    "datetime",
                    "date",
                }
                assert not (of_class and node.attr in {"now", "utcnow", "today"}), file


# --- the contracts notice a violation


@dataclass(frozen=True, slots=True)
class Seed:
    """An import that some contract forbids."""

    importer: str
    imported: str
    contract: str


def upward_imports() -> list[Seed]:
    """For each layer an import of the layer above, for layers side by side one of the other."""
    seeds = []
    for package, layers in LAYERED.items():
        rank = [[f"{package}.{name}" for name in layer.split(" | ")] for layer in layers]
        pairs = [(low, high[0]) for high, lower in itertools.pairwise(rank) for low in lower]
        pairs += [(one, other) for level in rank for one, other in itertools.pairwise(level)]
        name = next(x["name"] for x in CONTRACTS if x.get("containers") == [package])
        seeds += [Seed(dotted(importer), dotted(imported), name) for importer, imported in pairs]
    return seeds


def impurities() -> list[Seed]:
    """For each pure folder and module a call of `time.time()`."""
    return [Seed(dotted(name), "time", PURITY) for name in PURE]


def dotted(name: str) -> str:
    """A module of the package of that name, or the module itself."""
    path = modules_of(name)[0].relative_to(ROOT)
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=lambda _, x: _not_python(x))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _not_python(names: list[str]) -> list[str]:
    return [x for x in names if x == "__pycache__" or ("." in x and not x.endswith(".py"))]


@pytest.mark.parametrize("seeds", [upward_imports(), impurities()], ids=["upward", "impure"])
def test_a_seeded_violation_breaks_its_contract(copy: Path, seeds: list[Seed]) -> None:
    assert len(seeds) > 30
    before = {file: file.read_text() for seed in seeds for file in modules_of(seed.importer, copy)}
    for seed in seeds:
        file = modules_of(seed.importer, copy)[0]
        file.write_text(f"{file.read_text()}\nimport {seed.imported}\n{seed.imported}.time()\n")
    broken = broken_contracts(copy)
    for file, text in before.items():
        file.write_text(text)
    for seed in seeds:
        assert re.search(
            rf"{re.escape(seed.importer)} -> {re.escape(seed.imported)} \(l\.",
            broken[seed.contract],
        ), seed


def test_a_circle_within_a_folder_breaks_its_contract(copy: Path) -> None:
    file = copy / "controller/verifier/context.py"
    before = file.read_text()
    file.write_text(f"{before}\nimport controller.verifier.verifier\n")
    broken = broken_contracts(copy)
    file.write_text(before)
    assert [*broken] == [CIRCLES]
    assert "controller.verifier" in broken[CIRCLES]


def test_the_copy_itself_keeps_the_contracts(copy: Path) -> None:
    assert broken_contracts(copy) == {}


def broken_contracts(folder: Path) -> dict[str, str]:
    """What the linter reports, by the name of the contract."""
    done = subprocess.run(
        [LINTER, "--no-logo", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Analyzed" in done.stdout, done.stderr
    report = done.stdout.partition("Broken contracts")[2]
    assert (done.returncode == 0) is (not report)
    parts = re.split(r"^(.+)\n-+\n", report, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
