"""Decoding pods, and the effective number of requested devices."""

import json
from typing import Any

import pytest

from controller.placement.pod import PodDecodeError, decode_pod, device_requests, find_pod
from controller.placement.texts import WishTextError
from tests.builders.pods import GPU_RESOURCE, as_pod, pod_json

GPU = (GPU_RESOURCE,)


def container(amount: int | str, *, sidecar: bool = False) -> dict[str, Any]:
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "resources": {"requests": {GPU_RESOURCE: amount}}, **policy}


@pytest.mark.parametrize(
    ("containers", "inits", "expected"),
    [
        ([container(1), container(2)], [], 3),
        ([container(1)], [container(4)], 4),
        ([container(3)], [container(2)], 3),
        ([container(2)], [container(1, sidecar=True)], 3),
        # The step runs beside the sidecar that started before it, not the one after.
        ([container(1)], [container(2, sidecar=True), container(4)], 6),
        ([container(1)], [container(4), container(2, sidecar=True)], 4),
        ([container("1k")], [], 1000),
        ([container(0)], [], 0),
    ],
)
def test_effective_request(
    containers: list[dict[str, Any]], inits: list[dict[str, Any]], expected: int
) -> None:
    pod = as_pod(pod_json(containers=containers, init_containers=inits))
    assert device_requests(pod, GPU) == (((GPU_RESOURCE, expected),) if expected else ())


def test_requests_win_over_limits_and_limits_count_alone() -> None:
    both = {
        "name": "a",
        "resources": {"requests": {GPU_RESOURCE: "2"}, "limits": {GPU_RESOURCE: 4}},
    }
    alone = {"name": "b", "resources": {"requests": {"cpu": "1"}, "limits": {GPU_RESOURCE: 1}}}
    assert device_requests(as_pod(pod_json(containers=[both, alone])), GPU) == ((GPU_RESOURCE, 3),)


def test_pod_level_resources_never_lower_the_count() -> None:
    for level, expected in ((8, 8), (1, 2)):
        pod = as_pod(pod_json(gpus=2, resources={"requests": {GPU_RESOURCE: level}}))
        assert device_requests(pod, GPU) == ((GPU_RESOURCE, expected),)


def test_each_managed_resource_counts_for_itself() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    each = {"name": "a", "resources": {"limits": {GPU_RESOURCE: 1, mig: 2, "cpu": "4"}}}
    found = device_requests(as_pod(pod_json(containers=[each])), (GPU_RESOURCE, mig, "other/gpu"))
    assert found == ((GPU_RESOURCE, 1), (mig, 2))


@pytest.mark.parametrize("amount", ["-1", "500m", "many", "", "1e99", "1" * 40])
def test_a_request_that_is_no_count_is_an_error(amount: str) -> None:
    with pytest.raises(WishTextError):
        device_requests(as_pod(pod_json(containers=[container(amount)])), GPU)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"metadata":{"annotations":{"a":1}}}',
        b'{"spec":{"containers":3}}',
        b'{"metadata":{"name":"\xff"}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_pod_is_refused(data: bytes) -> None:
    with pytest.raises(PodDecodeError):
        decode_pod(data)


def test_nulls_of_the_api_are_empty() -> None:
    pod = decode_pod(b'{"metadata":{"annotations":null,"labels":null},"spec":{"containers":null}}')
    assert (pod.annotations, pod.labels, device_requests(pod, GPU)) == ({}, {}, ())


def test_the_pod_template_of_a_workload_is_found() -> None:
    pod = pod_json({"a": "b"}, name=None)
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    job = {"spec": {"template": template}}
    for workload in (pod, job, {"kind": "CronJob", "spec": {"jobTemplate": job}}):
        assert find_pod(json.dumps(workload).encode()).annotations == {"a": "b"}


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"spec":{}}',
        b'{"kind":"Service","spec":{"ports":[]}}',
        b"[1]",
        b"\xff",
        b'{"spec":{"template":{"spec":{"template":{"spec":{"template":{"spec":{}}}}}}}}',
        b'{"spec":{"template":7}}',
        b" " * (5 << 20),
    ],
)
def test_what_holds_no_pod_is_refused(data: bytes) -> None:
    with pytest.raises(PodDecodeError):
        find_pod(data)
