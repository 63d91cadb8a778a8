"""A pod's parsed_requirements, each in every spelling, and what is wrong with the wrong ones."""

from typing import Any

import pytest

from controller.placement.gpu_map import Place
from controller.placement.keys import (
    HINT_ANNOTATIONS,
    REQUIREMENT_ANNOTATIONS,
    RESULT_ANNOTATIONS,
    SEED_REQUIRED_HASH,
    RequirementRules,
)
from controller.placement.requirements import (
    UNMANAGED,
    Guarantee,
    Requirements,
    RequirementsInvalid,
    Reserve,
    describe,
    read_requirements,
)
from controller.policy import Level
from tests.builders.fleet_views import hash_of
from tests.builders.pods import as_pod, faults, parsed_requirements, pod_json, requirements

A, B = hash_of("a"), hash_of("b")
HASH = "gpuwarden.dev/required-hash"
OPAQUE = RequirementRules(opaque_hashes=True)


@pytest.mark.parametrize("key", [HASH, SEED_REQUIRED_HASH])
def test_required_hash_in_both_spellings(key: str) -> None:
    needs = requirements({key: f" {A} ,{B},{A}"})
    assert needs.managed
    assert needs.hashes == frozenset({A, B})
    assert needs.count == 0


def test_configured_key_replaces_the_spellings() -> None:
    rules = RequirementRules(hash_keys=("example.org/hash",))
    assert requirements({"example.org/hash": A}, rules).hashes == frozenset({A})
    assert parsed_requirements({SEED_REQUIRED_HASH: A}, rules) == UNMANAGED
    assert "a known key" in faults({HASH: A}, rules)


def test_two_hash_keys_must_both_hold() -> None:
    assert requirements({HASH: f"{A},{B}", SEED_REQUIRED_HASH: B}).hashes == frozenset({B})
    assert "no hash in common" in faults({HASH: A, SEED_REQUIRED_HASH: B})


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        f"{A},",
        f",{A}",
        "abc123",
        A.upper(),
        A[:-1],
        A + "0",
        f"{A};{B}",
        "v1:sha256:" + "g" * 64,
        ",".join(f"v1:sha256:{n:064x}" for n in range(17)),
        "x" * 9000,
    ],
)
def test_present_but_wrong_hash_fails_closed(text: str) -> None:
    assert HASH in faults({HASH: text})


def test_sixteen_hashes_are_fine() -> None:
    hashes = [f"v1:sha256:{n:064x}" for n in range(16)]
    assert requirements({HASH: ",".join(hashes)}).hashes == frozenset(hashes)


def test_opaque_hashes_only_with_static_hashes() -> None:
    assert requirements({HASH: "abc123,Def 4"}, OPAQUE).hashes == frozenset({"abc123", "Def 4"})
    assert "abc123" in faults({HASH: "abc123"})
    for text in ("", "x" * 254, "ümlaut", "a\x07b"):
        assert HASH in faults({HASH: text}, OPAQUE)


def test_class_level_guarantee_reserve() -> None:
    needs = requirements(
        {
            "gpuwarden.dev/attestation-class": "prod-h100",
            "gpuwarden.dev/min-level": "L1",
            "gpuwarden.dev/guarantee": "node",
            "gpuwarden.dev/reserve": "admission",
            "gpuwarden.dev/gpu-count": "1",
        }
    )
    assert needs == Requirements(
        managed=True,
        attestation_class="prod-h100",
        min_level=Level.L1,
        accepts=Guarantee.NODE,
        reserve=Reserve.ADMISSION,
        count=1,
    )


RESERVE = {"gpuwarden.dev/reserve": "admission"}


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"gpus": 0},
        {"annotations": {"gpuwarden.dev/min-level": "L1"}},
        {"annotations": {"gpuwarden.dev/guarantee": "set"}},
        {"labels": {"gpuwarden.dev/gpu.big": "false"}},
    ],
    ids=str,
)
def test_an_early_reservation_is_one_of_gpus(pod: dict[str, Any]) -> None:
    annotations = {**pod.get("annotations", {}), **RESERVE}
    expected = "gpuwarden.dev/reserve: got admission; expected a ask for GPUs beside it"
    assert expected in faults(**{**pod, "annotations": annotations})


@pytest.mark.parametrize(
    "pod",
    [
        {"gpus": 1},
        {"claims": True},
        {"annotations": {"gpuwarden.dev/gpu-count": "1"}},
        {"annotations": {"gpuwarden.dev/gpu-uuids": "GPU-a"}},
        {"annotations": {"gpuwarden.dev/gpu-selector": "mig=false"}},
        {"annotations": {"gpu-scheduling-map": "0=a:0"}},
        {"labels": {"gpuwarden.dev/gpu.big": "true"}},
        {"labels": {"fudo.org/gpu.assign": "true"}},
    ],
    ids=str,
)
def test_whatever_asks_for_gpus_can_be_reserved_early(pod: dict[str, Any]) -> None:
    annotations = {**pod.get("annotations", {}), **RESERVE}
    assert requirements(**{**pod, "annotations": annotations}).reserve is Reserve.ADMISSION


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("attestation-class", "", "the name of a class"),
        ("attestation-class", "a b", "the name of a class"),
        ("min-level", "l1", "L0 or L1 or L2 or L3"),
        ("min-level", "none", "L0 or L1"),
        ("guarantee", "exact", "set or node"),
        ("reserve", "yes", "admission"),
        ("gpu-uuids", "", "none of them empty"),
        ("gpu-uuids", "GPU-a,,GPU-b", "none of them empty"),
        ("gpu-uuids", "card0", "the UUID of a GPU"),
        ("gpu-uuids", ",".join(f"GPU-{n}" for n in range(65)), "at most 64"),
        ("gpu-uuids", "MIG-a,MIG-b", "got MIG-a,MIG-b; expected a MIG device alone"),
        ("gpu-uuids", "GPU-a,MIG-b", "a MIG device alone"),
        ("gpu-selector", "", "operator"),
        ("gpu-selector", "serial=7", "a key out of"),
        ("gpu-count", "0", "1 to 1024"),
        ("gpu-count", "1025", "1 to 1024"),
        ("gpu-count", "two", "1 to 1024"),
        ("gpu-count", "1.5", "1 to 1024"),
        ("gpu-count", "1e25", "1 to 1024"),
        ("ordinal", "3", "gpu-scheduling-map"),
        ("required-hsah", A, "a known key"),
        ("gpu.big", "true", "a label"),
    ],
)
def test_wrong_requirements_name_key_text_and_expectation(
    key: str, text: str, expected: str
) -> None:
    found = faults({f"gpuwarden.dev/{key}": text})
    assert f"gpuwarden.dev/{key}" in found
    assert expected in found


def test_a_requirement_among_the_labels_is_not_ignored() -> None:
    assert "an annotation, not a label" in faults(labels={"gpuwarden.dev/min-level": "L1"})


@pytest.mark.parametrize(
    ("annotations", "labels", "expected"),
    [
        ({"fudo.org/gpu.big": "true"}, {}, "fudo.org/gpu.big: got true; expected a label"),
        ({"fudo.org/gpu.assign": "true"}, {}, "expected a label, not an annotation"),
        ({"gpuwarden.dev/gpu.big": "false"}, {}, "expected a label, not an annotation"),
        ({}, {"gpuwarden.dev/gpus.big": "true"}, "gpuwarden.dev/gpus.big"),
        ({}, {"gpuwarden.dev/required-hsh": A}, "expected a known key of a pod"),
        ({}, {"gpuwarden.dev/enforce": "true"}, "expected a known key of a pod"),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"gpuwarden.dev/gpu-count": "1"}], ids=["alone", "beside"])
def test_a_misplaced_or_misspelled_key_is_never_skipped(
    annotations: dict[str, str], labels: dict[str, str], expected: str, beside: dict[str, str]
) -> None:
    assert expected in faults({**annotations, **beside}, labels=labels)


def test_a_configured_hash_key_is_one_wherever_it_is() -> None:
    rules = RequirementRules(hash_keys=("fudo.org/gpu.class", "gpuwarden.dev/of-ours"))
    for key in rules.hash_keys:
        assert requirements({key: A}, rules).hashes == frozenset({A})
        assert "an annotation, not a label" in faults(labels={key: A}, rules=rules)


def test_all_faults_at_once() -> None:
    found = parsed_requirements(
        {"gpuwarden.dev/min-level": "L9", HASH: "abc", "gpu-scheduling-map": "x\ny"},
        labels={"fudo.org/gpu.big": "yes"},
    )
    assert isinstance(found, RequirementsInvalid)
    assert len(found.findings) == 5
    assert len(found.detail()) <= 401


def test_hostile_text_is_cut_and_escaped() -> None:
    found = parsed_requirements({"gpuwarden.dev/min-level": "L1\x1b[31m" + "x" * 10_000})
    assert isinstance(found, RequirementsInvalid)
    assert found.detail().isprintable()
    assert len(found.detail()) < 500


def test_gpu_requirements() -> None:
    needs = requirements(
        {"gpuwarden.dev/gpu-uuids": "GPU-a, GPU-b", "gpuwarden.dev/gpu-selector": "memory>=1Gi"},
        labels={"gpuwarden.dev/gpu.big": "", "fudo.org/gpu.fast": "true", "fudo.org/gpu.x": "0"},
    )
    assert needs.uuids == ("GPU-a", "GPU-b")
    assert needs.selector is not None
    assert needs.labels == {"big", "fast"}
    assert needs.count == 2


@pytest.mark.parametrize("text", ["MIG-a", "MIG-a,MIG-a", "MIG-GPU-a/1/0"])
def test_one_mig_device_can_be_named(text: str) -> None:
    needs = requirements({"gpuwarden.dev/gpu-uuids": text})
    assert (needs.uuids, needs.count) == ((text.split(",", maxsplit=1)[0],), 1)


@pytest.mark.parametrize("text", ["true", ""])
def test_assign_asks_for_any_gpu_early(text: str) -> None:
    needs = requirements(labels={"fudo.org/gpu.assign": text})
    assert (needs.count, needs.labels, needs.reserve) == (1, frozenset(), Reserve.ADMISSION)


def test_assign_beside_a_request_leaves_count_and_choice_to_it() -> None:
    """Kubelet chooses the GPU later: nothing is reserved for the pod at its creation."""
    assign = {"fudo.org/gpu.assign": "true"}
    needs = requirements(labels=assign, gpus=2)
    assert (needs.count, needs.requests, needs.reserve) == (2, (("nvidia.com/gpu", 2),), None)
    asked = requirements({"gpuwarden.dev/reserve": "admission"}, labels=assign, gpus=2)
    assert asked.reserve is Reserve.ADMISSION


@pytest.mark.parametrize("text", ["false", "0"])
def test_labels_that_are_not_asked_for_guard_nothing(text: str) -> None:
    labels = {"fudo.org/gpu.assign": text, "gpuwarden.dev/gpu.big": text}
    assert parsed_requirements(labels=labels, gpus=1) == UNMANAGED


@pytest.mark.parametrize("labels", [{"fudo.org/gpu.a": "1"}, {"fudo.org/gpu.": "true"}])
def test_wrong_labels(labels: dict[str, str]) -> None:
    assert "fudo.org/gpu." in faults(labels=labels)


def test_the_pods_own_line_of_the_map() -> None:
    text = "0=node1:0,1\n1=node2:2"
    assert requirements({"gpu-scheduling-map": text}).place == Place("node1", (0, 1))
    assert requirements({"gpu-scheduling-map": text}).count == 2
    assert "a line for this pod's ordinal" in faults({"gpu-scheduling-map": text}, name="t-7")
    assert "a pod with an ordinal" in faults({"gpu-scheduling-map": text}, name="plain")
    assert "gpu-scheduling-map line 1" in faults({"gpu-scheduling-map": "x=n:0"})
    assert "whole number" in faults(
        {"gpu-scheduling-map": text, "gpuwarden.dev/ordinal": "first"}, name="t-0"
    )


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ({"name": None, "generate_name": "train-7d9f-", "owner": "ReplicaSet/train-7d9f"}, "*"),
        ({"name": None, "generate_name": "train-"}, "*"),
        ({"name": "train-24680", "generate_name": "train-"}, "24680"),
        ({"name": "train-0-x7k2p", "owner": "Job/train"}, "x7k2p"),
        ({"name": "web-01", "owner": "StatefulSet/web"}, "01"),
    ],
)
def test_a_map_of_a_pod_that_never_has_an_ordinal_is_a_fault(
    pod: dict[str, Any], name: str
) -> None:
    text = {"gpu-scheduling-map": "0=n:0\n1=n:1"}
    found = faults(text, **pod)
    assert "expected a pod with an ordinal: of a StatefulSet or Indexed Job, or with" in found
    assert f"{name};" in found
    explicit = requirements({**text, "gpuwarden.dev/ordinal": "1"}, **pod)
    assert explicit.place == Place("n", (1,))


def test_the_pods_of_a_template_have_no_place_yet() -> None:
    needs = requirements({"gpu-scheduling-map": "0=n:0,1"}, name=None)
    assert (needs.mapped, needs.place, needs.count) == (True, None, 1)
    assert "place: not known until the pod has its ordinal" in describe(needs)


@pytest.mark.parametrize(
    ("annotations", "pod", "expected"),
    [
        ({HASH: A}, {}, 0),
        ({HASH: A}, {"gpus": 3}, 3),
        ({HASH: A, "gpuwarden.dev/gpu-count": "2"}, {}, 2),
        ({"gpuwarden.dev/gpu-selector": "mig=false"}, {}, 1),
        ({"gpuwarden.dev/gpu-selector": "mig=false", "gpuwarden.dev/gpu-count": "4"}, {}, 4),
        ({"gpuwarden.dev/gpu-selector": "mig=false"}, {"gpus": 4}, 4),
        ({"gpuwarden.dev/gpu-uuids": "GPU-a,GPU-b"}, {}, 2),
        ({"gpuwarden.dev/gpu-uuids": "GPU-a", "gpuwarden.dev/gpu-count": "1"}, {"gpus": 1}, 1),
        ({"gpu-scheduling-map": "0=n:0,1", "gpuwarden.dev/gpu-uuids": "GPU-a,GPU-b"}, {}, 2),
        ({"gpuwarden.dev/min-level": "L0"}, {"labels": {"fudo.org/gpu.big": "true"}}, 1),
    ],
)
def test_number_of_gpus(annotations: dict[str, str], pod: dict[str, Any], expected: int) -> None:
    assert requirements(annotations, **pod).count == expected


@pytest.mark.parametrize(
    ("annotations", "pod"),
    [
        ({"gpuwarden.dev/gpu-uuids": "GPU-a,GPU-b"}, {"gpus": 1}),
        ({"gpuwarden.dev/gpu-uuids": "GPU-a", "gpuwarden.dev/gpu-count": "2"}, {}),
        ({HASH: A, "gpuwarden.dev/gpu-count": "2"}, {"gpus": 1}),
        ({"gpu-scheduling-map": "0=n:0,1", "gpuwarden.dev/gpu-uuids": "GPU-a"}, {}),
        ({"gpu-scheduling-map": "0=n:0,1"}, {"gpus": 1}),
    ],
)
def test_numbers_that_contradict_each_other(
    annotations: dict[str, str], pod: dict[str, Any]
) -> None:
    assert "as many as" in faults(**{**pod, "annotations": annotations})


def test_a_request_that_is_no_number_is_a_fault_of_managed_pods_only() -> None:
    assert "nvidia.com/gpu" in faults({HASH: A}, gpus="1.5")
    assert parsed_requirements(gpus="1.5") == UNMANAGED


def test_pods_that_are_none_of_our_business() -> None:
    hints = dict.fromkeys([*HINT_ANNOTATIONS, "gpu.mem.gi", "app.kubernetes.io/job-type"], "nan")
    results = dict.fromkeys(RESULT_ANNOTATIONS, "x")
    assert parsed_requirements({"example.org/other": "1", **hints, **results}, gpus=8) == UNMANAGED
    assert parsed_requirements(None, claims=True) == UNMANAGED
    assert describe(UNMANAGED) == ()


def test_every_requirement_annotation_guards() -> None:
    for key in [*REQUIREMENT_ANNOTATIONS, HASH, SEED_REQUIRED_HASH]:
        assert parsed_requirements({key: "?"}) != UNMANAGED


def test_enforced_namespaces_guard_gpu_pods_and_no_others() -> None:
    assert parsed_requirements(enforced=True) == UNMANAGED
    needs = parsed_requirements(enforced=True, gpus=2)
    assert needs == Requirements(managed=True, count=2, requests=(("nvidia.com/gpu", 2),))
    claims = parsed_requirements(enforced=True, claims=True)
    assert claims == Requirements(managed=True, claims=True)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"gpus": 2},
        {"gpus": "1.5"},
        {"claims": True},
        {"annotations": {HASH: A}, "gpus": 2},
        {"annotations": {"gpuwarden.dev/min-levle": "L1"}, "gpus": 2},
        {"labels": {"gpuwarden.dev/gpu.h100": "false"}},
        {"labels": {"gpuwarden.dev/gpu.h100": "false"}, "gpus": 2},
        {"labels": {"gpuwarden.dev/gpu.h100": "true"}},
    ],
)
def test_requirements_that_are_parsed_once_hold_for_both_kinds_of_namespace(
    pod: dict[str, Any],
) -> None:
    read = read_requirements(as_pod(pod_json(**pod)), RequirementRules())
    for enforced in (False, True):
        assert read.counting(enforced=enforced) == parsed_requirements(**pod, enforced=enforced)
    assert read.asks == (parsed_requirements(**pod) != UNMANAGED)
    assert read.may_count == (parsed_requirements(**pod, enforced=True) != UNMANAGED)


def test_description_has_a_line_per_requirement() -> None:
    needs = requirements(
        {
            HASH: f"{B},{A}",
            "gpuwarden.dev/attestation-class": "prod",
            "gpuwarden.dev/min-level": "L1",
            "gpuwarden.dev/gpu-uuids": "GPU-a",
            "gpuwarden.dev/gpu-selector": "mig=false",
            "gpuwarden.dev/guarantee": "set",
            "gpu-scheduling-map": "0=n:1",
        },
        labels={"fudo.org/gpu.big": ""},
    )
    assert describe(needs) == (
        f"attestation hash: {A} or {B}",
        "attestation class: prod",
        "evidence level: L1 or higher",
        "place: node n, devices 1",
        "GPUs: GPU-a",
        "GPU selector: mig=false",
        "GPU labels: big",
        "accepted guarantee: set",
        "number of GPUs: 1",
    )
