"""Pods with very much in them cost no more than others, and leave no more behind."""

from typing import Any

import pytest

from controller.admission.pod_view import AdmissionRules
from controller.admission.validation import (
    CONTAINER_PARTS,
    MOST_OF_A_DOOR,
    MOST_PARTS,
    mutated_ephemeral,
    parts,
    validated_ephemeral,
)
from tests.builders.admitted_pods import (
    LEVEL,
    Document,
    admitted,
    codes,
    container,
    mutate,
    new_pod,
    validate,
    variable,
)

FULL = {f"a{number}": "" for number in range(MOST_PARTS)}
MANY: list[Any] = [{}] * 7


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (new_pod(annotations={"a": "", "b": ""}), 2),
        (new_pod(labels={"a": ""}), 1),
        (new_pod(volumes=MANY), 7),
        (new_pod(tolerations=MANY), 7),
        (new_pod(resourceClaims=[{"name": "a"}] * 7), 7),
        (new_pod(initContainers=[container("i")]), CONTAINER_PARTS),
        (new_pod(ephemeralContainers=[container("e")]), CONTAINER_PARTS),
        (new_pod(container(env=MANY)), 7),
        (new_pod(container(envFrom=MANY)), 7),
        (new_pod(container(volumeMounts=MANY)), 7),
        (new_pod(container(securityContext={"capabilities": {"add": ["A", "B"]}})), 2),
        (new_pod(container(resources={"limits": {"a": "1"}, "requests": {"b": "1"}})), 2),
    ],
)
def test_everything_that_is_judged_counts(made: Document, more: int) -> None:
    assert parts(admitted(made)) == CONTAINER_PARTS + more


def test_one_part_too_many_is_refused_where_pods_are_guarded() -> None:
    added = 1  # by the mutating webhook: a variable
    fits = dict(list(FULL.items())[: MOST_PARTS - CONTAINER_PARTS - added])
    assert codes(new_pod(annotations=fits)) == []
    large = new_pod(annotations={**fits, "one": "", "two": ""})
    for judged in (mutate(large), validate(large)):
        assert [x.code.value for x in judged.refusals] == ["REQ_INVALID"]
        assert judged.patch == ()
    known = frozenset[str]()
    pod, rules = admitted(large), AdmissionRules()
    for ephemeral in (mutated_ephemeral, validated_ephemeral):
        assert ephemeral(pod, known, rules, enforced=True).refusals


def test_elsewhere_only_where_it_has_a_key_of_ours() -> None:
    for judge in (mutate, validate):
        assert not judge(new_pod(annotations=FULL), enforced=False).concerned
        for made in (
            new_pod(annotations={**FULL, **LEVEL}),
            new_pod(annotations=FULL, labels={"fudo.org/gpu.assign": "true"}),
        ):
            assert [x.code.value for x in judge(made, enforced=False).refusals] == ["REQ_INVALID"]


def test_a_thousand_open_doors_are_told_a_few_times_each() -> None:
    flood = [variable("NVIDIA_VISIBLE_DEVICES", "all")] * 1000
    powers = {"capabilities": {"add": ["SYS_ADMIN"] * 1000}}
    made = new_pod(container(env=flood, securityContext=powers), hostPID=True)
    found = [x.code.value for x in validate(made).refusals]
    assert found.count("DOOR_ENV") == found.count("DOOR_PRIVILEGED") == MOST_OF_A_DOOR
    assert found.count("DOOR_HOST_PID") == 1


def test_nor_those_of_ephemeral_containers() -> None:
    hostile = container("e", env=[variable("NVIDIA_VISIBLE_DEVICES", "all")] * 1000)
    pod = admitted(new_pod(ephemeralContainers=[hostile]))
    judged = validated_ephemeral(pod, frozenset(), AdmissionRules(), enforced=True, injected=False)
    assert len(judged.refusals) == MOST_OF_A_DOOR
