"""Each process starts with nothing but its own requirement set.

The import runs in a fresh interpreter in which every module of a distribution outside
the set is not to be found, as in an image that was built from the set.
"""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from tests.architecture.test_names import ROOT

PROGRAM = """
import sys

outside = set(sys.argv[2].split(","))

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in outside:
            raise ModuleNotFoundError(f"{name} is not in this requirement set", name=name)

sys.meta_path.insert(0, NotInstalled())
__import__(sys.argv[1])
print(",".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(requirements: str) -> set[str]:
    text = (ROOT / "requirements" / requirements).read_text()
    return {normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}


def modules_outside(requirements: str) -> set[str]:
    inside = pinned(requirements) | {"gpuwarden"}
    return {
        module
        for module, distributions in packages_distributions().items()
        if not inside & {normal(name) for name in distributions}
    }


def imported(module: str, requirements: str) -> set[str]:
    outside = modules_outside(requirements)
    assert "pytest" in outside
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, ",".join(sorted(outside))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
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
    ],
)
def test_starts_with_its_own_requirement_set(module: str, requirements: str) -> None:
    assert module.partition(".")[0] in imported(module, requirements)


def test_the_agent_starts_without_server_terminal_and_telemetry_libraries() -> None:
    heavy = {"aiohttp", "rich", "opentelemetry", "cyclopts", "kubernetes", "uvloop"}
    assert imported("agent.app", "agent.txt") & heavy == set()


def test_the_controller_imports_the_kubernetes_client_only_where_it_is_used() -> None:
    assert "kubernetes" not in imported("controller.__main__", "controller.txt")
    assert "kubernetes" in imported("controller.kube.transport", "controller.txt")


def test_no_installed_distribution_owns_our_names() -> None:
    owners = packages_distributions()
    ours = {"agent", "controller", "gpuwarden", "sandbox"}
    assert {
        name: owners[name] for name in ours & set(owners) if owners[name] != ["gpuwarden"]
    } == {}
