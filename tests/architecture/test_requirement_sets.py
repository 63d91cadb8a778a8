"""Each process starts with nothing but its own requirement set.

The import runs in a fresh interpreter in which every module of a distribution outside
the set is not to be found, as in an image that was built from the set.
"""

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.architecture.test_names import ROOT
from tests.hang import HANG_S

PROGRAM = """
import sys
from importlib.machinery import PathFinder

outside = set(sys.argv[2].split(","))

class Installed:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in outside:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [*(x for x in sys.meta_path if x is not PathFinder), Installed()]
for module in sys.argv[1].split(","):
    __import__(module)
print(",".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(requirements: str) -> set[str]:
    text = (ROOT / "requirements" / requirements).read_text()
    return {normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}


@cache
def modules_outside(requirements: str) -> set[str]:
    inside = pinned(requirements) | {"gpuwarden"}
    return {
        module
        for module, distributions in packages_distributions().items()
        if not inside & {normal(name) for name in distributions}
    }


@cache
def imported(modules: str, requirements: str) -> set[str]:
    outside = modules_outside(requirements)
    assert "pytest" in outside
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, modules, ",".join(sorted(outside))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.strip().split(","))


@pytest.mark.parametrize(
    ("module", "requirements"),
    [
        ("agent.app", "agent.txt"),
        ("agent.__main__", "agent.txt"),
        ("agent.support_bundle", "agent.txt"),
        ("controller.app", "controller.txt"),
        ("controller.__main__", "controller.txt"),
        ("gpuwarden.cli.__main__", "controller.txt"),
        ("gpuwarden.cli.__main__", "cli.txt"),
    ],
)
def test_starts_with_its_own_requirement_set(module: str, requirements: str) -> None:
    assert module.partition(".")[0] in imported(module, requirements)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMAND_LINE_BYTES = 90 * 10**6
MANY_PACKAGES = 40
MANY_BYTES = 150 * 10**6


def modules_of(*folders: str) -> list[str]:
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(paths)]
    return [name.removesuffix(".__init__") for name in names]


def entries(requirements: str) -> dict[str, str]:
    """Each package of a file with its version and hashes."""
    text = (ROOT / "requirements" / requirements).read_text().strip()
    return {normal(x.partition("==")[0]): x for x in re.split(r"\n(?=\S)", text)}


def needed_by(direct: list[str]) -> set[str]:
    """Names of `direct` and of all that they need on Linux with the oldest Python."""
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0"}
    found: set[str] = set()
    open_ends = [Requirement(text) for text in direct]
    while open_ends:
        one = open_ends.pop()
        extras = ["", *one.extras]
        found.add(normal(one.name))
        for text in distribution(one.name).requires or ():
            below = Requirement(text)
            applies = below.marker is None or any(
                below.marker.evaluate({**oldest, "extra": extra}) for extra in extras
            )
            if applies and (normal(below.name) not in found or below.extras):
                open_ends.append(below)
    return found


def size_of(requirements: str) -> dict[str, int]:
    """Bytes on disk by package."""
    found = {}
    for name in entries(requirements):
        files = distribution(name).files or ()
        found[name] = sum(x.stat().st_size for file in files if (x := Path(file.locate())).exists())
    return found


# --- the command line's set


def test_the_command_line_is_installed_without_server_and_agent() -> None:
    found = set(entries("cli.txt"))
    assert found == needed_by(PROJECT["project"]["dependencies"])
    parts = {"kubernetes", "uvloop", "nvidia-ml-py", "opentelemetry-sdk", "prometheus-client"}
    assert found & {*parts, "structlog", "tenacity", "grpcio-reflection"} == set()


def test_the_command_line_is_small_on_disk() -> None:
    sizes = size_of("cli.txt")
    largest = sorted(sizes.items(), key=lambda x: -x[1])[:5]
    assert 0 < sum(sizes.values()) <= COMMAND_LINE_BYTES, largest


def test_each_command_starts_with_the_command_line_s_set() -> None:
    commands = modules_of("gpuwarden/cli", "gpuwarden/support")
    assert "aiohttp" in imported(",".join(commands), "cli.txt")
    assert "aiohttp" not in imported("gpuwarden.cli.connection.client", "cli.txt")


def test_kubectl_finds_its_plugin() -> None:
    scripts = PROJECT["project"]["scripts"]
    assert scripts["kubectl-gpuwarden"] == scripts["gpuwarden"]


def test_the_agent_s_image_has_its_extra_and_nothing_of_the_command_line_alone() -> None:
    project = PROJECT["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["agent"]]
    wanted = {normal(Requirement(x).name) for x in declared} - {"aiohttp", "cyclopts"}
    assert {normal(x) for x in PROJECT["dependency-groups"]["agent-image"]} == wanted


# --- the demo's set


def test_the_demo_needs_few_packages() -> None:
    assert 20 < len(entries("demo.txt")) <= MANY_PACKAGES


def test_the_demo_is_small_on_disk() -> None:
    sizes = size_of("demo.txt")
    assert 0 < sum(sizes.values()) <= MANY_BYTES, sorted(sizes.items(), key=lambda x: -x[1])[:5]


def test_the_demo_takes_the_versions_and_hashes_of_all() -> None:
    everything = entries("dev.txt")
    assert {name: everything.get(name) for name in entries("demo.txt")} == entries("demo.txt")


def test_the_demo_has_what_its_group_needs_and_nothing_else() -> None:
    group = PROJECT["dependency-groups"]["demo"]
    assert set(entries("demo.txt")) == needed_by([*PROJECT["project"]["dependencies"], *group])


def test_the_demo_starts_with_its_own_requirement_set() -> None:
    sandbox = modules_of("sandbox", "gpuwarden/cli")
    programs = ["agent.app", "agent.__main__", "controller.app", "controller.__main__"]
    found = imported(",".join([*sandbox, *programs]), "demo.txt")
    assert {"sandbox", "agent", "controller", "aiohttp", "pynvml"} <= found
    assert "kubernetes" not in found


def test_what_the_demo_declares_it_imports() -> None:
    modules = {"grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection"}
    modules |= {"nvidia-ml-py": "pynvml", "prometheus-client": "prometheus_client"}
    modules |= {"Jinja2": "jinja2"}
    declared = {modules.get(x, x) for x in PROJECT["dependency-groups"]["demo"]}
    programs = "sandbox.controller_main,agent.__main__,gpuwarden.cli.app"
    found = imported(f"{programs},controller.console.console", "demo.txt")
    assert declared - found == set()


def test_the_installer_needs_nothing_installed() -> None:
    run = subprocess.run(
        [sys.executable, "-S", "-c", "import sandbox.install"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_the_agent_starts_without_server_terminal_and_telemetry_libraries() -> None:
    heavy = {"aiohttp", "rich", "opentelemetry", "cyclopts", "kubernetes", "uvloop"}
    assert imported("agent.app", "agent.txt") & heavy == set()


def test_the_controller_imports_the_kubernetes_client_only_where_it_is_used() -> None:
    assert "kubernetes" not in imported("controller.__main__", "controller.txt")
    assert "kubernetes" in imported("controller.kube.api.transport", "controller.txt")


def test_no_installed_distribution_owns_our_names() -> None:
    owners = packages_distributions()
    ours = {"agent", "controller", "gpuwarden", "sandbox"}
    assert {
        name: owners[name] for name in ours & set(owners) if owners[name] != ["gpuwarden"]
    } == {}
