"""The chart as helm makes objects of it, and the sets of values that it is tried with."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from tests.chart.tools import tools
from tests.hang import HANG_S

CHART: Final = Path(__file__).parents[2] / "deploy" / "helm" / "gpuwarden"
NAMESPACE: Final = "gpuwarden-system"
RELEASE: Final = "gpuwarden"
KUBERNETES: Final = ("1.33", "1.34", "1.35", "1.36", "1.37")
Object = dict[str, Any]
Values = Mapping[str, Any]

REQUIRED: Final[Values] = {"trustDomain": "prod.acme.io", "clusterName": "berlin-1"}
CA: Final = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DIGEST: Final = f"sha256:{'ab' * 32}"

SETS: Final[Mapping[str, Values]] = {
    "default": {},
    "bundled-spire": {
        "spire": {"mode": "bundled", "people": True},
        "networkPolicies": {"egress": {"enabled": True}},
    },
    "no-webhooks": {"webhooks": {"enabled": False}},
    "given-certificates": {
        "certificates": {"mode": "given", "caBundle": CA},
        "webhooks": {"callerCertificate": True},
        "httpApi": {"enabled": True, "readers": ["team-a/exporter"]},
        "console": {"enabled": True, "proxies": ["spiffe://prod.acme.io/proxy"]},
    },
    "cert-manager": {
        "certificates": {"mode": "cert-manager"},
        "webhooks": {"callerCertificate": True},
        "httpApi": {"enabled": True},
    },
    "single-replica": {
        "controller": {"replicas": 1, "persistence": {"enabled": False}},
        "scheduler": {"replicas": 1},
    },
    "production": {
        "imageRegistry": "registry.acme.io/gpuwarden",
        "imagePullSecrets": [{"name": "pull"}],
        "agentImages": [f"registry.acme.io/gpuwarden/gpuwarden-agent@{DIGEST}"],
        "agent": {"image": {"digest": DIGEST}, "gpuAccess": "privileged", "mig": True},
        "controller": {"replicas": 3, "onControlPlane": True, "image": {"digest": DIGEST}},
        "protection": {"enabled": True},
        "infrastructureNamespaces": ["kube-system", "kube-node-lease", "gpu-operator"],
        "networkPolicies": {
            "apiServerCidrs": ["10.0.0.0/28"],
            "schedulerCidrs": ["10.0.0.0/28"],
            "egress": {"enabled": True},
        },
        "webhooks": {"existingKeysSecret": "reservation-keys"},
    },
}
"""Name -> values beside the required ones."""

APIS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": ("spire.spiffe.io/v1alpha1",),
    "production": ("spire.spiffe.io/v1alpha1",),
}
"""APIs beside Kubernetes' own that the cluster of a set has."""


class RefusedError(Exception):
    """What helm said."""


def render(
    values: Values,
    *,
    kubernetes: str = "1.35.2",
    apis: tuple[str, ...] = (),
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    chart: Path = CHART,
) -> list[Object]:
    """Every object, hooks among them; RefusedError where helm refuses the values."""
    command = (tools().helm, "template", release, chart, "--namespace", namespace)
    named = [x for api in apis for x in ("--api-versions", api)]
    text = _helm(*command, "--kube-version", f"v{kubernetes}", *named, values=values)
    return [found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found]


def typed_line(arguments: Sequence[str], *options: str) -> list[Object]:
    """The objects of `helm install` with these words, and more options of the tester's."""
    chart = "deploy/helm/gpuwarden"
    assert chart in arguments
    here = [str(CHART) if x == chart else x for x in arguments]
    command = (tools().helm, "template", *here, "--kube-version", "v1.35.2", *options)
    return [x for x in yaml.load_all(_helm(*command, values={}), Loader=yaml.CSafeLoader) if x]


@cache
def rendered(name: str, kubernetes: str = "1.35") -> list[Object]:
    """The objects of one of SETS."""
    values = {**REQUIRED, **SETS[name]}
    return render(values, kubernetes=f"{kubernetes}.2", apis=APIS.get(name, ()))


def notes(values: Values, apis: tuple[str, ...] = (), chart: Path = CHART) -> str:
    """What helm prints at the end of an installation; `apis`: those that the cluster has, too."""
    if apis:
        return _notes_with(values, apis)
    command = ("install", RELEASE, chart, "--namespace", NAMESPACE, "--dry-run=client")
    text = _helm(tools().helm, *command, values=values)
    return text.partition("\nNOTES:\n")[2]


def _notes_with(values: Values, apis: tuple[str, ...]) -> str:
    """`helm template` alone can be told of APIs, and prints no notes: an object gets their text."""
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(CHART, Path(folder) / "chart"))
        text = (copy / "templates/NOTES.txt").read_text()
        shown = "{apiVersion: v1, kind: ConfigMap, metadata: {name: notes}, data: {notes: %s}}"
        include = shown % '{{ include "tests.notes" . | quote }}'
        define = '{{ define "tests.notes" }}' + text + "{{ end }}"
        (copy / "templates/notes-of-tests.yaml").write_text(f"{define}\n{include}\n")
        found = render(values, apis=apis, chart=copy)
    noted: str = one(found, "ConfigMap", "notes")["data"]["notes"]
    return noted


def _helm(*command: object, values: Values) -> str:
    done = subprocess.run(
        [*map(str, command), "--values", "-"],
        input=json.dumps(dict(values)),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    if done.returncode:
        raise RefusedError(done.stderr)
    return done.stdout


def objects(found: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [x for x in found if x["kind"] == kind]


def one(found: list[Object], kind: str, name: str) -> Object:
    """The object; it is there once."""
    (only,) = [x for x in objects(found, kind) if x["metadata"]["name"] == name]
    return only


def annotations(found: Object) -> Mapping[str, str]:
    """Its annotations."""
    noted: Mapping[str, str] = found["metadata"].get("annotations") or {}
    return noted


def pods(found: list[Object]) -> dict[str, Object]:
    """`Kind/name` -> the spec of its pods."""
    specs: dict[str, Object] = {}
    for x in found:
        spec = (
            x["spec"] if x["kind"] == "Pod" else x.get("spec", {}).get("template", {}).get("spec")
        )
        if spec and "containers" in spec:
            specs[f"{x['kind']}/{x['metadata']['name']}"] = spec
    return specs
