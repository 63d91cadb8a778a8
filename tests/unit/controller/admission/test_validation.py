from typing import Any

import pytest

from controller.admission.early_reservation import Granted
from controller.admission.pod import AdmittedPod
from controller.admission.review import Verdict
from controller.admission.rules import AdmissionRules
from controller.admission.validation import (
    CONTAINER_PARTS,
    MOST_PARTS,
    Judged,
    has_room,
    mutated,
    mutated_ephemeral,
    overfull,
    parts,
    validated,
    validated_ephemeral,
)
from controller.placement.requirements import Requirements, RequirementsInvalid
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
    annotations = {f"a{x}": "" for x in range(500)}
    assert overfull(managed(annotations, labels)) is None
    assert overfull(managed(annotations | {"one": ""}, labels)) == Refusal(
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
    assert found.count("BYPASS_ENV") == found.count("BYPASS_PRIVILEGED") == 8
    assert found.count("BYPASS_HOST_PID") == 1


def test_nor_those_of_ephemeral_containers() -> None:
    hostile = container("e", env=[variable("NVIDIA_VISIBLE_DEVICES", "all")] * 1000)
    pod = admitted(new_pod(ephemeralContainers=[hostile]))
    judged = validated_ephemeral(pod, frozenset(), AdmissionRules(), enforced=True, injected=False)
    assert len(judged.refusals) == 8


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
    webhooks = world.webhooks(report=report, policy=lambda: policy)
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
        (patched(new_pod(annotations=UUIDS)), None, "team-a"),
    ],
    ids=["plugin", "some", "static", "not enforced", "no GPU", "asks us", "asks us, static"],
)
async def test_others_are_let_in(pod: Document, policy: Policy | None, namespace: str) -> None:
    assert (await ask(pod, policy, namespace=namespace)).refusals == ()


async def test_report_only_mode_says_so_and_lets_it_in() -> None:
    found = await ask(GPU_POD, ALL_ENV, report=True)
    assert (found.refusals, found.result) == ((), "reported")
    assert "NODE_MODE" in found.warnings[0]


# --- Pods that are to be reserved for: all that would be said later is said before

EARLY = UUIDS | {"gpuwarden.dev/reserve": "admission"}
GRANTED = Granted("id", "team-a", "gpu-1", ("GPU-a",))


def early(*containers: Document, **spec: Any) -> AdmittedPod:
    return admitted(new_pod(*containers, annotations=EARLY, **spec))


def of_new(pod: AdmittedPod, *, granted: Granted | None = None) -> Judged:
    return mutated(pod, AdmissionRules(), enforced=True, granted=granted)


def told(judged: Judged) -> list[str]:
    return [x.code.value for x in judged.refusals]


def test_who_is_to_be_reserved_for_is_told_apart() -> None:
    judged = of_new(early())
    assert (judged.concerned, judged.refusals) == (True, ())
    assert judged.patch
    assert judged.early is not None
    assert judged.early.uuids == ("GPU-a",)
    late = of_new(admitted(new_pod(annotations=UUIDS)))
    assert late.patch
    assert late.early is None


def test_violations_are_told_before_anything_is_reserved() -> None:
    assert of_new(early(hostPID=True)) == Judged(
        concerned=True, refusals=(Refusal(ReasonCode.BYPASS_HOST_PID, "hostPID is set"),)
    )
    assert told(of_new(admitted(new_pod(annotations=UUIDS, hostPID=True)))) == []


def test_so_is_what_no_patch_puts_right() -> None:
    judged = of_new(early(ephemeralContainers=[container("debug")]))
    assert judged.refusals == (
        Refusal(ReasonCode.BYPASS_UNINJECTED, "more is wrong with it than one patch puts right"),
    )
    hostile = container("debug", securityContext={"privileged": True})
    assert told(of_new(early(ephemeralContainers=[hostile]))) == [
        "BYPASS_EPHEMERAL",
        "BYPASS_UNINJECTED",
    ]


def test_so_is_a_lack_of_room_but_not_once_it_is_reserved() -> None:
    volumes = [{"name": f"v{x}"} for x in range(MOST_PARTS - 20)]
    text = "it leaves no room for what is written into it, expected 10000 parts in all"
    assert of_new(early(volumes=volumes)).refusals == (Refusal(ReasonCode.REQ_INVALID, text),)
    assert of_new(early(volumes=volumes), granted=GRANTED).refusals == ()


def test_a_node_of_its_own_is_fine_where_it_is_reserved_on() -> None:
    for name, granted, expected in (
        ("gpu-1", None, []),
        ("gpu-1", GRANTED, []),
        ("gpu-2", GRANTED, ["BYPASS_NODE_NAME"]),
    ):
        assert told(of_new(early(nodeName=name), granted=granted)) == expected
    stored = early(nodeName="gpu-1")
    for granted, expected in ((None, ["BYPASS_NODE_NAME"]), (GRANTED, [])):
        judged = validated(stored, AdmissionRules(), enforced=True, injected=False, granted=granted)
        assert told(judged) == expected


RESULT = {"gpuwarden.dev/reservation-id": "id"}


def test_results_are_for_pods_to_bring_that_were_reserved_for() -> None:
    asks = admitted(new_pod(annotations=EARLY | RESULT))
    other = admitted(new_pod(annotations=UUIDS | RESULT))
    for pod, granted, expected in (
        (asks, GRANTED, []),
        (asks, None, ["BYPASS_ANNOTATION"]),
        (other, GRANTED, ["BYPASS_ANNOTATION"]),
    ):
        for judged in (
            of_new(pod, granted=granted),
            validated(pod, AdmissionRules(), enforced=True, injected=False, granted=granted),
        ):
            assert told(judged) == expected
            assert judged.concerned


def test_what_kubelet_chooses_cannot_be_reserved() -> None:
    pod = admitted(
        new_pod(container(gpus=1), annotations=LEVEL | {"gpuwarden.dev/reserve": "admission"})
    )
    assert told(of_new(pod)) == ["EXACT_UNAVAILABLE"]


# --- What is known of a pod that was judged


def test_what_a_stored_pod_asks_for_is_part_of_the_answer() -> None:
    judged = validate(patched(new_pod(annotations=EARLY)))
    assert (judged.concerned, judged.refusals) == (True, ())
    assert isinstance(judged.needs, Requirements)
    assert judged.early == judged.needs
    late = validate(patched(new_pod(annotations=UUIDS)))
    assert isinstance(late.needs, Requirements)
    assert late.early is None


def test_also_where_it_cannot_be_read() -> None:
    bad = new_pod(annotations={"gpuwarden.dev/min-level": "?"})
    for enforced in (True, False):
        judged = validate(bad, enforced=enforced)
        assert (judged.concerned, told(judged)) == (True, ["REQ_INVALID"])
        assert isinstance(judged.needs, RequirementsInvalid)
        assert mutate(bad, enforced=enforced).concerned


def test_who_asks_for_nothing_concerns_us_in_enforced_namespaces_alone() -> None:
    pod, known, rules = admitted(new_pod()), frozenset[str](), AdmissionRules()
    for enforced in (True, False):
        for judged in (
            mutated(pod, rules, enforced=enforced),
            validated(pod, rules, enforced=enforced),
            mutated_ephemeral(pod, known, rules, enforced=enforced),
            validated_ephemeral(pod, known, rules, enforced=enforced),
        ):
            assert judged.concerned is enforced


def test_who_asks_concerns_us_everywhere() -> None:
    pod, known, rules = admitted(new_pod(annotations=LEVEL)), frozenset[str](), AdmissionRules()
    for judged in (
        mutated(pod, rules, enforced=False),
        validated(pod, rules, enforced=False),
        mutated_ephemeral(pod, known, rules, enforced=False),
        validated_ephemeral(pod, known, rules, enforced=False),
    ):
        assert judged.concerned


def test_a_stored_pod_that_cannot_be_read_is_managed() -> None:
    """Its requirements give it nothing, and its new containers are judged."""
    bad = {"gpuwarden.dev/min-level": "?"}
    debug = container("debug", securityContext={"privileged": True})
    pod, rules = admitted(new_pod(annotations=bad, ephemeralContainers=[debug])), AdmissionRules()
    judged = validated_ephemeral(pod, frozenset(), rules, enforced=False)
    assert (judged.concerned, told(judged)) == (True, ["BYPASS_EPHEMERAL", "BYPASS_UNINJECTED"])
    (operation,) = mutated_ephemeral(pod, frozenset(), rules, enforced=False).patch
    assert operation.value == [variable("NVIDIA_VISIBLE_DEVICES", "void")]


def test_ephemeral_containers_that_were_there_before_are_judged_with_their_pod() -> None:
    debug = container("debug", securityContext={"privileged": True})
    made = patched(new_pod(ephemeralContainers=[debug]))
    assert told(validate(made)) == ["BYPASS_EPHEMERAL", "BYPASS_UNINJECTED"]
    assert told(validate(made, injected=False)) == ["BYPASS_EPHEMERAL"]


def test_too_large_a_pod_is_told_the_most() -> None:
    text = "keys, containers and what is in them: too many, expected at most 10000 in all"
    expected = Judged(concerned=True, refusals=(Refusal(ReasonCode.REQ_INVALID, text),))
    large = new_pod(annotations=FULL)
    assert mutate(large) == validate(large) == expected


def test_what_the_webhook_did_not_add_is_told_by_its_first_place() -> None:
    (refusal,) = validate(new_pod(container(), container("b"))).refusals
    assert refusal == Refusal(
        ReasonCode.BYPASS_UNINJECTED,
        "/spec/containers/0/env is not as the mutating webhook makes it",
    )
