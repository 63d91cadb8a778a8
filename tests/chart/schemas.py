"""Objects against the schemas of one Kubernetes version, strictly: no unknown field."""

import json
import re
import zipfile
from functools import cache
from typing import Any

import jsonschema_rs
import yaml

from tests.chart.rendering import CHART, Object
from tests.chart.tools import tools

_FOLDER = "kubernetes_validate/kubernetes-json-schema"
_HOST = "https://kubernetes.io"
_ELSEWHERE = ("cert-manager.io/", "monitoring.coreos.com/")
"""Kinds that neither Kubernetes nor this chart has the schema of."""


def faults(found: list[Object], kubernetes: str) -> list[str]:
    """`Kind/name: what is wrong`, for every fault."""
    return [
        f"{x['kind']}/{x['metadata']['name']}: {'/'.join(map(str, error.instance_path))}: {error}"
        for x in found
        if not x["apiVersion"].startswith(_ELSEWHERE)
        for error in _validator(x["apiVersion"], x["kind"], kubernetes).iter_errors(x)
    ]


@cache
def _validator(api_version: str, kind: str, kubernetes: str) -> Any:
    if api_version == "spire.spiffe.io/v1alpha1":
        return jsonschema_rs.Draft202012Validator(_strict(_spire(kind)))
    group, _, version = api_version.rpartition("/")
    parts = [kind.lower(), group.partition(".")[0], version]
    schema = _read(kubernetes, "-".join(filter(None, parts)))
    return jsonschema_rs.Draft202012Validator(schema, registry=_registry(kubernetes))


@cache
def _registry(kubernetes: str) -> Any:
    definitions = _read(kubernetes, "_definitions")
    return jsonschema_rs.Registry([(f"{_HOST}/api/_definitions.json", definitions)])


def _read(kubernetes: str, name: str) -> Any:
    return json.loads(_archive().read(f"{_FOLDER}/v{kubernetes}.0-local-strict/{name}.json"))


@cache
def _archive() -> zipfile.ZipFile:
    """Open for as long as the tests run: to find 17,000 files in it takes a moment."""
    return zipfile.ZipFile(tools().schemas)


def _spire(kind: str) -> Any:
    path = CHART / "files/spire/crds" / f"{kind.lower()}s.yaml"
    definition = yaml.safe_load(path.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["apiVersion"] = {"const": "spire.spiffe.io/v1alpha1"}
    return schema


def _strict(node: Any) -> Any:
    """Nothing but what is named, except in metadata, which Kubernetes checks."""
    if isinstance(node, list):
        return [_strict(x) for x in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _strict(value) for key, value in node.items()}
    if "properties" in node and "additionalProperties" not in node:
        closed["additionalProperties"] = False
    return closed


def is_quantity(text: str) -> bool:
    """Whether Kubernetes reads it as an amount; the schemas take any text."""
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?", text) is not None
