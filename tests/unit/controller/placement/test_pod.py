from typing import Any

import pytest

from controller.placement import gpu_map
from controller.placement.gpu_map import (
    Place,
    is_device_uuid,
    parse_gpu_map,
    pod_ordinal,
    read_place,
)
from controller.placement.pod import PodDecodeError, decode_pod, device_requests
from gpuwarden.finding import Finding
from gpuwarden.policy.texts import RequirementTextError
from tests.builders.pods import GPU_RESOURCE, as_pod, pod_json

# --- Decoding pods, and the effective number of requested devices

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
    with pytest.raises(RequirementTextError):
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


# --- The gpu-scheduling-map, line by line


def lines_at_fault(text: str) -> list[str]:
    found = parse_gpu_map(text)
    assert isinstance(found, tuple), found
    return [finding.key for finding in found]


def test_seed_vectors() -> None:
    assert parse_gpu_map("0=node1:0,1\n1=node2:2\n2=node3:0,1,2\n3=node4:3\n4=node4:3") == {
        0: Place("node1", (0, 1)),
        1: Place("node2", (2,)),
        2: Place("node3", (0, 1, 2)),
        3: Place("node4", (3,)),
        4: Place("node4", (3,)),
    }
    assert parse_gpu_map("  0 = node1 : 0,1  \n\n1=node2:2") == {
        0: Place("node1", (0, 1)),
        1: Place("node2", (2,)),
    }


def test_comments_crlf_uuids_and_dotted_node_names() -> None:
    text = "# cards of the lab\r\n0=gpu-1.lab.example:GPU-ab, GPU-cd\r\n1=n:MIG-GPU-ab/7/0"
    assert parse_gpu_map(text) == {
        0: Place("gpu-1.lab.example", ("GPU-ab", "GPU-cd")),
        1: Place("n", ("MIG-GPU-ab/7/0",)),
    }


@pytest.mark.parametrize(
    "line",
    [
        "x=n:0",
        "-1=n:0",
        "=n:0",
        "0",
        "0=n",
        "0:n=0",
        "0=node1:",
        "0=:0",
        "0=Node_1:0",
        "0=n:0,0",
        "0=n:0,00",
        "0=n:MIG-a,MIG-b",
        "0=n:GPU-a,MIG-b",
        "0=n:MIG-GPU-a/1/0,0",
        "0=n:0,,1",
        "0=a:0,1;1=b:2",
        "0=n:1000",
        "0=n:-1",
        "0=n:GPU-",
        "0=n:GPU-a b",
        "0=n:" + ",".join(map(str, range(65))),
        "9999999999999999999=n:0",
        "٣=n:0",
    ],
)
def test_a_wrong_line_is_named_and_spoils_the_map(line: str) -> None:
    assert lines_at_fault(f"7=good:0\n{line}") == ["gpu-scheduling-map line 2"]


def test_of_a_line_with_several_mig_devices_it_is_said_why() -> None:
    found = parse_gpu_map("0=n:MIG-a,MIG-b")
    assert isinstance(found, tuple)
    (finding,) = found
    assert "got 0=n:MIG-a,MIG-b; expected a MIG device alone" in str(finding)


def test_every_wrong_line_is_reported() -> None:
    assert lines_at_fault("x=n:0\n0=n:0\n\n0=m:1\n1=n:") == [
        f"gpu-scheduling-map line {number}" for number in (1, 4, 5)
    ]


@pytest.mark.parametrize("text", ["", " \n ", "# only a comment", "0=n:0" * 20_000, "\n" * 5000])
def test_a_map_without_lines_or_without_bounds_is_refused(text: str) -> None:
    assert lines_at_fault(text)


def test_of_a_map_of_wrong_lines_the_first_are_reported() -> None:
    assert lines_at_fault("9=n:0\n" + "x\n" * 4000) == [
        f"gpu-scheduling-map line {number}" for number in range(2, 18)
    ]


def place_of(text: str, number: int) -> tuple[Place | None, bool]:
    findings: list[Finding] = []
    pod = as_pod(pod_json({"gpu-scheduling-map": text}, name=f"kept-{number}"))
    found = read_place(pod, findings)
    assert not findings
    return found


def test_a_map_is_parsed_once_for_all_its_pods_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event of a pod reads it, in every replica."""
    text = "\n".join(f"{number}=kept-once:{number % 3}" for number in range(5))
    first = place_of(text, 0)
    monkeypatch.delattr(gpu_map, "_line")
    assert place_of(text, 0) == first == (Place("kept-once", (0,)), True)
    assert place_of(text, 2) == (Place("kept-once", (2,)), False)


def test_a_pod_is_not_parsed_again_because_of_many_other_maps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_map, "_ANSWERS", {})
    texts = [f"0=kept-{number}:0" for number in range(500)]
    first = [place_of(text, 0) for text in texts]
    monkeypatch.delattr(gpu_map, "_line")
    assert [place_of(text, 0) for text in texts] == first


def test_what_is_kept_of_maps_is_bounded_and_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(gpu_map, "_ANSWERS", kept)
    for number in range(1100):
        assert place_of(f"0=bounded-{number}:0", 0) == (Place(f"bounded-{number}", (0,)), False)
        assert len(kept) <= 1024
    found = parse_gpu_map("0=n:0")
    with pytest.raises(TypeError):
        found[0] = Place("other", (1,))  # type: ignore[index] # that it cannot be done


@pytest.mark.parametrize("text", ["GPU-1", "MIG-2", "MIG-GPU-3/1/0"])
def test_uuids(text: str) -> None:
    assert is_device_uuid(text)


@pytest.mark.parametrize("text", ["gpu-1", "GPU-", "GPU-1/1/0", "MIG-GPU-3/1", "1", "GPU-1\n"])
def test_what_is_no_uuid(text: str) -> None:
    assert not is_device_uuid(text)


# --- Which line of the map is a pod's

INDEX = "apps.kubernetes.io/pod-index"
COMPLETION = "batch.kubernetes.io/job-completion-index"


def ordinal(**pod: Any) -> int | Finding | None:
    return pod_ordinal(as_pod(pod_json(**pod)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my-app-0", 0),
        ("test-pod-42", 42),
        ("web-007", 7),
        ("n-999999999999", 999999999999),
        ("my-app-abc", None),
        ("no-index", None),
        ("test-pod-", None),
        ("", None),
        (None, None),
        ("-5", None),
        ("42", None),
        ("web-٣", None),
        ("n-" + "9" * 19, None),
    ],
)
def test_name_of_a_bare_pod(name: str | None, expected: int | None) -> None:
    assert ordinal(name=name) == expected


def test_a_random_suffix_that_has_digits_alone_is_no_ordinal() -> None:
    assert ordinal(name="train-24680", generate_name="train-") is None
    assert ordinal(name="web-3", generate_name="web-", owner="StatefulSet/web") == 3


def test_all_digit_suffix_of_a_replica_set_is_no_ordinal() -> None:
    assert ordinal(name="dep-7d9f5-24680", owner="ReplicaSet/dep-7d9f5") is None
    assert ordinal(name="dep-7d9f5-24680", labels={"pod-template-hash": "7d9f5"}) is None


def test_only_the_suffix_of_its_own_stateful_set_counts() -> None:
    assert ordinal(name="web-3", owner="StatefulSet/web") == 3
    assert ordinal(name="web-3-4", owner="StatefulSet/web") is None
    assert ordinal(name="web-03", owner="StatefulSet/web") is None
    assert ordinal(name="web-0", owner="StatefulSet/web") == 0
    assert ordinal(name="job-3-4", owner="Job/job") is None


def test_indexed_job() -> None:
    assert ordinal(name="job-3-abcde", owner="Job/job", labels={COMPLETION: "3"}) == 3
    assert ordinal(name="job-3-abcde", owner="Job/job", annotations={COMPLETION: "3"}) == 3


def test_precedence() -> None:
    annotations = {"gpuwarden.dev/ordinal": "1", COMPLETION: "4"}
    labels = {INDEX: "2", COMPLETION: "3"}
    pod: dict[str, Any] = {"name": "job-5-abcde", "owner": "Job/job"}
    assert ordinal(annotations=annotations, labels=labels, **pod) == 1
    del annotations["gpuwarden.dev/ordinal"]
    assert ordinal(annotations=annotations, labels=labels, **pod) == 2
    del labels[INDEX]
    assert ordinal(annotations=annotations, labels=labels, **pod) == 3
    assert ordinal(annotations=annotations, **pod) == 4
    assert ordinal(name="web-5", owner="StatefulSet/web") == 5


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"labels": {INDEX: "2"}}, INDEX),
        ({"labels": {COMPLETION: "2"}}, COMPLETION),
        ({"annotations": {COMPLETION: "2"}}, COMPLETION),
    ],
)
@pytest.mark.parametrize("owner", ["StatefulSet/web", None])
def test_a_label_against_the_name_is_a_fault(
    given: dict[str, Any], key: str, owner: str | None
) -> None:
    assert ordinal(name="web-5", owner=owner, **given) == Finding(
        key, "2", "5, as the pod's name says"
    )
    assert ordinal(name="web-2", owner=owner, **given) == 2
    explicit = {**given, "annotations": {"gpuwarden.dev/ordinal": "7"}}
    assert ordinal(name="web-5", owner=owner, **explicit) == 7


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "1 ", "9" * 19])
def test_a_wrong_explicit_ordinal_does_not_fall_through_to_the_name(text: str) -> None:
    found = ordinal(name="web-5", annotations={"gpuwarden.dev/ordinal": text})
    assert isinstance(found, Finding)
    assert found.key == "gpuwarden.dev/ordinal"
