"""The chart on a lab, as somebody installs it who has read docs/install.md."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from sandbox.nvml.build import LIBRARY
from sandbox.nvml.scenario import VARIABLE
from tests.builders.console_commands import typed, words
from tests.chart.rendering import CHART, NAMESPACE, RELEASE
from tests.chart.tools import tools
from tests.docs_pages.site import ROOT
from tests.e2e.lab.build import built
from tests.e2e.lab.cluster_spire import CLUSTER
from tests.e2e.lab.images import Image
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.shared_objects import shared_objects
from tests.e2e.lab.spire_server import SpireServer
from tests.e2e.lab.upstreams import KUBERNETES, SPIRE, SPIRE_CONTROLLER_MANAGER, upstream

PAGE: Final = "docs/install.md"
"""Its commands are what is typed here."""
TRUST_DOMAIN: Final = "lab.acme.io"
"""Not an example's: those are refused."""
_DRIVER: Final = "/var/lib/nvidia-driver"
_LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"
_ENTRY: Final = re.compile(r"spire-server (entry create (?:.*\\\n)*.*)")
_HELM_S: Final = 180
_TEST_S: Final = 400
_ENTRYPOINTS: Final = {
    "spire-server": ("/opt/spire/bin/spire-server", "run"),
    "spire-agent": ("/opt/spire/bin/spire-agent", "run"),
    "spire-controller-manager": ("/spire-controller-manager",),
}
"""Of SPIRE's official images."""


_COUNTS: Final = re.compile(r"(\d+) passed, (\d+) warnings?, (\d+) failed, (\d+) not checked")


class HelmError(RuntimeError):
    """What helm said."""


class HelmRelease:
    """One release; nothing is installed yet."""

    def __init__(self, lab: Lab, spire: SpireServer | None, folder: Path) -> None:
        """`folder`: helm's own. Without a SPIRE server the chart brings one."""
        self.lab = lab
        self._spire = spire
        self._folder = folder

    def load_images(self) -> None:
        """Kubernetes' own that the chart names, from the lab's programs.

        kubectl by the chart's own tag, too, for an installation without more values.
        """
        version = f"v{upstream(KUBERNETES).version}"
        chart = yaml.safe_load((CHART / "values.yaml").read_text())
        programs = self.lab.site.programs
        for name, tag in (
            ("kube-scheduler", version),
            *(("kubectl", x) for x in {version, chart["kubectl"]["image"]["tag"]}),
        ):
            image = f"registry.k8s.io/{name}:{tag}"
            if not self.lab.node.containerd.has(image):
                place = f"/usr/local/bin/{name}"
                image_of = Image(image, {place: programs[name]}, [place], ["PATH=/usr/local/bin"])
                self.lab.node.containerd.load(image_of)

    def load_spire(self) -> None:
        """SPIRE's official images that the chart names, from the lab's programs."""
        programs = built([SPIRE, SPIRE_CONTROLLER_MANAGER])
        for name, (place, *arguments) in _ENTRYPOINTS.items():
            project = SPIRE_CONTROLLER_MANAGER if name == SPIRE_CONTROLLER_MANAGER else SPIRE
            image = f"ghcr.io/spiffe/{name}:{upstream(project).version}"
            files = {place: programs[name], **shared_objects(programs[name])}
            self.lab.node.containerd.load(Image(image, files, [place, *arguments]))

    def values(self, **more: Any) -> dict[str, Any]:
        """The required ones, where this lab keeps its driver, and SPIRE's address."""
        agent = {
            "runtimeClassName": "",
            "extraEnv": [{"name": VARIABLE, "value": f"{_DRIVER}/scenario"}],
            "extraVolumes": [
                {"name": "driver", "hostPath": {"path": _DRIVER, "type": "Directory"}}
            ],
            "extraVolumeMounts": [
                {"name": "driver", "mountPath": f"{_LIBRARIES}/{LIBRARY}", "subPath": LIBRARY},
                {"name": "driver", "mountPath": _DRIVER},
            ],
        }
        return {
            "trustDomain": TRUST_DOMAIN,
            "clusterName": CLUSTER,
            "imageRegistry": "docker.io/library",
            "agent": {**agent, **more.pop("agent", {})},
            "spire": self._spire_values(),
            "scheduler": {"image": {"tag": f"v{upstream(KUBERNETES).version}"}},
            "kubectl": {"image": {"tag": f"v{upstream(KUBERNETES).version}"}},
            **more,
        }

    def install(
        self, values: Mapping[str, Any], release: str = RELEASE, namespace: str = NAMESPACE
    ) -> str:
        """What it prints. The page's own values are examples."""
        (command,) = typed(PAGE, "helm install")
        here = {RELEASE: release, NAMESPACE: namespace}
        arguments = [
            f"{key}={values[key]}" if is_value else here.get(key, key)
            for key, is_value, _ in (x.partition("=") for x in words(command))
        ]
        return self._helm("install", *arguments, values=values)

    def upgrade(self, values: Mapping[str, Any]) -> str:
        """The page's values stay; these count where they differ."""
        (command,) = typed(PAGE, "helm upgrade")
        return self._helm("upgrade", *words(command), values=values)

    def test(self) -> tuple[int, int]:
        """How many checks of the doctor passed, and failed."""
        (command,) = typed(PAGE, "helm test")
        told = self._helm("test", *words(command), "--logs", "--timeout=6m", limit_s=_TEST_S)
        ((passed, _, failed, _),) = _COUNTS.findall(told)
        return int(passed), int(failed)

    def uninstall(self, *options: str) -> str:
        (command,) = typed(PAGE, "helm uninstall")
        return self._helm("uninstall", *words(command), *options)

    def register(self, told: str) -> list[str]:
        """Make the entries as the notes say; their ids."""
        node = self.lab.node.name
        uid = self.lab.api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        assert self._spire is not None
        ids = []
        for command in _ENTRY.findall(told):
            line = command.replace("\\\n", " ").replace("NODE-UID", uid).replace("NODE-NAME", node)
            (result,) = self._spire.asked(*line.split())["results"]
            ids.append(result["entry"]["id"])
        return ids

    def _spire_values(self) -> dict[str, str]:
        if self._spire is None:
            return {"mode": "bundled"}
        return {"serverAddress": f"{self.lab.plan.inside}:{self._spire.port}"}

    def _helm(
        self,
        *arguments: str,
        values: Mapping[str, Any] | None = None,
        limit_s: float = _HELM_S,
    ) -> str:
        files: Sequence[str] = ("--values", "-") if values is not None else ()
        done = subprocess.run(
            [tools().helm, *arguments, *files],
            cwd=ROOT,
            env={
                **os.environ,
                "KUBECONFIG": str(self.lab.kubeconfig),
                "HELM_CACHE_HOME": str(self._folder),
                "HELM_CONFIG_HOME": str(self._folder),
                "HELM_DATA_HOME": str(self._folder),
            },
            input=yaml.safe_dump(dict(values or {})),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if done.returncode:
            raise HelmError(f"{done.stderr}\n{done.stdout}")
        return done.stdout
