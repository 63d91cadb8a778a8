"""The pods that an object will have, as its controller makes them."""

import json
from typing import Any

import pytest

from controller.admission.made_pods import MOST_PODS, made_pods, namespace_of
from controller.admission.pod import AdmittedPod
from controller.admission.validation import MOST_PARTS
from controller.placement.gpu_map import pod_ordinal
from controller.placement.pod import PodDecodeError
from tests.builders.admitted_pods import Document, new_pod

MAP = {"gpu-scheduling-map": "0=n:0"}
TEMPLATE: Document = {
    "metadata": {"labels": {"app": "web"}, "annotations": MAP},
    "spec": {"containers": [{"name": "main"}]},
}


def workload(kind: str, template: Document = TEMPLATE, **spec: Any) -> Document:
    metadata = {"name": "web", "namespace": "team-b"}
    return {"kind": kind, "metadata": metadata, "spec": {"template": template, **spec}}


def pods(document: Document, namespace: str = "team-a") -> tuple[AdmittedPod, ...]:
    return made_pods(json.dumps(document).encode(), namespace)


def test_a_pod_is_the_pod_itself_but_new() -> None:
    document = new_pod()
    document["metadata"] |= {"uid": "u", "resourceVersion": "7", "name": "train-0"}
    (pod,) = pods({**document, "status": {"phase": "Running"}}, "team-b")
    metadata = pod.metadata
    assert (metadata.name, metadata.namespace) == ("train-0", "team-a")
    assert (metadata.uid, metadata.resource_version, pod.status.phase) == (None, None, "")
    del document["metadata"]["namespace"]
    (pod,) = pods(document, "team-b")
    assert pod.metadata.namespace == "team-b"


def test_a_statefulset_s_pods_have_name_index_and_owner() -> None:
    made = pods(workload("StatefulSet", replicas=2, ordinals={"start": 3}))
    assert [x.metadata.name for x in made] == ["web-3", "web-4"]
    assert [pod_ordinal(x) for x in made] == [3, 4]
    assert made[0].labels == {"app": "web", "apps.kubernetes.io/pod-index": "3"}
    assert made[0].annotations == MAP
    assert {x.metadata.namespace for x in made} == {"team-b"}
    (owner,) = made[0].metadata.owner_references or ()
    assert (owner.kind, owner.name, owner.controller) == ("StatefulSet", "web", True)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, ["web-0"]),
        ({"replicas": 0}, ["web-0"]),
        ({"replicas": None}, ["web-0"]),
        ({"replicas": 1}, ["web-0"]),
        ({"replicas": 1, "ordinals": {}}, ["web-0"]),
        ({"replicas": MOST_PODS}, [f"web-{x}" for x in range(MOST_PODS)]),
    ],
)
def test_as_many_as_there_are_but_one_at_least(spec: Document, names: list[str]) -> None:
    assert [x.metadata.name for x in pods(workload("StatefulSet", **spec))] == names


def test_too_many_are_refused_where_a_map_tells_them_apart() -> None:
    with pytest.raises(PodDecodeError, match=r"65 pods with a map .* at most 64: ask about a sin"):
        pods(workload("StatefulSet", replicas=MOST_PODS + 1))


@pytest.mark.parametrize("annotations", [{}, MAP | {"gpuwarden.dev/ordinal": "1"}])
def test_pods_that_are_alike_are_judged_once(annotations: dict[str, str]) -> None:
    template = {**TEMPLATE, "metadata": {"annotations": annotations}}
    for document in (
        workload("StatefulSet", template, replicas=1_000_000),
        workload("Job", template, completionMode="Indexed", completions=1_000_000),
    ):
        (pod,) = pods(document)
        assert pod.annotations.items() >= annotations.items()


def test_the_pods_of_an_indexed_job_have_their_index() -> None:
    job = workload("Job", completionMode="Indexed", completions=2)
    made = pods(job)
    assert [pod_ordinal(x) for x in made] == [0, 1]
    assert [x.metadata.generate_name for x in made] == ["web-0-", "web-1-"]
    key = "batch.kubernetes.io/job-completion-index"
    assert (made[1].labels[key], made[1].annotations[key]) == ("1", "1")
    cron = {"kind": "CronJob", "metadata": job["metadata"], "spec": {"jobTemplate": job}}
    made = pods(cron)
    assert [pod_ordinal(x) for x in made] == [0, 1]
    assert {x.metadata.namespace for x in made} == {"team-b"}
    assert [x.metadata.generate_name for x in made] == ["web-0-0-", "web-0-1-"]
    (single,) = pods(workload("Job", completionMode="Indexed"))
    assert pod_ordinal(single) == 0


@pytest.mark.parametrize(
    ("kind", "owner", "generated"),
    [
        ("Deployment", "ReplicaSet", "web-0-"),
        ("ReplicaSet", "ReplicaSet", "web-"),
        ("ReplicationController", "ReplicationController", "web-"),
        ("DaemonSet", "DaemonSet", "web-"),
        ("Job", "Job", "web-"),
    ],
)
def test_other_controllers_pods_have_a_generated_name(
    kind: str, owner: str, generated: str
) -> None:
    (pod,) = pods(workload(kind, replicas=3))
    assert (pod.metadata.name, pod.metadata.generate_name) == (None, generated)
    (reference,) = pod.metadata.owner_references or ()
    assert (reference.kind, reference.controller) == (owner, True)
    assert ("pod-template-hash" in pod.labels) is (kind == "Deployment")
    assert pod_ordinal(pod) is None


def test_what_an_unknown_controller_adds_is_not_known() -> None:
    (pod,) = pods(workload("PyTorchJob"))
    metadata = pod.metadata
    assert (metadata.name, metadata.generate_name, metadata.owner_references) == (None, None, None)
    assert metadata.namespace == "team-b"


def test_a_workload_without_a_name_has_one_by_its_kind() -> None:
    document = workload("StatefulSet") | {"metadata": {}}
    (pod,) = pods(document)
    assert (pod.metadata.name, pod.metadata.namespace) == ("statefulset-0", "team-a")
    (pod,) = pods(document | {"metadata": {"generateName": "some-"}})
    assert pod.metadata.name == "some--0"


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"spec":{}}',
        b'{"kind":"Service","spec":{"ports":[]}}',
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"spec":{"containers":[]}}',
        b'{"spec":{"template":{"spec":{"containers":[]}}}}',
        b'{"spec":{"template":{"spec":{"template":{"spec":{}}}}}}',
        b'{"spec":{"template":7}}',
        b'{"spec":{"jobTemplate":{"spec":{"jobTemplate":{"spec":{}}}}}}',
        b'{"kind":"StatefulSet","spec":{"replicas":"many"}}',
        b" " * (5 << 20),
    ],
)
def test_what_holds_no_pod_is_refused(data: bytes) -> None:
    with pytest.raises(PodDecodeError):
        made_pods(data, "team-a")


def test_pods_that_are_too_large_to_be_judged_are_made_once() -> None:
    """Each is a copy of a megabyte, and is refused for its size."""
    many = {f"k{number}": "" for number in range(MOST_PARTS)}
    template = {"metadata": {"annotations": MAP | many}, "spec": {"containers": [{"name": "m"}]}}
    for kind, spec in (
        ("StatefulSet", {"replicas": 64}),
        ("Job", {"completionMode": "Indexed", "completions": 64}),
    ):
        assert len(pods(workload(kind, template, **spec))) == 1


def test_an_object_is_read_up_to_its_largest_size() -> None:
    document = json.dumps(new_pod()).encode()
    (pod,) = made_pods(document.ljust(4 << 20), "team-a")
    assert pod.spec.containers
    with pytest.raises(PodDecodeError, match="more than 4194304 bytes"):
        made_pods(document.ljust((4 << 20) + 1), "team-a")


def test_where_the_pods_of_an_object_will_be() -> None:
    """The object's own namespace counts, whatever a template in it says."""
    template = {"metadata": {"namespace": "elsewhere"}, "spec": {"containers": [{"name": "m"}]}}
    workload = {"kind": "Other", "metadata": {}, "spec": {"template": template}}
    assert namespace_of(json.dumps(workload).encode(), "asked") == "asked"
    assert namespace_of(json.dumps(workload).encode(), "") == ""
    workload["metadata"] = {"namespace": "own"}
    assert namespace_of(json.dumps(workload).encode(), "asked") == "own"
