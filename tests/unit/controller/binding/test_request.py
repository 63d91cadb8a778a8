"""What is read of a Binding, and how its answer fits onto it."""

from typing import Any

import msgspec
import pytest

from controller.admission.pod import AdmittedPod
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
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import request_of
from tests.builders.admitted_pods import admitted, documents, new_pod
from tests.builders.bindings import SCHEDULER, UID, binding, binding_review, review_request, stored


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


def test_the_path_names_the_pod_where_the_binding_does_not() -> None:
    document = binding()
    request = binding_review(document)
    del document["metadata"]["name"]
    assert read_binding(request_of(request)).pod == "train-0"


def test_a_name_as_long_as_the_api_allows() -> None:
    assert read_binding(review_request(binding(node="n" * 253))).node == "n" * 253


def test_a_request_demands_nothing_by_default() -> None:
    found = BindingRequest("team-a", "train-0", "gpu-1")
    assert (found.uid, found.version, found.annotations, found.labels) == (None, None, None, {})
    assert (found.user, found.dry_run) == ("", False)


NO_POD = binding("")
NO_NODE = binding(node="")
UNNAMED_NODE = binding() | {"target": {"kind": "Node"}}
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
        (UNNAMED_NODE, {}, "target"),
        (SERVICE, {}, "target"),
        (LONG, {}, "not a Binding"),
        (binding(annotations=["x"]), {}, "not a Binding"),
    ],
)
def test_what_is_no_binding(document: Any, request_: dict[str, Any], text: str) -> None:
    with pytest.raises(BindingDecodeError, match=text):
        read_binding(request_of(binding_review(document, **request_)))


def test_nobody_names_the_pod() -> None:
    document = binding_review(binding(), old=True)
    del document["request"]["object"]["metadata"]["name"]
    with pytest.raises(BindingDecodeError, match="a pod's name"):
        read_binding(request_of(document))


def test_a_request_without_an_object() -> None:
    document = binding_review(binding())
    del document["request"]["object"]
    with pytest.raises(BindingDecodeError, match="Expected `object`, got `null`"):
        read_binding(request_of(document))


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


HELD = Result("gpu-1", "a", Promise(Guarantee.NODE), ("GPU-a", "GPU-b"), "v1.k.x")


def labelled(value: str) -> AdmittedPod:
    return admitted(new_pod(labels={"fudo.org/gpu.assign": value}))


@pytest.mark.parametrize("value", ["", "true"])
def test_a_container_runtime_is_told_where_the_pod_asks_for_it(value: str) -> None:
    found = result_annotations(HELD, labelled(value))
    assert found["cdi.k8s.io/gpu-assignment"] == "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b"


def test_a_container_runtime_is_not_told_otherwise() -> None:
    assert "cdi.k8s.io/gpu-assignment" not in result_annotations(HELD, labelled("false"))
    assert "cdi.k8s.io/gpu-assignment" not in result_annotations(HELD, admitted(new_pod()))


def test_the_seeds_spelling_repeats_only_what_there_is() -> None:
    unreserved = Result("gpu-1", None, Promise(Guarantee.NODE))
    assert result_annotations(unreserved, labelled("true")) == {
        "gpuwarden.dev/node": "gpu-1",
        "gpuwarden.dev/guarantee-given": "node",
        "fudo.org/gpu.node": "gpu-1",
    }
