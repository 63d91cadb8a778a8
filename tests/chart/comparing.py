"""What deploy/kustomize and the chart make of the same wishes, in a form that can be compared."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.chart.rendering import CA, REQUIRED, Object, Values, annotations, render
from tests.deploy.manifests import KUSTOMIZE, rendered

DEPLOY: Final = KUSTOMIZE.parent
COMPONENTS: Final = ("extender", "admission", "http-api", "workstation", "protection")
SAME: Final[Values] = {
    **REQUIRED,
    "certificates": {"mode": "given", "caBundle": CA},
    "webhooks": {"callerCertificate": True},
    "httpApi": {"enabled": True},
    "protection": {"enabled": True},
}
"""Values that ask for what kustomize has with its components."""
WAYS: Final[Mapping[str, tuple[Values, Sequence[str]]]] = {
    "given": (SAME, COMPONENTS),
    "self-managed": (
        {**REQUIRED, "httpApi": {"enabled": True}, "console": {"enabled": True}},
        (
            "extender",
            "admission",
            "http-api",
            "console",
            "workstation",
            "self-managed-certificates",
            "workstation-self-managed",
            "http-api-self-managed",
        ),
    ),
    "report": (
        {**SAME, "enforcement": "report"},
        (*COMPONENTS, "admission-report", "../../policy/report"),
    ),
    "affinity": (
        {**SAME, "scheduling": {"mode": "affinity"}, "scheduler": {"enabled": False}},
        (*COMPONENTS[1:], "affinity"),
    ),
    "evaluation": (
        {
            **SAME,
            "protection": {"enabled": False},
            "evaluation": {"enabled": True},
            "mode": "env",
        },
        (*COMPONENTS[:-1], "evaluation", "mode-env"),
    ),
}
"""Name -> values of the chart, and the components that ask for the same."""
_ADDED_LABELS: Final = re.compile(
    r"app\.kubernetes\.io/(instance|version|managed-by|part-of)|helm\.sh/chart"
)
_ADDED_ANNOTATIONS: Final = re.compile(r"helm\.sh/|checksum/|cert-manager\.io/inject-ca-from")
_DIGEST: Final = re.compile(r"^(gpuwarden-[a-z-]+)-[a-z0-9]{10}$")
Key = str
"""`Kind/name`."""


def of_chart(values: Values = SAME) -> dict[Key, Object]:
    """What helm makes, without jobs and pods that belong to helm itself."""
    found = [x for x in render(values) if "helm.sh/hook" not in annotations(x)]
    return {key(x): plain(x) for x in found}


def of_kustomize(folder: Path, components: Sequence[str] = COMPONENTS) -> dict[Key, Object]:
    """What kubectl makes of the base, these components, policies and, for `extender`, scheduler."""
    scheduler = ["scheduler"] if "extender" in components else []
    return of_parts(folder, ["kustomize/base", *scheduler, "policy", "doctor"], components)


def of_parts(
    folder: Path, resources: Sequence[str], components: Sequence[str]
) -> dict[Key, Object]:
    """What kubectl makes of these folders of deploy and components."""
    up = Path(*[".."] * len(folder.parts[1:]))
    parts = {
        "resources": [str(up / (DEPLOY / x).relative_to("/")) for x in resources],
        "components": [
            str(up / (KUSTOMIZE / "components" / x).relative_to("/")) for x in components
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return {key(x): plain(x) for x in rendered(folder)}


def key(x: Object) -> Key:
    name = x["metadata"]["name"]
    if x["kind"] == "ConfigMap" and (digest := _DIGEST.match(name)):
        name = digest[1]
    return f"{x['kind']}/{name}"


def differences(ours: Object, theirs: Object) -> set[str]:
    """Paths at which the two objects differ."""
    left, right = dict(_flat(ours)), dict(_flat(theirs))
    return {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}


def changes(before: Object, after: Object) -> Mapping[str, Any]:
    """What is at each path at which they differ afterwards; None where nothing is."""
    found = dict(_flat(after))
    return {path: found.get(path) for path in differences(before, after)}


def plain(x: Any) -> Any:
    """Without what helm and kustomize add to everything, and without their order of lists."""
    if isinstance(x, list):
        return [plain(y) for y in x]
    if not isinstance(x, dict):
        return x
    kept = {name: plain(value) for name, value in x.items()}
    for name, added in (("labels", _ADDED_LABELS), ("annotations", _ADDED_ANNOTATIONS)):
        if isinstance(kept.get(name), dict):
            kept[name] = {a: b for a, b in kept[name].items() if not added.match(a)}
            if not kept[name]:
                del kept[name]
    if isinstance(kept.get("configMap"), dict):
        found = _DIGEST.match(kept["configMap"]["name"])
        kept["configMap"]["name"] = found[1] if found else kept["configMap"]["name"]
    return kept


def _flat(x: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(x, dict) and x:
        for name, value in x.items():
            yield from _flat(value, f"{path}/{name}")
    elif isinstance(x, list) and x and all(isinstance(y, dict) for y in x):
        for number, value in enumerate(x):
            yield from _flat(value, f"{path}/{value.get('name', number)}")
    else:
        yield path, x
