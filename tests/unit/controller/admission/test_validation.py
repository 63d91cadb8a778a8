from dataclasses import replace
from typing import Any

import pytest

from controller.admission.pod import AdmittedPod
from controller.admission.review import Verdict
from controller.admission.rules import AdmissionRules
from controller.admission.validation import (
    CONTAINER_PARTS,
    MOST_OF_A_CHECK,
    MOST_PARTS,
    has_room,
    mutated_ephemeral,
    overfull,
    parts,
    unservable,
    validated_ephemeral,
)
from controller.placement.requirements import Requirements
from controller.policy import NodeMode, NodePool, Policy
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import (
    LEVEL,
    UUIDS,
    Document,
    admitted,
    codes,
    container,
    mutate,
    new_pod,
    patched,
    validate,
    variable,
)
from tests.fakes.admission import AdmissionWorld

# --- Pods with very much in them cost no more than others, and leave no more behind

FULL = {f"a{number}": "" for number in range(MOST_PARTS)}
MANY: list[Any] = [{}] * 7


def owned_by(number: int) -> Document:
    pod = new_pod()
    return pod | {"metadata": pod["metadata"] | {"ownerReferences": [{}] * number}}


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (new_pod(annotations={"a": "", "b": ""}), 2),
        (new_pod(labels={"a": ""}), 1),
        (new_pod(volumes=MANY), 7),
        (new_pod(tolerations=MANY), 7),
        (new_pod(resourceClaims=[{"name": "a"}] * 7), 7),
        (owned_by(7), 7),
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


def test_a_pod_of_exactly_the_most_parts_is_judged() -> None:
    full = new_pod(annotations=dict(list(FULL.items())[: MOST_PARTS - CONTAINER_PARTS]))
    assert parts(admitted(full)) == MOST_PARTS
    pod, known, rules = admitted(full), frozenset[str](), AdmissionRules()
    for judged in (
        mutate(full),
        validate(full, injected=False),
        mutated_ephemeral(pod, known, rules, enforced=True),
        validated_ephemeral(pod, known, rules, enforced=True),
    ):
        assert (judged.concerned, judged.refusals) == (True, ())


@pytest.mark.parametrize(("containers", "room"), [(1, 10_000 - 16 - 12), (3, 10_000 - 16 - 36)])
def test_a_new_pod_has_room_for_what_each_of_its_containers_gets(
    containers: int, room: int
) -> None:
    made = [container(f"c{x}") for x in range(containers)]
    for more in (0, 1):
        volumes: list[Any] = [{}] * (room + more)
        assert has_room(admitted(new_pod(*made, volumes=volumes))) is (more == 0)


def managed(annotations: dict[str, str], labels: dict[str, str] | None = None) -> AdmittedPod:
    return admitted(new_pod(annotations=annotations, labels=labels))


def test_annotations_and_labels_leave_room_for_those_of_gpuwarden() -> None:
    labels = {f"l{x}": "" for x in range(400)}
    for keys in (500, 501):
        found = overfull(managed({f"a{x}": "" for x in range(keys)}, labels))
        assert (found is None) is (keys == 500)
    assert found == Refusal(
        ReasonCode.REQ_INVALID,
        "901 annotations and labels, expected at most 900 of a managed pod",
    )


def test_bytes_of_annotations_leave_room_for_those_of_gpuwarden() -> None:
    most = 192 * 1024
    assert overfull(managed({"é": "ü" * (most // 2 - 1)})) is None
    assert overfull(managed({"é": "ü" * (most // 2 - 1), "a": ""})) == Refusal(
        ReasonCode.REQ_INVALID,
        f"{most + 1} bytes of annotations, expected at most {most} of a managed pod",
    )


@pytest.mark.parametrize(
    "written",
    ["gpuwarden.dev/gpu-uuids-assigned", "fudo.org/gpu.uuid", "cdi.k8s.io/gpu-assignment"],
)
def test_what_gpuwarden_has_written_needs_no_more_room(written: str) -> None:
    assert overfull(managed({f"a{x}": "" for x in range(900)} | {written: "x" * 200_000})) is None


def test_one_part_too_many_is_refused_where_pods_are_managed() -> None:
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


def test_a_thousand_open_bypasses_are_reported_a_few_times_each() -> None:
    flood = [variable("NVIDIA_VISIBLE_DEVICES", "all")] * 1000
    powers = {"capabilities": {"add": ["SYS_ADMIN"] * 1000}}
    made = new_pod(container(env=flood, securityContext=powers), hostPID=True)
    found = [x.code.value for x in validate(made).refusals]
    assert found.count("BYPASS_ENV") == found.count("BYPASS_PRIVILEGED") == MOST_OF_A_CHECK
    assert found.count("BYPASS_HOST_PID") == 1


def test_nor_those_of_ephemeral_containers() -> None:
    hostile = container("e", env=[variable("NVIDIA_VISIBLE_DEVICES", "all")] * 1000)
    pod = admitted(new_pod(ephemeralContainers=[hostile]))
    judged = validated_ephemeral(pod, frozenset(), AdmissionRules(), enforced=True, injected=False)
    assert len(judged.refusals) == MOST_OF_A_CHECK


# --- Pods that request GPUs of kubelet where no node is declared to have a device plugin

ENV, PLUGIN = NodeMode.ENV, NodeMode.PLUGIN
GPU_POD = patched(new_pod(container(gpus=2)))
ALL_ENV = Policy(default_mode=ENV)


@pytest.mark.parametrize(
    ("policy", "modes"),
    [
        (Policy(), {PLUGIN}),
        (ALL_ENV, {ENV}),
        (Policy(pools=(NodePool("a-*", ENV),)), {ENV, PLUGIN}),
        (Policy(pools=(NodePool("a-*"), NodePool("b-*", ENV)), default_mode=ENV), {ENV}),
        (Policy(pools=(NodePool("*", ENV),)), {ENV}),
        (Policy(pools=(NodePool("*"),)), {PLUGIN}),
    ],
)
def test_the_modes_that_a_policy_declares(policy: Policy, modes: set[NodeMode]) -> None:
    assert policy.modes == modes


async def ask(
    pod: Document, policy: Policy | None, *, namespace: str = "team-a", report: bool = False
) -> Verdict:
    world = AdmissionWorld({"team-a"})
    webhooks = world.webhooks(report=report, modes=lambda: None if policy is None else policy.modes)
    return await webhooks.validate(request_of(review_json(pod, namespace=namespace)))


async def test_names_the_other_way_to_request() -> None:
    (refusal,) = (await ask(GPU_POD, ALL_ENV)).refusals
    assert refusal.code == "NODE_MODE"
    assert refusal.detail == (
        "no node gives GPUs to a container that requests nvidia.com/gpu: take the request away,"
        ' and annotate the pod with gpuwarden.dev/gpu-count: "2"'
    )


async def test_does_not_name_another_way_where_that_helps_nobody() -> None:
    policy = Policy(pools=(NodePool("*", NodeMode.DRA), NodePool("a", NodeMode.PER_GPU)))
    (refusal,) = (await ask(GPU_POD, policy)).refusals
    assert refusal.code == "NODE_MODE"
    assert (
        refusal.detail == "no node gives GPUs: none is of a mode that gives any yet (dra, per-gpu)"
    )


@pytest.mark.parametrize(
    ("pod", "policy", "namespace"),
    [
        (GPU_POD, Policy(), "team-a"),
        (GPU_POD, Policy(pools=(NodePool("a-*", ENV),)), "team-a"),
        (GPU_POD, None, "team-a"),
        (GPU_POD, ALL_ENV, "team-b"),
        (patched(new_pod()), ALL_ENV, "team-a"),
        (patched(new_pod(annotations=UUIDS)), ALL_ENV, "team-a"),
        (patched(new_pod(annotations=UUIDS)), Policy(), "team-a"),
    ],
    ids=["plugin", "some", "static", "not enforced", "no GPU", "asks us", "asks us, none can"],
)
async def test_others_are_let_in(pod: Document, policy: Policy | None, namespace: str) -> None:
    assert (await ask(pod, policy, namespace=namespace)).refusals == ()


async def test_report_only_mode_says_so_and_lets_it_in() -> None:
    found = await ask(GPU_POD, ALL_ENV, report=True)
    assert (found.refusals, found.result) == ((), "reported")
    assert "NODE_MODE" in found.warnings[0]


def test_who_also_has_claims_is_told_of_those_alone() -> None:
    needs = Requirements(managed=True, count=1, requests=(("nvidia.com/gpu", 1),))
    assert unservable(needs, {ENV}) is not None
    assert unservable(replace(needs, claims=True), {ENV}) is None
    assert unservable(replace(needs, requests=()), {ENV}) is None


def test_every_requested_resource_is_named() -> None:
    requests = (("nvidia.com/gpu", 1), ("example.org/gpu", 2))
    found = unservable(Requirements(managed=True, count=3, requests=requests), {ENV})
    assert found is not None
    assert "requests nvidia.com/gpu, example.org/gpu:" in found.detail
    assert found.detail.endswith('gpuwarden.dev/gpu-count: "3"')
