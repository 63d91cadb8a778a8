"""Pods as the API server hands them to a webhook, and what admission makes of them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from controller.admission.pod import AdmittedPod, decode_admitted
from controller.admission.review import Operation, encode_patch
from controller.admission.rules import AdmissionRules
from controller.admission.validation import Judged, mutated, validated
from sandbox.kube.json_patch import applied
from tests.builders.pods import GPU_RESOURCE

Document = dict[str, Any]

UUIDS = {"gpuwarden.dev/gpu-uuids": "GPU-a"}
"""A requirement whose GPUs come from the binding webhook's annotation."""
LEVEL = {"gpuwarden.dev/min-level": "L0"}
"""A requirement about the node alone."""


def container(name: str = "main", *, gpus: int | str | None = None, **fields: Any) -> Document:
    """A container; `gpus` is its limit of the managed resource."""
    made: Document = {"name": name, "image": "example.org/train:1", **fields}
    if gpus is not None:
        made["resources"] = {"limits": {GPU_RESOURCE: str(gpus)}}
    return made


def variable(name: str, value: str) -> Document:
    return {"name": name, "value": value}


def new_pod(
    *containers: Document,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Document:
    """A pod of a ReplicaSet at its creation: without name, with what the API server fills in."""
    metadata: Document = {"generateName": "train-7d9f-", "namespace": "team-a"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": list(containers) or [container()],
            "schedulerName": "default-scheduler",
            **spec,
        },
    }


def admitted(document: Document) -> AdmittedPod:
    return decode_admitted(msgspec.json.encode(document))


def mutate(document: Document, *, enforced: bool = True) -> Judged:
    return mutated(admitted(document), AdmissionRules(), enforced=enforced)


def validate(document: Document, *, enforced: bool = True, injected: bool = True) -> Judged:
    return validated(admitted(document), AdmissionRules(), enforced=enforced, injected=injected)


def documents(patch: Iterable[Operation]) -> list[Document]:
    """The patch as it goes over the wire."""
    found: list[Document] = json.loads(encode_patch(patch))
    return found


def patched(document: Document, *, enforced: bool = True) -> Document:
    """The pod as it is stored once the mutating webhook has seen it."""
    made = applied(document, documents(mutate(document, enforced=enforced).patch))
    assert isinstance(made, dict)
    return made


def codes(document: Document, *, enforced: bool = True) -> list[str]:
    """What the validating webhook has against the pod after the mutating one has seen it."""
    stored = patched(document, enforced=enforced)
    return [x.code.value for x in validate(stored, enforced=enforced).refusals]
