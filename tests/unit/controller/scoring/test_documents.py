import json
from typing import Any

import pytest

from controller.scoring.documents import (
    BadRequestError,
    read_document,
    read_gang,
    read_observation,
    read_score,
)

SCORE = {"job_type": "train", "candidate_gpu_types": ["A100-80GB", "L4-24GB"]}
RUN = {"job_type": "train", "gpu_type": "A100-80GB", "measured_runtime_s": 12.5}


def refused(read: Any, document: dict[str, Any], *more: Any) -> tuple[str, str]:
    with pytest.raises(BadRequestError) as error:
        read(document, *more)
    return error.value.field, str(error.value)


# --- the body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "no JSON document"),
        (b"{", "no JSON document"),
        (b"\xff", "no JSON document"),
        (b"[1]", "must be a JSON object"),
        (b'{"a": 1, "a": 1}', "a field is there twice"),
        (b"[" * 100_000, "no JSON document"),
        (b"1" * 5000, "no JSON document"),
    ],
)
def test_a_body_that_is_no_object(body: bytes, text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        read_document(body)


def test_numbers_that_are_none_are_left_to_the_fields() -> None:
    document = read_document(b'{"job_type": "x", "gpu_type": "y", "measured_runtime_s": Infinity}')
    assert refused(read_observation, document) == (
        "measured_runtime_s",
        "measured_runtime_s: Infinity, expected seconds above 0, at most 1e+09",
    )


# --- /v1/score


def test_a_whole_request() -> None:
    found = read_score(
        {
            **SCORE,
            "features": {"gpu_mem_gb": 40, "batch_size": 32, "tenant": "team-a"},
            "colocated_job_types": ["infer", "infer", "etl"],
            "candidate_gpu_mem_gb": {"A100-80GB": 79.6},
            "image": "sha256:1",
            "job_id": "ignored",
        },
        {},
    )
    assert found.job.image == "sha256:1"
    assert (found.job.job_type, found.job.candidates) == ("train", ("A100-80GB", "L4-24GB"))
    assert found.job.colocated == ("infer", "etl")
    assert (found.job.gpu_mem_gb, found.job.memory_gb) == (40.0, {"A100-80GB": 79.6})
    assert (found.counts, found.warnings) == (True, ())


def test_older_names_are_taken() -> None:
    found = read_score(
        {
            "features": {"job_type": "train"},
            "candidates": ["a"],
            "colocated": ["b"],
            "dry_run": True,
        },
        {},
    )
    assert (found.job.job_type, found.job.candidates) == ("train", ("a",))
    assert (found.job.colocated, found.counts) == (("b",), False)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), -1, 0, "40", "40Gi", True, [], 10**400]
)
@pytest.mark.parametrize("name", ["gpu_mem_gb", "batch_size"])
def test_a_feature_that_is_no_number_is_ignored_with_a_warning(name: str, value: Any) -> None:
    found = read_score({**SCORE, "features": {name: value}}, {})
    assert found.job.gpu_mem_gb is None
    [warning] = found.warnings
    assert warning.startswith(f"features.{name}: ")
    assert warning.endswith("is ignored, expected a number above 0")
    assert len(warning) < 200


def test_a_feature_that_is_null_is_not_given() -> None:
    assert read_score({**SCORE, "features": {"gpu_mem_gb": None}}, {}).warnings == ()
    assert read_score({**SCORE, "features": None}, {}).warnings == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"job_type": None}, "job_type"),
        ({"job_type": ""}, "job_type"),
        ({"job_type": 3}, "job_type"),
        ({"job_type": " train"}, "job_type"),
        ({"job_type": "a\nb"}, "job_type"),
        ({"job_type": "\ud800"}, "job_type"),
        ({"job_type": "x" * 254}, "job_type"),
        ({"features": [1]}, "features"),
        ({"candidate_gpu_types": None}, "candidate_gpu_types"),
        ({"candidate_gpu_types": []}, "candidate_gpu_types"),
        ({"candidate_gpu_types": "A100"}, "candidate_gpu_types"),
        ({"candidate_gpu_types": [f"gpu-{x}" for x in range(65)]}, "candidate_gpu_types"),
        ({"candidate_gpu_types": ["a", "b", "a"]}, "candidate_gpu_types[2]"),
        ({"candidate_gpu_types": ["a", {}]}, "candidate_gpu_types[1]"),
        ({"candidate_gpu_types": ["a b"]}, "candidate_gpu_types[0]"),
        ({"candidate_gpu_types": ["x" * 64]}, "candidate_gpu_types[0]"),
        ({"colocated_job_types": "train"}, "colocated_job_types"),
        ({"colocated_job_types": [f"job-{x}" for x in range(257)]}, "colocated_job_types"),
        ({"colocated_job_types": ["a", 1]}, "colocated_job_types[1]"),
        ({"candidate_gpu_mem_gb": 80}, "candidate_gpu_mem_gb"),
        ({"candidate_gpu_mem_gb": {"H100": 80}}, "candidate_gpu_mem_gb.H100"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"image": 1}, "image"),
        ({"image": "x" * 254}, "image"),
    ],
)
def test_what_cannot_be_meant_names_its_field(change: dict[str, Any], field: str) -> None:
    found, text = refused(read_score, {**SCORE, **change}, {})
    assert found == field
    assert text.startswith(f"{field}: ")
    assert ", expected " in text


def test_the_most_is_taken() -> None:
    document = {
        "job_type": "x" * 253,
        "candidate_gpu_types": [f"{x:063}" for x in range(64)],
        "colocated_job_types": [f"job-{x}" for x in range(256)],
    }
    found = read_score(document, {})
    assert (len(found.job.candidates), len(found.job.colocated)) == (64, 256)


def test_types_that_are_not_configured_are_refused() -> None:
    field, text = refused(read_score, SCORE, {"A100-80GB": 80.0})
    assert field == "candidate_gpu_types[1]"
    assert "configured (A100-80GB)" in text
    known = {"A100-80GB": 79.0, "L4-24GB": 22.0}
    assert read_score(SCORE, known).job.memory_gb == known


def test_a_size_that_is_none_is_ignored_with_a_warning() -> None:
    found = read_score({**SCORE, "candidate_gpu_mem_gb": {"L4-24GB": "24"}}, {})
    assert found.job.memory_gb == {}
    assert found.warnings == (
        'candidate_gpu_mem_gb.L4-24GB: "24" is ignored, expected a number above 0',
    )


# --- /v1/observe


def test_a_run() -> None:
    found = read_observation(
        {**RUN, "colocated_job_types": ["b", "b"], "driver": "580.1", "image": ""}
    )
    assert (found.job_type, found.gpu_type, found.runtime_s) == ("train", "A100-80GB", 12.5)
    assert (found.colocated, found.succeeded) == (("b",), True)
    assert (found.driver, found.image, found.run_id) == ("580.1", "", "")
    assert read_observation({**RUN, "run_id": "7"}).run_id == "7"


@pytest.mark.parametrize("name", ["measured_runtime_s", "runtime_seconds", "actual_runtime"])
def test_names_of_the_run_time(name: str) -> None:
    document = {"job_type": "train", "gpu_type": "a", name: 3}
    assert read_observation(document).runtime_s == 3.0
    assert refused(read_observation, {**document, name: 0})[0] == name


@pytest.mark.parametrize(
    ("said", "succeeded"),
    [
        ({}, True),
        ({"success": True}, True),
        ({"success": False}, False),
        ({"status": "Succeeded"}, True),
        ({"status": "completed"}, True),
        ({"status": "Failed"}, False),
        ({"status": "evicted"}, False),
    ],
)
def test_whether_it_succeeded(said: dict[str, Any], succeeded: bool) -> None:
    assert read_observation({**RUN, **said}).succeeded is succeeded


def test_a_failed_run_needs_no_run_time() -> None:
    document = {"job_type": "train", "gpu_type": "a", "status": "failed"}
    assert read_observation(document).succeeded is False
    assert (
        refused(read_observation, {**document, "measured_runtime_s": -1})[0] == "measured_runtime_s"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"measured_runtime_s": value}, "measured_runtime_s")
        for value in (0, -1, float("nan"), float("inf"), "12", True, None, 1e9 + 1, 10**400)
    ]
    + [
        ({"job_type": None}, "job_type"),
        ({"gpu_type": ""}, "gpu_type"),
        ({"gpu_type": "-"}, "gpu_type"),
        ({"status": "odd"}, "status"),
        ({"status": 1}, "status"),
        ({"success": 1}, "success"),
        ({"driver": 580}, "driver"),
        ({"image": {}}, "image"),
        ({"run_id": 7}, "run_id"),
    ],
)
def test_a_run_that_cannot_be_meant(change: dict[str, Any], field: str) -> None:
    assert refused(read_observation, {**RUN, **change})[0] == field


# --- /v1/assign


def test_a_gang() -> None:
    found = read_gang(
        {"jobs": [{"job_type": "a"}, {"job_type": "b", "name": "x"}], "capacity": {"g": 2}}, {}
    )
    assert found.names == ("0", "x")
    assert [x.job.candidates for x in found.jobs] == [("g",), ("g",)]
    assert found.capacity == {"g": 2}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"capacity": {}}, "capacity"),
        ({"capacity": [1]}, "capacity"),
        ({"capacity": {"g": -1}}, "capacity.g"),
        ({"capacity": {"g": 1.5}}, "capacity.g"),
        ({"capacity": {"g": True}}, "capacity.g"),
        ({"capacity": {"g": 65}}, "capacity.g"),
        ({"capacity": {"no type": 1}}, "candidate_gpu_types[0]"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [{"job_type": "a"}] * 65}, "jobs"),
        ({"jobs": ["a"]}, "jobs[0]"),
        ({"jobs": [{"job_type": "a", "name": "x"}] * 2}, "jobs"),
        ({"jobs": [{"job_type": ""}]}, "jobs[0].job_type"),
        ({"jobs": [{"job_type": "a", "name": 1}]}, "jobs[0].name"),
    ],
)
def test_a_gang_that_cannot_be_meant(change: dict[str, Any], field: str) -> None:
    whole = {"jobs": [{"job_type": "a"}], "capacity": {"g": 1}}
    found, text = refused(read_gang, {**whole, **change}, {})
    assert found == field
    assert text.startswith(f"{field}: ")


def test_documents_come_from_json() -> None:
    assert read_document(json.dumps(SCORE).encode()) == SCORE
    assert read_document(memoryview(b'{"a": 1e999}')) == {"a": float("inf")}
