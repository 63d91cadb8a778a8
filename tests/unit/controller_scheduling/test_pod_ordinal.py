"""Which line of the map is a pod's."""

from typing import Any

import pytest

from controller.placement.pod import pod_ordinal
from controller.placement.texts import Finding
from tests.builders.pods import as_pod, pod_json

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


def test_all_digit_suffix_of_a_replica_set_is_no_ordinal() -> None:
    assert ordinal(name="dep-7d9f5-24680", owner="ReplicaSet/dep-7d9f5") is None
    assert ordinal(name="dep-7d9f5-24680", labels={"pod-template-hash": "7d9f5"}) is None


def test_only_the_suffix_of_its_own_stateful_set_counts() -> None:
    assert ordinal(name="web-3", owner="StatefulSet/web") == 3
    assert ordinal(name="web-3-4", owner="StatefulSet/web") is None
    assert ordinal(name="job-3-4", owner="Job/job") is None


def test_indexed_job() -> None:
    assert ordinal(name="job-3-abcde", owner="Job/job", labels={COMPLETION: "3"}) == 3
    assert ordinal(name="job-3-abcde", owner="Job/job", annotations={COMPLETION: "3"}) == 3


def test_precedence() -> None:
    annotations = {"gpuwarden.dev/ordinal": "1", COMPLETION: "4"}
    labels = {INDEX: "2", COMPLETION: "3"}
    pod: dict[str, Any] = {"name": "web-5", "owner": "StatefulSet/web"}
    assert ordinal(annotations=annotations, labels=labels, **pod) == 1
    del annotations["gpuwarden.dev/ordinal"]
    assert ordinal(annotations=annotations, labels=labels, **pod) == 2
    del labels[INDEX]
    assert ordinal(annotations=annotations, labels=labels, **pod) == 3
    assert ordinal(annotations=annotations, **pod) == 4
    assert ordinal(**pod) == 5


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "1 ", "9" * 19])
def test_a_wrong_explicit_ordinal_does_not_fall_through_to_the_name(text: str) -> None:
    found = ordinal(name="web-5", annotations={"gpuwarden.dev/ordinal": text})
    assert isinstance(found, Finding)
    assert found.key == "gpuwarden.dev/ordinal"
