"""Pods as kube-scheduler or a person would write them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from controller.placement.keys import RequirementRules
from controller.placement.pod import Pod, decode_pod
from controller.placement.requirements import Requirements, RequirementsInvalid, parse_requirements

GPU_RESOURCE = "nvidia.com/gpu"


def pod_json(
    annotations: Mapping[str, str] | None = None,
    *,
    name: str | None = "train-0",
    generate_name: str | None = None,
    labels: Mapping[str, str] | None = None,
    gpus: int | str | None = None,
    owner: str | None = None,
    claims: bool = False,
    containers: list[dict[str, Any]] | None = None,
    init_containers: list[dict[str, Any]] | None = None,
    resources: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A v1 Pod; `owner` is `Kind/name` of its controller. Without `name` a template."""
    container: dict[str, Any] = {"name": "main", "image": "example.org/train:1"}
    if gpus is not None:
        container["resources"] = {"limits": {GPU_RESOURCE: gpus}}
    metadata: dict[str, Any] = {"namespace": "team-a", "uid": "b7c9"}
    if name is not None:
        metadata["name"] = name
    if generate_name is not None:
        metadata["generateName"] = generate_name
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    if owner is not None:
        kind, _, owner_name = owner.partition("/")
        metadata["ownerReferences"] = [{"kind": kind, "name": owner_name, "controller": True}]
    spec: dict[str, Any] = {"containers": containers or [container]}
    if init_containers is not None:
        spec["initContainers"] = init_containers
    if resources is not None:
        spec["resources"] = resources
    if claims:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def gpu_pod(namespace: str = "plain", **annotations: str) -> dict[str, Any]:
    """A whole pod that requests one GPU."""
    return {
        "metadata": {"name": "p", "namespace": namespace, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }


def as_pod(document: dict[str, Any]) -> Pod:
    return decode_pod(msgspec.json.encode(document))


def parsed_requirements(
    annotations: Mapping[str, str] | None = None,
    rules: RequirementRules | None = None,
    *,
    enforced: bool = False,
    **pod: Any,
) -> Requirements | RequirementsInvalid:
    """What the parser makes of a pod."""
    document = as_pod(pod_json(annotations, **pod))
    return parse_requirements(document, rules or RequirementRules(), enforced=enforced)


def requirements(
    annotations: Mapping[str, str] | None = None,
    rules: RequirementRules | None = None,
    **pod: Any,
) -> Requirements:
    """The same for a pod that must be valid."""
    found = parsed_requirements(annotations, rules, **pod)
    assert isinstance(found, Requirements), found
    return found


def faults(
    annotations: Mapping[str, str] | None = None,
    rules: RequirementRules | None = None,
    **pod: Any,
) -> str:
    """All findings of a pod that must be invalid, as one text."""
    found = parsed_requirements(annotations, rules, **pod)
    assert isinstance(found, RequirementsInvalid), found
    return "; ".join(map(str, found.findings))
