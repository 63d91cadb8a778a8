"""What hints know of the cluster: its priority classes, and which job types run in a namespace."""

import json
from typing import Any

import pytest

from controller.admission.hints.patch import PriorityClass
from controller.kube.api.cache import Cache, Change
from controller.kube.api.resources import HINT_CALLS, Entry
from controller.kube.pods.job_types import MOST_TYPES, JobTypes
from controller.kube.pods.pods import KnownPod, pod_kind
from controller.kube.pods.priority_classes import PRIORITY_CLASS_KIND, ClusterPriorityClasses
from controller.placement.keys import RequirementRules

# --- Priority classes


def priority_class(name: str, **fields: Any) -> tuple[str, Entry[PriorityClass]]:
    metadata = {"name": name, "uid": "u", "resourceVersion": "1"}
    return PRIORITY_CLASS_KIND.entry(json.dumps({"metadata": metadata, **fields}).encode())


def test_a_class_is_read_with_what_the_api_leaves_out() -> None:
    never = {"value": -5, "preemptionPolicy": "Never", "globalDefault": True}
    assert priority_class("a", **never)[1].value == PriorityClass(-5, "Never", is_default=True)
    plain = PriorityClass(1000, "PreemptLowerPriority", is_default=False)
    assert priority_class("b", value=1000)[1].value == plain
    path = PRIORITY_CLASS_KIND.resource.path()
    assert path == "/apis/scheduling.k8s.io/v1/priorityclasses"
    assert [(x.verb.value, x.resource) for x in HINT_CALLS] == [
        (verb, PRIORITY_CLASS_KIND.resource) for verb in ("list", "watch")
    ]


def test_while_the_cache_is_too_old_there_is_no_class() -> None:
    cache: Cache[PriorityClass] = Cache()
    now = [0]
    classes = ClusterPriorityClasses(cache, 90, lambda: now[0])
    assert classes.all() == {}
    cache.take_list(dict([priority_class("a", value=7)]), "7", 100)
    now[0] = 189
    assert classes.all() == {"a": PriorityClass(7)}
    now[0] = 190
    assert classes.all() == {}


# --- Job types

KIND = pod_kind(RequirementRules())


def pod(
    name: str = "p",
    job_type: str = "training",
    *,
    namespace: str = "team-a",
    node: str = "gpu-1",
    phase: str = "Running",
    gpus: str = "1",
) -> Entry[KnownPod]:
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "resourceVersion": "1",
            "labels": {"app.kubernetes.io/job-type": job_type},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}],
        },
        "status": {"phase": phase},
    }
    return KIND.entry(json.dumps(body).encode())[1]


@pytest.mark.parametrize(
    ("entry", "job_type"),
    [
        (pod(), "training"),
        (pod(phase="Pending"), "training"),
        (pod(node=""), ""),
        (pod(phase="Succeeded"), ""),
        (pod(phase="Failed"), ""),
        (pod(gpus="0"), ""),
    ],
)
def test_pods_with_gpus_that_run_have_a_job_type(entry: Entry[KnownPod], job_type: str) -> None:
    assert entry.value.job_type == job_type


def test_job_types_are_those_of_the_namespace_as_long_as_a_pod_runs() -> None:
    types = JobTypes()
    first, second, other = pod("a"), pod("b"), pod("c", "serving", namespace="team-b")
    new = [Change("k", None, x) for x in (first, second, other, pod("d", "batch"))]
    types.observe(tuple(new), None)
    assert types.of("team-a") == ("batch", "training")
    assert types.of("team-b") == ("serving",)
    assert types.of("team-c") == ()
    types.observe((Change("k", first, None),), None)
    assert types.of("team-a") == ("batch", "training")
    types.observe((Change("k", second, pod("b", phase="Succeeded")),), None)
    assert types.of("team-a") == ("batch",)
    types.observe((Change("k", other, pod("c", "batch", namespace="team-b")),), None)
    assert types.of("team-b") == ("batch",)
    types.observe((Change("k", pod("c", "batch", namespace="team-b"), None),), None)
    assert types.of("team-b") == ()


def test_the_scorer_hears_of_some_at_most() -> None:
    types = JobTypes()
    many = [Change("k", None, pod(str(i), f"t{i:03}")) for i in range(MOST_TYPES + 1)]
    types.observe(tuple(many), None)
    found = types.of("team-a")
    assert (len(found), found[0], found[-1]) == (64, "t000", "t063")
