"""A copy of the cluster is as large as the fields that are used, whatever else objects carry."""

import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest

from controller.kube.cache import Cache
from controller.kube.enrollments import ENROLLMENT_KIND, enrollment_object
from controller.kube.nodes import NAMESPACE_KIND, NODE_KIND
from controller.kube.pods import pod_kind
from controller.kube.policy_objects import ACCEPTED, CLASS_KIND, POLICY_KIND
from controller.kube.reservations import RESERVATION_KIND, reservation_object, reservation_status
from controller.kube.resources import CALLS, Kind, Verb
from controller.placement.texts import WishRules
from tests.builders.ledger import record
from tests.contracts.enrollment_store import FULL

Document = dict[str, Any]
GIVEN = {"uid": "uid-1", "resourceVersion": "7"}
"""By the API server, as is `managedFields`."""
PLAIN, BULKY = 1, 200_000
"""Characters in each unused field; the API server takes objects of up to 1.5 MB."""
POD_KIND = pod_kind(WishRules())


def bulk(characters: int, *extra: str) -> Document:
    """Metadata that nobody reads, and what else is named."""
    text = "x" * characters
    entry = {"manager": text, "operation": "Apply", "fieldsV1": {f"f:{text}": {}}}
    return {"managedFields": [entry], "selfLink": text, **{key: {"k": text} for key in extra}}


def node(characters: int) -> Document:
    text = "x" * characters
    return {
        "metadata": {"name": "node-1", **GIVEN, **bulk(characters, "annotations")},
        "spec": {"podCIDR": text, "taints": [{"key": text, "effect": "PreferNoSchedule"}]},
        "status": {"images": [{"names": [text]}], "conditions": [{"message": text}]},
    }


def namespace(characters: int) -> Document:
    return {
        "metadata": {"name": "team-a", **GIVEN, **bulk(characters, "annotations", "labels")},
        "spec": {"finalizers": ["x" * characters]},
        "status": {"phase": "Active", "conditions": [{"message": "x" * characters}]},
    }


def waiting_pod(characters: int) -> Document:
    """Kept for the gate, which judges annotations, variables and devices, and nothing else."""
    text = "x" * characters
    container = {
        "name": "main",
        "image": text,
        "args": [text],
        "livenessProbe": {"exec": {"command": [text]}},
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": text}}}],
        "volumeMounts": [{"mountPath": "/data", "name": text}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": text}]},
    }
    metadata = {"name": "train-0", "namespace": "team-a", **GIVEN, **bulk(characters)}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "x": text}
    return {
        "metadata": {
            **metadata,
            "annotations": {"gpuwarden.dev/min-level": "L1"},
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": [container],
            "initContainers": [{**container, "name": "first"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": text}],
            "affinity": {"nodeAffinity": {"x": text}},
            "volumes": [{"name": "data", "configMap": {"name": text}}],
            "tolerations": [{"key": "gpu", "value": "x", "x": text}],
        },
        "status": {"phase": "Pending", "conditions": [{"message": text}]},
    }


def bound_pod(characters: int) -> Document:
    """Of what runs, only what it was told to hold is kept."""
    pod = waiting_pod(characters)
    told = {
        "gpuwarden.dev/reservation-id": "v1.k.x",
        "gpuwarden.dev/gpu-uuids-assigned": "GPU-a,GPU-b",
        "example.org/unused": "x" * characters,
    }
    pod["metadata"] |= {"annotations": told, "labels": {"k": "x" * characters}}
    pod["spec"]["nodeName"] = "node-1"
    return pod


def ended_pod(characters: int) -> Document:
    pod = waiting_pod(characters)
    pod["metadata"]["annotations"]["example.org/unused"] = "x" * characters
    pod["status"] |= {"phase": "Failed", "message": "x" * characters}
    return pod


def enrollment(characters: int) -> Document:
    """Its spec is closed: a field that is not known is refused."""
    made = copy.deepcopy(enrollment_object(FULL))
    made["metadata"] |= GIVEN | bulk(characters, "annotations", "labels")
    return {**made, "status": {"x": "x" * characters}}


def reservation(characters: int) -> Document:
    """Its status is kept as it is; of what others write there the schema lets nothing through."""
    made = copy.deepcopy(reservation_object(record()))
    made["metadata"] |= GIVEN | bulk(characters, "annotations", "labels")
    return {**made, "status": reservation_status(record())}


def policy(characters: int) -> Document:
    """Its spec is kept whole: it is what is in force."""
    text = "x" * characters
    ours = {"type": ACCEPTED, "status": "True", "reason": "InForce", "x": text}
    return {
        "metadata": {"name": "cluster", **GIVEN, **bulk(characters, "annotations", "labels")},
        "spec": {"minLevel": "L1"},
        "status": {"conditions": [{"type": "Others", "message": text}, ours], "x": text},
    }


class Case(NamedTuple):
    kind: Kind[Any]
    document: Any
    """The object, with so many characters in each field that nobody uses."""


CASES = {
    "node": Case(NODE_KIND, node),
    "namespace": Case(NAMESPACE_KIND, namespace),
    "waiting pod": Case(POD_KIND, waiting_pod),
    "bound pod": Case(POD_KIND, bound_pod),
    "ended pod": Case(POD_KIND, ended_pod),
    "enrollment": Case(ENROLLMENT_KIND, enrollment),
    "reservation": Case(RESERVATION_KIND, reservation),
    "policy": Case(POLICY_KIND, policy),
    "class": Case(CLASS_KIND, policy),
}


def bytes_of(kept: object) -> int:
    """What `kept` takes at most: what is shared counts each time.

    A type that is not known here is an error, and so is msgspec.Raw: it is a view that keeps
    the whole message alive, and does not tell its size.
    """
    return sys.getsizeof(kept) + sum(map(bytes_of, parts_of(kept)))


def parts_of(found: object) -> Iterator[object]:
    """What it refers to."""
    if isinstance(found, dict):
        yield from (*found.keys(), *found.values())
    elif isinstance(found, tuple | list | frozenset):
        yield from found
    elif isinstance(found, msgspec.Struct):
        yield from (getattr(found, name) for name in found.__struct_fields__)
    elif is_dataclass(found):
        yield from (getattr(found, field.name) for field in fields(found))
    else:
        assert isinstance(found, str | bytes | int | float | Enum | None), type(found)


def copied(kind: Kind[Any], document: Document) -> tuple[object, ...]:
    """All that a copy holds after the object was listed, and after it was told by a watch."""
    listed: Cache[Any] = Cache()
    listed.take_list(dict([kind.entry(json.dumps(document).encode())]), "7", 1)
    watched: Cache[Any] = Cache()
    line = json.dumps({"type": "ADDED", "object": document}).encode()
    watched.take_event(kind.event(line), 1)
    return tuple(tuple(each.objects.items()) for each in (listed, watched))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fields_that_nobody_uses_take_no_memory(case: Case) -> None:
    plain, bulky = (case.document(size) for size in (PLAIN, BULKY))
    assert len(json.dumps(bulky)) > len(json.dumps(plain)) + 3 * BULKY
    assert bytes_of(copied(case.kind, bulky)) == bytes_of(copied(case.kind, plain))


def test_fields_that_are_used_are_counted() -> None:
    short = waiting_pod(PLAIN)
    long = copy.deepcopy(short)
    long["metadata"]["annotations"]["gpuwarden.dev/gpu-selector"] = "x" * BULKY
    grown = bytes_of(copied(POD_KIND, long)) - bytes_of(copied(POD_KIND, short))
    assert grown >= 2 * BULKY  # a listed one and a watched one


def test_every_collection_that_is_watched_is_measured() -> None:
    watched = {call.resource for call in CALLS if call.verb is Verb.WATCH}
    assert {case.kind.resource for case in CASES.values()} == watched
