"""What a pod or Job tells the scorer, and what of it is left out."""

import json

import msgspec
import pytest

from controller.admission.hints.request import (
    Features,
    Told,
    decode_workload,
    has_room,
    image_of,
    job_type_of,
    requests_gpus,
    score_request,
    told,
)
from controller.admission.pod import decode_admitted
from controller.placement.pod import PodDecodeError, decode_pod
from controller.scoring.documents import read_document, read_score
from tests.builders.admitted_pods import container, new_pod
from tests.builders.hinted import hinted_pod, job_of, workload
from tests.builders.runs import DIGEST, OTHER_DIGEST

GPU = ("nvidia.com/gpu",)


def features(document: dict[str, object]) -> Features:
    found = told(workload(document), "").features
    assert found is not None
    return found


# --- Keys of both projects, as annotations and as labels


def test_without_a_job_type_nothing_is_told() -> None:
    assert told(workload(hinted_pod(None)), "") == Told(None)
    assert told(workload(hinted_pod(None, annotations={"gpu.mem.gi": "x"})), "") == Told(None)


def test_an_owner_stands_for_a_job_type_that_is_not_there_or_cannot_be_read() -> None:
    more = {"gpu.mem.gi": "40Gi"}
    plain = workload(hinted_pod(None, annotations=more))
    assert told(plain, "team-a/Job/train") == Told(Features("team-a/Job/train", 40.0))
    typed = workload(hinted_pod("training", annotations=more))
    assert told(typed, "team-a/Job/train") == Told(Features("training", 40.0))
    found = told(workload(hinted_pod("a b", annotations={"gpu.mem.gi": "x"})), "team-a/Job/train")
    assert found.features == Features("team-a/Job/train")
    assert [x.split(":")[1].strip() for x in found.warnings] == [
        "app.kubernetes.io/job-type",
        "gpu.mem.gi",
    ]


def test_a_job_type_alone_is_enough() -> None:
    assert features(hinted_pod("training")) == Features("training", None, None, "default")


def test_all_keys_of_radix() -> None:
    more = {"gpu.mem.gi": "40Gi", "ml.batch_size": "32", "scheduler.radix.ai/tenant": "ml"}
    assert features(hinted_pod("t", annotations=more)) == Features("t", 40.0, 32, "ml")


def test_all_keys_of_gpuwarden_come_before_those() -> None:
    seed = {"gpu.mem.gi": "40Gi", "ml.batch_size": "32", "scheduler.radix.ai/tenant": "ml"}
    own = {
        "gpuwarden.dev/job-type": "serving",
        "gpuwarden.dev/gpu-memory": "16Gi",
        "gpuwarden.dev/batch-size": "8",
        "gpuwarden.dev/tenant": "team",
    }
    pod = hinted_pod("training", annotations={**seed, **own})
    assert features(pod) == Features("serving", 16.0, 8, "team")


@pytest.mark.parametrize("key", ["gpuwarden.dev/job-type", "app.kubernetes.io/job-type"])
def test_the_job_type_may_be_a_label_and_an_annotation_wins(key: str) -> None:
    assert features(hinted_pod(None, labels={key: "serving"})).job_type == "serving"
    assert features(hinted_pod("training", labels={key: "serving"})).job_type == "training"


def test_a_jobs_own_keys_count_and_those_of_its_template_come_first() -> None:
    metadata = {
        "annotations": {"gpu.mem.gi": "40", "ml.batch_size": "2"},
        "labels": {"app.kubernetes.io/job-type": "outer"},
    }
    pod = hinted_pod(None, annotations={"ml.batch_size": "4"})
    assert features(job_of(pod, **metadata)) == Features("outer", 40.0, 4)
    inner = hinted_pod(None, labels={"app.kubernetes.io/job-type": "inner"})
    assert features(job_of(inner, **metadata)).job_type == "inner"


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("40Gi", 40.0),
        ("40", 40.0),
        ("0.5", 0.5),
        ("512Mi", 0.5),
        ("1Ti", 1024.0),
        ("2097152Ki", 2.0),
        ("40G", 40e9 / 2**30),
        ("40000M", 40e9 / 2**30),
        ("40000000k", 40e9 / 2**30),
        ("1T", 1e12 / 2**30),
    ],
)
def test_memory_is_a_quantity_or_gibibytes(text: str, gib: float) -> None:
    pod = hinted_pod(annotations={"gpu.mem.gi": text})
    assert features(pod).memory_gib == pytest.approx(gib)


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-40", "40 Gi", "", "0", "0Gi", "much", "1e3", "4000000000", "40gi"]
)
def test_memory_that_is_no_amount_is_left_out_with_a_warning(text: str) -> None:
    found = told(workload(hinted_pod(annotations={"gpu.mem.gi": text})), "")
    assert found.features == Features("training")
    (warning,) = found.warnings
    assert warning.startswith("gpuwarden: gpu.mem.gi: ")
    assert warning.endswith(" is ignored, expected an amount above 0 such as 40Gi or 40")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "nan", "many", "", "1234567890", "٣"])
def test_a_batch_size_that_is_no_count_is_left_out_with_a_warning(text: str) -> None:
    found = told(workload(hinted_pod(annotations={"ml.batch_size": text})), "")
    assert found.features == Features("training")
    (warning,) = found.warnings
    assert warning.startswith("gpuwarden: ml.batch_size: ")
    assert warning.endswith(" is ignored, expected a whole number from 1")


def test_the_largest_batch_size_and_the_longest_tenant_count() -> None:
    pod = hinted_pod(annotations={"ml.batch_size": "999999999", "gpuwarden.dev/tenant": "t" * 253})
    assert features(pod) == Features("training", None, 999_999_999, "t" * 253)
    short = hinted_pod(annotations={"ml.batch_size": "1", "gpuwarden.dev/tenant": "t"})
    assert features(short) == Features("training", None, 1, "t")


@pytest.mark.parametrize("text", ["", "t" * 254])
def test_a_tenant_without_a_name_is_the_default_one(text: str) -> None:
    found = told(workload(hinted_pod(annotations={"gpuwarden.dev/tenant": text})), "")
    assert found.features == Features("training", tenant="default")
    (warning,) = found.warnings
    assert warning.endswith(" is ignored, expected 1 to 253 characters")


@pytest.mark.parametrize("text", ["", "a b", "-a", "a-", "a" * 64, "a/b", "ä"])
def test_a_job_type_that_no_label_can_hold_is_none(text: str) -> None:
    found = told(workload(hinted_pod(text)), "")
    assert found.features is None
    (warning,) = found.warnings
    assert warning.startswith("gpuwarden: app.kubernetes.io/job-type: ")
    assert warning.endswith(" is ignored, expected what a label can hold")


@pytest.mark.parametrize("text", ["a", "a" * 63, "Fine-Tune_v1.2"])
def test_a_job_type_is_what_a_label_can_hold(text: str) -> None:
    assert features(hinted_pod(text)).job_type == text


def test_the_job_type_of_a_pod_that_runs() -> None:
    labelled = {"metadata": {"labels": {"app.kubernetes.io/job-type": "serving"}}}
    assert job_type_of(decode_pod(json.dumps(labelled).encode())) == "serving"
    annotated = {"metadata": {"annotations": {"gpuwarden.dev/job-type": "training"}}}
    assert job_type_of(decode_pod(json.dumps(annotated).encode())) == "training"
    wrong = {"metadata": {"annotations": {"gpuwarden.dev/job-type": "a b"}}}
    assert job_type_of(decode_pod(json.dumps(wrong).encode())) == ""
    assert job_type_of(decode_pod(b"{}")) == ""


# --- Objects


def test_a_template_may_lack_its_metadata() -> None:
    job = job_of(hinted_pod(None), labels={"app.kubernetes.io/job-type": "t"})
    del job["spec"]["template"]["metadata"]
    work = workload(job)
    assert (work.is_template, work.has_metadata, work.at) == (True, False, ("spec", "template"))
    assert features(job).job_type == "t"
    whole = workload(job_of(hinted_pod()))
    assert (whole.is_template, whole.has_metadata) == (True, True)
    pod = workload(hinted_pod())
    assert (pod.is_template, pod.has_metadata, pod.at) == (False, True, ())


@pytest.mark.parametrize("body", [b"null", b'{"spec":[]}', b"[]", b'{"metadata":{}}'])
@pytest.mark.parametrize("resource", ["pods", "jobs"])
def test_what_is_no_such_object_is_an_error(body: bytes, resource: str) -> None:
    with pytest.raises(PodDecodeError, match=f"^not of {resource}: "):
        decode_workload(msgspec.Raw(body), resource)


def test_gpus_are_requested_by_resource_or_claim() -> None:
    def asks(pod: dict[str, object]) -> bool:
        return requests_gpus(decode_admitted(msgspec.json.encode(pod)), GPU)

    assert asks(new_pod(container(gpus=1)))
    assert not asks(new_pod(container(gpus=0)))
    assert not asks(new_pod())
    assert not asks(new_pod(container(gpus="many")))
    assert asks(new_pod(resourceClaims=[{"name": "gpu"}]))
    assert not asks(new_pod(resourceClaims=[]))


@pytest.mark.parametrize(
    ("annotations", "labels", "containers", "fits"),
    [
        ({f"k{i}": "" for i in range(250)}, {f"k{i}": "" for i in range(250)}, 1, True),
        ({f"k{i}": "" for i in range(250)}, {f"k{i}": "" for i in range(251)}, 1, False),
        ({"k": "x" * ((64 << 10) - 1)}, {}, 1, True),
        ({"k": "x" * (64 << 10)}, {}, 1, False),
        ({}, {}, 500, True),
        ({"k": ""}, {}, 500, False),
    ],
)
def test_a_large_pod_gets_no_hints(
    annotations: dict[str, str], labels: dict[str, str], containers: int, *, fits: bool
) -> None:
    pod = new_pod(*[container()] * containers, annotations=annotations, labels=labels)
    assert has_room(decode_admitted(msgspec.json.encode(pod))) is fits


# --- The question


def test_the_question_is_the_one_that_radix_asks() -> None:
    body = score_request(Features("t", 40.0, 32, "ml"), ("a", "b"), ("serving",), {"b": 141.0})
    assert json.loads(body) == {
        "job_type": "t",
        "features": {"gpu_mem_gb": 40.0, "batch_size": 32, "tenant": "ml"},
        "candidate_gpu_types": ["a", "b"],
        "candidate_gpu_mem_gb": {"b": 141.0},
        "colocated_job_types": ["serving"],
    }
    assert json.loads(score_request(Features("t"), ("a",), (), {})) == {
        "job_type": "t",
        "features": {"tenant": "default"},
        "candidate_gpu_types": ["a"],
        "candidate_gpu_mem_gb": {},
        "colocated_job_types": [],
    }


def test_the_image_is_told_where_its_digest_is_known() -> None:
    body = score_request(Features("t"), ("a",), (), {}, DIGEST)
    assert json.loads(body)["image"] == DIGEST
    assert read_score(read_document(body), {}).job.image == DIGEST


@pytest.mark.parametrize(
    ("containers", "digest"),
    [
        ([container(gpus=1, image=f"example.org/a:1@{DIGEST}")], DIGEST),
        ([container(gpus=1, image="example.org/a:1")], ""),
        ([container(gpus=1, image=f"a@{DIGEST[:-1]}")], ""),
        ([container(image=f"log@{OTHER_DIGEST}"), container(gpus=1, image=f"a@{DIGEST}")], DIGEST),
        ([container(image=f"a@{DIGEST}"), container(image=f"log@{OTHER_DIGEST}")], DIGEST),
        ([container(gpus=1, image=f"a@{DIGEST}"), container(gpus=1, image="b:1")], DIGEST),
        ([{"name": "main"}], ""),
        ([], ""),
    ],
)
def test_the_image_is_that_of_the_first_container_with_gpus(
    containers: list[dict[str, object]], digest: str
) -> None:
    pod = hinted_pod()
    pod["spec"]["containers"] = containers
    assert image_of(workload(pod).pod, GPU) == digest


def test_memory_is_never_told_smaller_than_it_was_asked_for() -> None:
    body = score_request(Features("t", 40e9 / 2**30), ("a",), (), {})
    assert json.loads(body)["features"]["gpu_mem_gb"] == 37.253


def test_a_candidate_is_never_told_smaller_than_what_is_asked_for() -> None:
    """A card sold with 80 GB reports 79.6 GiB; the scorer would leave it out."""
    memory = {"a": 81559 / 1024, "b": 141.0, "no candidate": 16.0}
    for asked, size in ((80.0, 80.0), (79.0, 79.648), (None, 79.648)):
        body = score_request(Features("t", asked), ("a", "b"), (), memory)
        found = json.loads(body)
        assert found["candidate_gpu_mem_gb"] == {"a": size, "b": 141.0}
    body = score_request(Features("t", 40e9 / 2**30), ("a",), (), {"a": 37.0})
    job = read_score(read_document(body), {}).job
    assert job.gpu_mem_gb == job.memory_gb["a"]
