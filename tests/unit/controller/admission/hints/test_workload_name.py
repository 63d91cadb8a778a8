"""What stands for a job type: the same at a pod's creation, in its Job, and at its end."""

from typing import Any

import pytest

from controller.admission.hints.request import is_label_value, name_by_owner
from controller.admission.hints.workload_name import LONGEST, workload_name
from controller.placement.pod import OwnerReference
from tests.builders.hinted import hinted_pod, job_of, workload
from tests.builders.runs import pod_with_run, read_run, status_of

HASH = "6d5f8b9c4"
DEPLOYED = {"pod-template-hash": HASH}
JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "bert"}

Document = dict[str, Any]


def owner(kind: str, name: str, **parts: Any) -> list[Document]:
    """As the API server has it, after one that only keeps the pod from being removed."""
    one = {"apiVersion": "example.org/v1", "kind": kind, "name": name, "uid": "u", **parts}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "v"}
    return [other, {"controller": True, **one}]


def at_creation(owners: list[Document], labels: dict[str, str], namespace: str = "team-a") -> str:
    pod = hinted_pod(None, labels=labels)
    pod["metadata"]["ownerReferences"] = owners
    return name_by_owner(workload(pod), namespace)


def at_its_end(owners: list[Document], labels: dict[str, str], namespace: str = "team-a") -> str:
    metadata = {"ownerReferences": owners, "labels": labels}
    run = read_run(
        pod_with_run(status_of(ended=9), phase="Succeeded", namespace=namespace, metadata=metadata)
    )
    return "" if run is None else run.job_type


@pytest.mark.parametrize(
    ("kind", "name", "labels", "expected"),
    [
        ("StatefulSet", "web", {}, "team-a/StatefulSet/web"),
        ("DaemonSet", "web", {}, "team-a/DaemonSet/web"),
        ("ReplicaSet", f"web-{HASH}", DEPLOYED, "team-a/Deployment/web"),
        ("ReplicaSet", f"web-bf5x2-{HASH}", DEPLOYED, "team-a/Deployment/web"),
        ("ReplicaSet", f"web-{HASH}", {}, f"team-a/ReplicaSet/web-{HASH}"),
        ("ReplicaSet", "web", DEPLOYED, "team-a/ReplicaSet/web"),
        ("ReplicaSet", "web-", {"pod-template-hash": ""}, "team-a/ReplicaSet/web-"),
        ("StatefulSet", f"web-{HASH}", DEPLOYED, f"team-a/StatefulSet/web-{HASH}"),
        ("Job", "train", {}, "team-a/Job/train"),
        ("Job", "train-bf5x2", {}, "team-a/Job/train"),
        ("Job", "train-bf5x", {}, "team-a/Job/train-bf5x"),
        ("Job", "train-bf5x22", {}, "team-a/Job/train-bf5x22"),
        ("Job", "train-large", {}, "team-a/Job/train-large"),
        ("Job", "nightly-29401920", {}, "team-a/CronJob/nightly"),
        ("Job", "nightly-bf5x2-29401920", {}, "team-a/CronJob/nightly"),
        ("Job", "nightly-2940192", {}, "team-a/Job/nightly-2940192"),
        ("Job", "nightly-129401920", {}, "team-a/Job/nightly-129401920"),
        ("StatefulSet", "web-29401920", {}, "team-a/StatefulSet/web-29401920"),
        ("Job", "bert-workers-0", JOB_SET, "team-a/JobSet/bert"),
        ("Job", "bert-29401920", JOB_SET, "team-a/JobSet/bert"),
        ("PyTorchJob", "bert", JOB_SET, "team-a/PyTorchJob/bert"),
        ("Workflow", "steps-bf5x2", {}, "team-a/Workflow/steps"),
        ("Node", "node-1", {}, ""),
        ("", "train", {}, ""),
        ("Job", "", {}, ""),
        ("Job", "two words", {}, ""),
        ("Job", "new\nline", {}, ""),
        ("Job", "a/b", {}, ""),
        ("team-b/Job", "a", {}, ""),
    ],
)
def test_an_owner_is_known_at_both_ends_of_its_pods(
    kind: str, name: str, labels: dict[str, str], expected: str
) -> None:
    owners = owner(kind, name)
    assert at_creation(owners, labels) == expected
    assert at_its_end(owners, labels) == expected


@pytest.mark.parametrize("owners", [[], owner("Job", "a", controller=False), owner("Job", "a")[:1]])
def test_without_a_controller_there_is_no_name(owners: list[Document]) -> None:
    assert at_creation(owners, {}) == at_its_end(owners, {}) == ""


@pytest.mark.parametrize(
    ("metadata", "labels", "made", "expected"),
    [
        ({"name": "train"}, {}, "train", "team-a/Job/train"),
        ({"name": "train-bf5x2"}, {}, "train-bf5x2", "team-a/Job/train"),
        ({"name": "nightly-29401920"}, {}, "nightly-29401920", "team-a/CronJob/nightly"),
        ({"name": "bert-workers-0"}, JOB_SET, "bert-workers-0", "team-a/JobSet/bert"),
        ({"name": None, "generateName": "train-"}, {}, "train-x9k4d", "team-a/Job/train"),
        (
            {"name": None, "generateName": "train-bf5x2-"},
            {},
            "train-bf5x2-x9k4d",
            "team-a/Job/train-bf5x2",
        ),
        (
            {"name": None, "generateName": f"{'a' * 57}-b-"},
            {},
            f"{'a' * 57}-x9k4d",
            f"team-a/Job/{'a' * 57}",
        ),
    ],
)
def test_a_job_is_known_before_its_pods_are_there(
    metadata: Document, labels: dict[str, str], made: str, expected: str
) -> None:
    """`made` is the name that the API server gives it. Its own owner is not in its pods."""
    job = job_of(
        hinted_pod(None, labels=labels),
        **metadata,
        ownerReferences=owner("CronJob", "someone"),
    )
    assert name_by_owner(workload(job), "team-a") == expected
    assert at_its_end(owner("Job", made), labels) == expected


@pytest.mark.parametrize("base", ["train", f"{'a' * 58}-", "", None])
def test_a_generated_name_without_a_dash_is_not_told_from_others(base: str | None) -> None:
    job = job_of(hinted_pod(None), name=None, generateName=base)
    assert name_by_owner(workload(job), "team-a") == ""


def test_a_job_type_comes_first_and_an_unreadable_one_is_none() -> None:
    owners = owner("Job", "train")
    assert at_its_end(owners, {"app.kubernetes.io/job-type": "training"}) == "training"
    assert at_its_end(owners, {"app.kubernetes.io/job-type": ""}) == "team-a/Job/train"


def test_a_long_name_is_cut_and_keeps_its_namespace() -> None:
    kind = "K" * 63
    left = LONGEST - len(f"team-a/{kind}/")
    assert workload_name("team-a", OwnerReference(kind=kind, name="a" * left), {}) == (
        f"team-a/{kind}/{'a' * left}"
    )
    names = {
        workload_name("team-a", OwnerReference(kind=kind, name="a" * left + x), {})
        for x in ("a", "b", "aa")
    }
    assert len(names) == 3
    for name in names:
        assert name.startswith(f"team-a/{kind}/aaa")
        assert len(name) == LONGEST
        assert len(name.partition("~")[2]) == 32
    assert not any(map(is_label_value, names))
