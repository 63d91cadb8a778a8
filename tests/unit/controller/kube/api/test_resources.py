import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest

from controller.fleet.directory import KnownNode, Taint
from controller.kube.api.cache import Cache
from controller.kube.api.resources import (
    CALLS,
    ApiError,
    Entry,
    EventKind,
    Kind,
    Verb,
    error_from_answer,
)
from controller.kube.nodes.nodes import NAMESPACE_KIND, NODE_KIND, KnownNamespace
from controller.kube.objects.enrollments import ENROLLMENT_KIND, enrollment_object
from controller.kube.objects.policy_objects import ACCEPTED, CLASS_KIND, POLICY_KIND
from controller.kube.objects.reservations import (
    RESERVATION_KIND,
    reservation_object,
    reservation_status,
)
from controller.kube.pods.pods import KnownPod, pod_kind
from controller.ledger.record import PodRef
from controller.ledger.restore import LivePod
from controller.placement.keys import RequirementRules
from tests.builders.ledger import record
from tests.contracts.enrollment_store import FULL

# --- What is read of an object, and what is refused

METADATA = {"name": "n", "uid": "u", "resourceVersion": "v", "annotations": {"x": "y" * 9}}


def line(kind: str, body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


def test_a_node() -> None:
    body = {"metadata": METADATA, "spec": {"podCIDR": "10.0.0.0/8"}, "status": {"images": [1]}}
    assert NODE_KIND.entry(json.dumps(body).encode()) == ("n", Entry("v", "u", KnownNode("u")))


@pytest.mark.parametrize(
    ("taints", "managed"),
    [
        (None, False),
        ([{"key": "gpuwarden.dev/managed", "effect": "NoExecute", "value": "x"}], True),
        ([{"key": "gpuwarden.dev/managed", "effect": "NoSchedule"}], False),
        ([{"key": "other", "effect": "NoExecute"}, {"key": "gpuwarden.dev/managed"}], False),
    ],
)
def test_what_is_kept_of_a_node(taints: Any, *, managed: bool) -> None:
    labels = {"gpu-node-name": "node1", "other": "x"}
    body = {"metadata": {**METADATA, "labels": labels}, "spec": {"taints": taints}}
    _, entry = NODE_KIND.entry(json.dumps(body).encode())
    hard = tuple(
        Taint(x["key"], x.get("value", ""), x["effect"]) for x in taints or () if "effect" in x
    )
    assert entry.value == KnownNode("u", managed, "node1", labels=labels, taints=hard)


@pytest.mark.parametrize(
    ("phase", "has_ended"), [("Running", False), ("Failed", True), ("", False)]
)
def test_a_pod(phase: str, *, has_ended: bool) -> None:
    body = {
        "metadata": {**METADATA, "namespace": "ns"},
        "spec": {"nodeName": "gpu-1", "containers": [{}]},
        "status": {"phase": phase, "conditions": None},
    }
    evicted_after_s = None if has_ended else 0
    pod = KnownPod(
        "ns",
        "n",
        "u",
        "gpu-1",
        has_ended,
        asks=False,
        uses_gpus=False,
        evicted_after_s=evicted_after_s,
    )
    assert pod_kind(RequirementRules()).entry(json.dumps(body).encode()) == (
        "ns/n",
        Entry("v", "u", pod),
    )


@pytest.mark.parametrize(
    ("annotations", "limits", "asks", "uses_gpus"),
    [
        ({}, {}, False, False),
        ({}, {"nvidia.com/gpu": "1"}, False, True),
        ({"gpuwarden.dev/min-level": "L1"}, {}, True, True),
        ({"gpuwarden.dev/min-level": "none of them"}, {}, True, True),
    ],
)
def test_the_requirements_of_a_pod(
    annotations: dict[str, str], limits: dict[str, str], *, asks: bool, uses_gpus: bool
) -> None:
    body = {
        "metadata": {**METADATA, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    _, entry = pod_kind(RequirementRules()).entry(json.dumps(body).encode())
    assert (entry.value.asks, entry.value.uses_gpus) == (asks, uses_gpus)


def pod_of(annotations: dict[str, str], **more: Any) -> KnownPod:
    spec = {"containers": [{"name": "c", "env": [{"name": "A", "value": "b"}]}], **more}
    owner = {"kind": "Job", "name": "j", "uid": "job-1", "controller": True}
    metadata = {
        **METADATA,
        "namespace": "ns",
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    status = {"phase": "Failed" if more.get("ended") else "Pending"}
    body = json.dumps({"metadata": metadata, "spec": spec, "status": status})
    return pod_kind(RequirementRules()).entry(body.encode())[1].value


def test_a_pod_that_waits_is_kept_whole() -> None:
    found = pod_of({"example.org/a": "b"})
    assert found.waiting is not None
    assert [x.name for x in found.waiting.spec.containers or ()] == ["c"]
    assert found.held is None
    assert pod_of({}, nodeName="gpu-1").waiting is None
    assert pod_of({}, ended=True).waiting is None


def test_what_a_bound_pod_was_told_that_it_holds() -> None:
    told = {
        "gpuwarden.dev/reservation-id": "v1.k.x",
        "gpuwarden.dev/gpu-uuids-assigned": "GPU-b,GPU-a",
    }
    pod = PodRef("ns", "n", "u", "job-1")
    assert pod_of(told, nodeName="gpu-1").held == LivePod(
        pod, "gpu-1", "v1.k.x", ("GPU-a", "GPU-b")
    )
    assert pod_of(told).held is None
    assert pod_of({}, nodeName="gpu-1").held is None


@pytest.mark.parametrize(
    ("labels", "enforced"),
    [
        ({"gpuwarden.dev/enforce": "true"}, True),
        ({"gpuwarden.dev/enforce": "no"}, False),
        (None, False),
    ],
)
def test_a_namespace(labels: dict[str, str] | None, *, enforced: bool) -> None:
    body = {"metadata": {**METADATA, "labels": labels}}
    _, entry = NAMESPACE_KIND.entry(json.dumps(body).encode())
    assert entry.value == KnownNamespace(enforced)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": {}},
        {"metadata": {**METADATA, "uid": ""}},
        {"metadata": {**METADATA, "name": 7}},
        {"metadata": {"name": "n", "uid": "u"}},
        [],
    ],
)
def test_an_object_that_cannot_be_known_is_an_error(body: Any) -> None:
    with pytest.raises(ApiError, match="nodes: an object"):
        NODE_KIND.entry(json.dumps(body).encode())


class TestEvents:
    def test_applied_and_deleted(self) -> None:
        for kind in ("ADDED", "MODIFIED"):
            event = NODE_KIND.event(line(kind, {"metadata": METADATA}))
            assert (event.kind, event.key, event.version) == (EventKind.APPLIED, "n", "v")
        event = NODE_KIND.event(line("DELETED", {"metadata": METADATA}))
        assert event.kind is EventKind.DELETED

    def test_a_bookmark_has_only_a_version(self) -> None:
        event = NODE_KIND.event(line("BOOKMARK", {"metadata": {"resourceVersion": "b"}}))
        assert (event.kind, event.version, event.entry) == (EventKind.BOOKMARK, "b", None)

    def test_an_error_is_raised_as_what_it_says(self) -> None:
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        with pytest.raises(ApiError, match="410 Expired: too old") as found:
            NODE_KIND.event(line("ERROR", status))
        assert found.value.is_gone

    def test_an_error_without_a_code_is_the_servers(self) -> None:
        with pytest.raises(ApiError) as found:
            NODE_KIND.event(line("ERROR", {"kind": "Status"}))
        assert found.value.status == 500

    @pytest.mark.parametrize(
        "garbage", [b"\n", b"null\n", b'{"type":"ADDED"}\n', line("LOUD", {}), line("BOOKMARK", 1)]
    )
    def test_garbage_is_no_event(self, garbage: bytes) -> None:
        with pytest.raises(ApiError) as found:
            NODE_KIND.event(garbage)
        assert not found.value.says_wait


class TestErrors:
    def test_retry_after_of_the_body_counts_where_the_header_is_missing(self) -> None:
        body = b'{"kind":"Status","details":{"retryAfterSeconds":3}}'
        assert error_from_answer(429, body).retry_after_s == 3.0
        assert error_from_answer(429, body, "9").retry_after_s == 9.0
        assert error_from_answer(429, body, "86400").retry_after_s == 60.0
        assert error_from_answer(429, b"", "tomorrow").retry_after_s == 0.0

    def test_texts_are_short_clean_and_without_secrets(self) -> None:
        message = "a\x1b[31m" + " bearer abcdefghijklmnop" + "é" * 1000
        body = json.dumps({"kind": "Status", "message": message}).encode()
        text = str(error_from_answer(403, body))
        assert "abcdefgh" not in text
        assert text.isascii()
        assert text.isprintable()
        assert len(text) < 350


# --- A copy of the cluster is as large as the fields that are used, whatever else objects carry

Document = dict[str, Any]
GIVEN = {"uid": "uid-1", "resourceVersion": "7"}
"""By the API server, as is `managedFields`."""
PLAIN, BULKY = 1, 200_000
"""Characters in each unused field; the API server takes objects of up to 1.5 MB."""
POD_KIND = pod_kind(RequirementRules())


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
    """Kept for the binding webhook, which judges annotations, variables and devices only."""
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
    made = deepcopy(enrollment_object(FULL))
    made["metadata"] |= GIVEN | bulk(characters, "annotations", "labels")
    return {**made, "status": {"x": "x" * characters}}


def reservation(characters: int) -> Document:
    """Its status is kept as it is; of what others write there the schema lets nothing through."""
    made = deepcopy(reservation_object(record()))
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
    short["metadata"]["annotations"]["gpuwarden.dev/gpu-selector"] = "x"
    long = deepcopy(short)
    long["metadata"]["annotations"]["gpuwarden.dev/gpu-selector"] = "x" * BULKY
    grown = bytes_of(copied(POD_KIND, long)) - bytes_of(copied(POD_KIND, short))
    assert grown >= 2 * BULKY  # a listed one and a watched one


def test_every_collection_that_is_watched_is_measured() -> None:
    watched = {call.resource for call in CALLS if call.verb is Verb.WATCH}
    assert {case.kind.resource for case in CASES.values()} == watched
