"""The files of deploy/kustomize, as they are and as kustomize puts them together."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.chart.tools import tools
from tests.e2e.lab.build import shelf
from tests.e2e.lab.cache import cache_folder
from tests.e2e.lab.upstreams import KUBERNETES, upstream
from tests.hang import HANG_S

KUSTOMIZE = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"
BASE = KUSTOMIZE / "base"
Object = dict[str, Any]


def objects(folder: Path = BASE) -> list[Object]:
    """Every Kubernetes object of the folder's own files."""
    files = sorted(set(folder.glob("*.yaml")) - {folder / "kustomization.yaml"})
    return [found for file in files for found in yaml.safe_load_all(file.read_text())]


def rendered(folder: Path) -> list[Object]:
    """What would be applied."""
    command = [kubectl(), "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def kubectl() -> Path | str:
    """The lab's own where it is built, else the machine's, else one that is fetched."""
    own = shelf(upstream(KUBERNETES), cache_folder())
    if own.is_filled:
        return own.folder / "kubectl"
    return shutil.which("kubectl") or tools().kubectl


def with_components(folder: Path, *names: str) -> Path:
    """An overlay of somebody's own: the base and these components."""
    above = Path(*[".."] * len(folder.parts[1:]))  # kustomize takes no absolute paths
    components = [KUSTOMIZE / "components" / name for name in names]
    document = {
        "resources": [str(above / BASE.relative_to("/"))],
        "components": [str(above / x.relative_to("/")) for x in components],
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
