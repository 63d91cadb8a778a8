"""What is read of a Binding, and how its answer fits onto it."""

from typing import Any

import msgspec
import pytest

from controller.binding.request import (
    BindingDecodeError,
    BindingRequest,
    Result,
    binding_patch,
    read_binding,
    result_annotations,
)
from controller.placement.node_verdict import Promise
from controller.placement.requirements import Guarantee
from tests.builders.admission_reviews import request_of
from tests.builders.admitted_pods import admitted, documents, new_pod
from tests.builders.bindings import SCHEDULER, UID, binding, binding_review, review_request, stored
from tests.fakes.json_patch import applied


def test_a_binding_of_the_scheduler() -> None:
    found = read_binding(review_request(binding(), dryRun=True))
    assert found == BindingRequest(
        namespace="team-a",
        pod="train-0",
        node="gpu-1",
        uid=UID,
        user=SCHEDULER,
        dry_run=True,
    )


def test_one_made_by_hand_on_the_old_resource() -> None:
    document = binding(uid=None, resourceVersion="9", annotations={"a": "b"}, labels={"c": "d"})
    del document["target"]["kind"]
    assert read_binding(review_request(document, old=True)) == BindingRequest(
        namespace="team-a",
        pod="train-0",
        node="gpu-1",
        version="9",
        annotations={"a": "b"},
        labels={"c": "d"},
        user=SCHEDULER,
    )


NO_POD = binding("")
NO_NODE = binding(node="")
SERVICE = binding() | {"target": {"kind": "Service", "name": "x"}}
LONG = binding(node="n" * 254)


@pytest.mark.parametrize(
    ("document", "request_", "text"),
    [
        (binding(), {"resource": {"resource": "pods"}, "subresource": ""}, "webhook's rules"),
        (binding(), {"resource": {"resource": "deployments"}}, "webhook's rules"),
        (binding(), {"operation": "UPDATE"}, "webhook's rules"),
        (binding(), {"name": "another"}, "another one"),
        (binding(), {"namespace": ""}, "a pod's name"),
        (NO_POD, {}, "a pod's name"),
        (NO_NODE, {}, "target"),
        (SERVICE, {}, "target"),
        (LONG, {}, "not a Binding"),
        (binding(annotations=["x"]), {}, "not a Binding"),
    ],
)
def test_what_is_no_binding(document: Any, request_: dict[str, Any], text: str) -> None:
    with pytest.raises(BindingDecodeError, match=text):
        read_binding(request_of(binding_review(document, **request_)))


@pytest.mark.parametrize("raw", [None, "text", 7])
def test_an_object_that_is_none(raw: object) -> None:
    document = binding_review(binding())
    document["request"]["object"] = raw
    with pytest.raises(BindingDecodeError, match="not a Binding"):
        read_binding(request_of(document))


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"annotations": None},
        {"annotations": {}},
        {"annotations": {"example.org/a~b": "kept"}},
        {"uid": None, "resourceVersion": "7"},
    ],
)
def test_the_patch_fits_whatever_is_there(metadata: dict[str, Any]) -> None:
    document = binding(**metadata)
    request = read_binding(request_of(binding_review(document)))
    told = {"gpuwarden.dev/node": "gpu-1", "gpuwarden.dev/guarantee-given": "node"}
    patch = binding_patch(request, stored(), told)
    found = applied(msgspec.json.decode(msgspec.json.encode(document)), documents(patch))
    kept = metadata.get("annotations") or {}
    assert found["metadata"]["annotations"] == {**kept, **told}
    assert (found["metadata"]["uid"], found["metadata"]["resourceVersion"]) == (UID, "7")
    assert found["target"] == document["target"]


def test_without_an_attestation_hash_none_is_written() -> None:
    found = result_annotations(Result("gpu-1", None, Promise(Guarantee.NODE)), admitted(new_pod()))
    assert found == {"gpuwarden.dev/node": "gpu-1", "gpuwarden.dev/guarantee-given": "node"}
