"""What the mutating webhook adds; the patches themselves are golden vectors."""

import json
from typing import Any

import pytest

from controller.admission.mutation import Operation, Verb, encode_patch, pointer
from controller.admission.pod_view import AdmissionRules
from controller.admission.validation import mutated, mutated_ephemeral
from controller.placement.texts import WishRules
from gpuwarden.reasons import ReasonCode
from tests.builders.admitted_pods import (
    LEVEL,
    UUIDS,
    admitted,
    codes,
    container,
    documents,
    mutate,
    new_pod,
    patched,
    variable,
)
from tests.builders.pods import GPU_RESOURCE
from tests.fakes.json_patch import PatchError, applied
from tests.golden.admission import admission_patches

GOLDEN = admission_patches()


def test_pointers_escape_what_has_a_meaning() -> None:
    assert pointer("metadata", "annotations", "a/b~c") == "/metadata/annotations/a~1b~0c"
    assert pointer("a", 0, "~1") == "/a/0/~01"


def test_a_removal_has_no_value_and_an_addition_of_null_has_one() -> None:
    patch = [Operation(Verb.REMOVE, "/a"), Operation(Verb.ADD, "/b", None)]
    assert json.loads(encode_patch(patch)) == [
        {"op": "remove", "path": "/a"},
        {"op": "add", "path": "/b", "value": None},
    ]


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_of_a_patched_pod_nothing_is_left_to_patch(case: dict[str, Any]) -> None:
    pod, enforced = case["pod"], case["enforced"]
    stored = patched(pod, enforced=enforced)
    for reference in _references(stored):
        reference.pop("apiVersion", None)  # as other programs write it
    assert mutate(stored, enforced=enforced).patch == ()


def _references(pod: dict[str, Any]) -> list[dict[str, str]]:
    return [
        entry["valueFrom"]["fieldRef"]
        for field in ("containers", "initContainers")
        for each in pod["spec"].get(field, [])
        for entry in each.get("env") or []
        if "fieldRef" in entry.get("valueFrom", {})
    ]


def test_containers_that_another_webhook_adds_later_get_theirs() -> None:
    stored = patched(new_pod(annotations=UUIDS))
    stored["spec"]["containers"].append(container("proxy"))
    (operation,) = documents(mutate(stored).patch)
    assert operation["path"] == "/spec/containers/1/env"


def test_configured_resources_and_scheduler_count() -> None:
    rules = AdmissionRules(WishRules(managed_resources=("example.org/gpu",)), "mine")
    own = container(resources={"limits": {"example.org/gpu": 1}})
    patch = documents(mutated(admitted(new_pod(own)), rules, enforced=True).patch)
    assert [x["path"] for x in patch] == ["/spec/schedulerName", "/spec/tolerations"]
    assert patch[0]["value"] == "mine"


def test_a_pod_full_of_one_variable_is_not_cleaned_but_refused() -> None:
    """Each removal moves all that follow in the API server."""
    flood = [variable("CUDA_VISIBLE_DEVICES", "0")] * 1000
    pod = new_pod(container(env=flood), annotations=UUIDS)
    removals = [x for x in mutate(pod).patch if x.op is Verb.REMOVE]
    assert len(removals) == 64
    assert codes(pod) == ["DOOR_UNINJECTED"]
    assert codes(new_pod(container(env=flood[:60]), annotations=UUIDS)) == []


def test_where_the_clusters_own_scheduler_is_ours_its_name_stays() -> None:
    rules = AdmissionRules(scheduler_name="default-scheduler")
    patch = mutated(admitted(new_pod(annotations=LEVEL)), rules, enforced=False).patch
    assert patch == ()


def test_malformed_wishes_are_refused_with_key_text_and_expectation() -> None:
    bad = {"gpuwarden.dev/min-level": "L9", "gpu-scheduling-map": "0=a:0\nx=b:1\n0=c:2"}
    judged = mutate(new_pod(annotations=bad), enforced=False)
    (refusal,) = judged.refusals
    assert refusal.code is ReasonCode.REQ_INVALID
    for text in ("gpuwarden.dev/min-level", "L9", "L0 or L1", "line 2", "line 3"):
        assert text in refusal.detail
    assert judged.patch == ()


def test_keys_that_only_we_write_are_refused_wherever_they_stand() -> None:
    for enforced in (True, False):
        for place in ("annotations", "labels"):
            pod = new_pod(annotations=LEVEL)
            pod["metadata"].setdefault(place, {})["gpuwarden.dev/reservation-id"] = "x"
            (refusal,) = mutate(pod, enforced=enforced).refusals
            assert refusal.code is ReasonCode.DOOR_ANNOTATION
            assert "gpuwarden.dev/reservation-id" in refusal.detail


def test_a_pod_that_asks_nothing_outside_is_no_business_of_ours() -> None:
    loud = container(
        gpus=1,
        env=[variable("NVIDIA_VISIBLE_DEVICES", "all")],
        securityContext={"privileged": True},
    )
    judged = mutate(new_pod(loud, hostPID=True), enforced=False)
    assert (judged.concerned, judged.refusals, judged.patch) == (False, (), ())


def test_new_ephemeral_containers_alone_are_patched() -> None:
    old, new = container("old"), container("new")
    for annotations, gpus, enforced, expected in (
        (None, None, True, ["NVIDIA_VISIBLE_DEVICES"]),
        (None, 1, True, ["NVIDIA_VISIBLE_DEVICES"]),
        (UUIDS, None, True, ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]),
        (UUIDS, None, False, ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]),
        (None, None, False, []),
        ({"gpuwarden.dev/min-level": "?"}, None, True, ["NVIDIA_VISIBLE_DEVICES"]),
    ):
        pod = new_pod(container(gpus=gpus), annotations=annotations, ephemeralContainers=[old, new])
        judged = mutated_ephemeral(
            admitted(pod), frozenset({"old"}), AdmissionRules(), enforced=enforced
        )
        patch = documents(judged.patch)
        assert [x["path"] for x in patch] == ["/spec/ephemeralContainers/1/env"] * bool(expected)
        assert [x["name"] for x in (patch[0]["value"] if patch else [])] == expected


def test_an_amount_that_is_no_number_is_a_fault_of_the_pod() -> None:
    own = container(resources={"limits": {GPU_RESOURCE: "many"}})
    assert [x.code for x in mutate(new_pod(own)).refusals] == [ReasonCode.REQ_INVALID]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/a/b", "value": 1},
        {"op": "replace", "path": "/list/2", "value": 1},
        {"op": "remove", "path": "/list/-"},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "move", "path": "/list"},
    ],
)
def test_the_engine_of_these_tests_is_strict(operation: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        applied({"list": [1, 2]}, [operation])
