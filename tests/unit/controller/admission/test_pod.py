"""A pod as admission reads it: what the API server left out, and what is no pod."""

from typing import Any

import pytest

from controller.admission.pod import (
    AdmittedOwner,
    FieldReference,
    HostPath,
    NodeSelectorRequirement,
    ValueSource,
    Variable,
    Volume,
    VolumeMount,
    decode_admitted,
)
from controller.placement.pod import PodDecodeError
from tests.builders.admitted_pods import admitted, container, new_pod


def test_texts_that_are_left_out_are_empty() -> None:
    bare: dict[str, Any] = {"env": [{"valueFrom": {"fieldRef": {}}}], "volumeMounts": [{}]}
    terms: dict[str, Any] = {"nodeSelectorTerms": [{"matchExpressions": [{}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    document = new_pod(container(**bare), volumes=[{"hostPath": {}}], affinity=affinity)
    document["metadata"]["ownerReferences"] = [{}]
    pod = admitted(document)
    (only,) = pod.all_containers()
    assert only.env == (Variable("", None, ValueSource(FieldReference("", None))),)
    assert only.volume_mounts == (VolumeMount(""),)
    assert pod.spec.volumes == (Volume("", HostPath("")),)
    assert pod.metadata.owner_references == (
        AdmittedOwner(kind="", name="", uid="", controller=None, api_version=""),
    )
    found = pod.spec.affinity
    assert found is not None
    assert found.node_affinity is not None
    assert found.node_affinity.required is not None
    (term,) = found.node_affinity.required.node_selector_terms or ()
    assert term.match_expressions == (NodeSelectorRequirement("", "", None),)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"name": "a", "generateName": "b-"}, "a"),
        ({"generateName": "b-"}, "b-*"),
        ({"name": "", "generateName": "b-"}, "b-*"),
        ({}, "*"),
    ],
)
def test_a_pod_without_a_name_is_shown_by_how_it_will_begin(
    metadata: dict[str, str], expected: str
) -> None:
    assert admitted({"metadata": metadata, "spec": {}}).shown_name == expected


def test_containers_are_those_that_start_first_and_then_the_others() -> None:
    pod = admitted(
        new_pod(
            container("main"),
            initContainers=[container("step")],
            ephemeralContainers=[container("debug")],
        )
    )
    assert [x.name for x in pod.all_containers()] == ["step", "main"]
    by_field = {field: [x.name for x in found] for field, found in pod.lists().items()}
    assert by_field == {"initContainers": ["step"], "containers": ["main"]}


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"spec":' * 100_000])
def test_what_is_no_pod_is_an_error(data: bytes) -> None:
    with pytest.raises(PodDecodeError, match=r"^not a Pod: "):
        decode_admitted(data)
