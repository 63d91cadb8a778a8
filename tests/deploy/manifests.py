"""The files of deploy/kustomize, as they are and as kustomize puts them together."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.lab.build import shelf
from tests.e2e.lab.cache import cache_folder
from tests.e2e.lab.upstreams import KUBERNETES, upstream

KUSTOMIZE = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"
BASE = KUSTOMIZE / "base"
Object = dict[str, Any]


def objects(folder: Path = BASE) -> list[Object]:
    """Every Kubernetes object of the folder's own files."""
    files = sorted(set(folder.glob("*.yaml")) - {folder / "kustomization.yaml"})
    return [found for file in files for found in yaml.safe_load_all(file.read_text())]


def rendered(folder: Path) -> list[Object]:
    """What would be applied; skips the test where there is no kubectl yet."""
    kubectl = _kubectl()
    if kubectl is None:
        pytest.skip("kubectl is not on PATH; `make lab` builds one, and `make e2e` runs this test")
    done = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def _kubectl() -> Path | str | None:
    """The lab's own where it is built, else the machine's."""
    own = shelf(upstream(KUBERNETES), cache_folder())
    return own.folder / "kubectl" if own.is_filled else shutil.which("kubectl")


def with_extender(folder: Path) -> Path:
    """An overlay of somebody's own: the base and the component for the extender."""
    above = Path(*[".."] * len(folder.parts[1:]))  # kustomize takes no absolute paths
    document = {
        "resources": [str(above / BASE.relative_to("/"))],
        "components": [str(above / (KUSTOMIZE / "components/extender").relative_to("/"))],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder


def one(found: list[Object], kind: str, name: str) -> Object:
    """The object; it is there once."""
    (only,) = [x for x in found if (x["kind"], x["metadata"]["name"]) == (kind, name)]
    return only


def pod_of(workload: Object) -> Object:
    """A workload's pod."""
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def container_of(workload: Object) -> Object:
    """The pod's only container."""
    (only,) = pod_of(workload)["containers"]
    found: Object = only
    return found
