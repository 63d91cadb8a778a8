import json
from typing import Any

import pytest

from controller.admission.mutation import hint, hinted, is_beyond_repair
from controller.admission.node_selection import NodeDemand
from controller.admission.review import Operation, Verb, encode_patch, pointer
from controller.admission.rules import AdmissionRules
from controller.admission.validation import Judged, mutated, mutated_ephemeral, validated
from controller.placement.keys import HINT_LABEL_PREFIX, RequirementRules
from controller.placement.requirements import Requirements
from gpuwarden.reasons import ReasonCode
from sandbox.kube.json_patch import PatchError, applied
from tests.builders.admitted_pods import (
    LEVEL,
    UUIDS,
    Document,
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
from tests.golden.generate import FOLDER

# --- What the mutating webhook adds; the patches themselves are golden vectors

ASKS_US = Requirements(managed=True, count=1)
GOLDEN = json.loads((FOLDER / "admission_patches.json").read_text())


def is_unrepairable(pod: Document, needs: Requirements) -> bool:
    return is_beyond_repair(admitted(pod), needs, AdmissionRules())


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
def test_the_patch_is_the_one_that_is_written_down(case: dict[str, Any]) -> None:
    assert documents(mutate(case["pod"], enforced=case["enforced"]).patch) == case["patch"]


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


def replaced(name: str, place: str) -> str:
    return f"gpuwarden: container {place}: {name} is replaced by what the pod is given"


def test_who_sets_a_variable_hears_once_that_it_is_replaced() -> None:
    cuda, nvidia = variable("CUDA_VISIBLE_DEVICES", "0"), variable("NVIDIA_VISIBLE_DEVICES", "all")
    pod = new_pod(
        container("a b", env=[variable("MODE", "x"), cuda, cuda]),
        container("main", env=[nvidia]),
        initContainers=[container("step", env=[cuda])],
        annotations=UUIDS,
    )
    judged = mutate(pod)
    assert judged.warnings == (
        replaced("CUDA_VISIBLE_DEVICES", "step"),
        replaced("CUDA_VISIBLE_DEVICES", "'a b'"),
        replaced("NVIDIA_VISIBLE_DEVICES", "main"),
    )
    assert mutate(patched(pod)).warnings == ()
    harmless = new_pod(container(env=[variable("NVIDIA_VISIBLE_DEVICES", "none")]))
    assert mutate(harmless).warnings == (replaced("NVIDIA_VISIBLE_DEVICES", "main"),)


def test_so_does_who_sets_one_in_an_ephemeral_container() -> None:
    own = container("debug", env=[variable("CUDA_VISIBLE_DEVICES", "0")])
    pod = admitted(new_pod(annotations=UUIDS, ephemeralContainers=[own]))
    judged = mutated_ephemeral(pod, frozenset(), AdmissionRules(), enforced=False)
    assert judged.warnings == (replaced("CUDA_VISIBLE_DEVICES", "debug"),)


def test_containers_that_another_webhook_adds_later_get_theirs() -> None:
    stored = patched(new_pod(annotations=UUIDS))
    stored["spec"]["containers"].append(container("proxy"))
    (operation,) = documents(mutate(stored).patch)
    assert operation["path"] == "/spec/containers/1/env"


def test_configured_resources_and_scheduler_count() -> None:
    rules = AdmissionRules(RequirementRules(managed_resources=("example.org/gpu",)), "mine")
    own = container(resources={"limits": {"example.org/gpu": 1}})
    patch = documents(mutated(admitted(new_pod(own)), rules, enforced=True).patch)
    assert [x["path"] for x in patch] == ["/spec/schedulerName", "/spec/tolerations"]
    assert patch[0]["value"] == "mine"


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, "gpuwarden"), ("", "gpuwarden"), ("default-scheduler", "gpuwarden"), ("own", "own")],
)
def test_a_pod_that_names_no_scheduler_of_its_own_gets_ours(
    named: str | None, expected: str
) -> None:
    stored = patched(new_pod(annotations=UUIDS, schedulerName=named))
    assert stored["spec"]["schedulerName"] == expected


def test_a_pod_full_of_one_variable_is_not_cleaned_but_refused() -> None:
    """Each removal moves all that follow in the API server."""
    flood = [variable("CUDA_VISIBLE_DEVICES", "0")] * 1000
    pod = new_pod(container(env=flood), annotations=UUIDS)
    removals = [x for x in mutate(pod).patch if x.op is Verb.REMOVE]
    assert len(removals) == 64
    assert codes(pod) == ["BYPASS_UNINJECTED"]
    assert codes(new_pod(container(env=flood[:65]), annotations=UUIDS)) == []


@pytest.mark.parametrize("ours", [0, 2])
def test_of_a_repeated_variable_the_first_stays_and_is_made_right(ours: int) -> None:
    stored = patched(new_pod(annotations=UUIDS))
    env = stored["spec"]["containers"][0]["env"]
    cuda, nvidia = env
    env[:] = [variable("CUDA_VISIBLE_DEVICES", "0"), nvidia, variable("CUDA_VISIBLE_DEVICES", "0")]
    env[ours] = cuda
    at = "/spec/containers/0/env"
    replaced = [{"op": "replace", "path": f"{at}/0", "value": cuda}] if ours else []
    assert documents(mutate(stored).patch) == [*replaced, {"op": "remove", "path": f"{at}/2"}]


def test_repeated_variables_that_are_not_ours_stay() -> None:
    env = [variable("A", "1"), variable("A", "2")]
    made = mutate(new_pod(container(env=env), annotations=UUIDS))
    assert Verb.REMOVE not in {x.op for x in made.patch}


@pytest.mark.parametrize(("repeated", "beyond"), [(64, False), (65, True)])
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_pod_is_beyond_repair_where_a_container_has_too_many_to_remove(
    field: str, repeated: int, *, beyond: bool
) -> None:
    flood = [variable("NVIDIA_VISIBLE_DEVICES", "0")] * (1 + repeated)
    pod = new_pod(annotations=UUIDS)
    pod["spec"][field] = [container("full", env=flood), container("other")]
    assert is_unrepairable(pod, ASKS_US) is beyond
    nothing = Requirements(managed=True)
    assert is_unrepairable(pod, nothing) is beyond


def test_a_pod_with_an_ephemeral_container_is_beyond_repair_where_that_would_be_patched() -> None:
    pod = new_pod(ephemeralContainers=[container("debug")])
    assert is_unrepairable(pod, ASKS_US)
    assert is_unrepairable(pod, Requirements())
    assert not is_unrepairable(new_pod(), Requirements())


def test_where_the_clusters_own_scheduler_is_ours_its_name_stays() -> None:
    rules = AdmissionRules(scheduler_name="default-scheduler")
    patch = mutated(admitted(new_pod(annotations=LEVEL)), rules, enforced=False).patch
    assert [x.path for x in patch] == ["/spec/containers/0/env"]


def test_malformed_requirements_are_refused_with_key_text_and_expectation() -> None:
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
            assert refusal.code is ReasonCode.BYPASS_ANNOTATION
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


# --- Pods that are sent to nodes by a hint label, where no scheduler asks the extender

RULES = RequirementRules()
BY_AFFINITY = AdmissionRules(by_affinity=True)
MAP = {"gpu-scheduling-map": "0=n1:0\n1=n2:0"}
INDEX = "apps.kubernetes.io/pod-index"


def key(document: Document, rules: RequirementRules = RULES) -> str:
    return hint(admitted(document), rules).key


def named(document: Document, name: str, *, generated: bool = False) -> Document:
    """With its final name; what the API server makes keeps `generateName`."""
    metadata = document["metadata"] | {"name": name}
    if not generated:
        del metadata["generateName"]
    return document | {"metadata": metadata}


def patched_by_hint(document: Document) -> Document:
    judged = mutated(admitted(document), BY_AFFINITY, enforced=True)
    found: Document = applied(document, json.loads(encode_patch(judged.patch)))
    return found


def validate(document: Document, *, enforced: bool = True) -> Judged:
    return validated(admitted(document), BY_AFFINITY, enforced=enforced)


def test_the_key_is_a_label_that_no_kubelet_may_set() -> None:
    prefix, _, name = key(new_pod(annotations=UUIDS)).partition("/")
    assert prefix.endswith(".node-restriction.kubernetes.io")
    assert len(name) <= 63
    assert name.startswith("requirement-")


def test_the_key_is_the_same_in_every_replica_and_version() -> None:
    """Nodes keep their labels while controllers are replaced."""
    made = hint(admitted(new_pod(annotations=UUIDS)), RULES)
    prefix = "gpuwarden.node-restriction.kubernetes.io/requirement-"
    assert made == NodeDemand(f"{prefix}dc689939827deef6cbbf7382f852991c", ("fits",))


SAME = [
    named(new_pod(annotations=UUIDS), "other"),
    new_pod(annotations=UUIDS | {"gpuwarden.dev/job-type": "x", "theirs": "y"}),
    new_pod(annotations=UUIDS, labels={"app": "x", INDEX: "1"}),
    new_pod(container(image="other"), annotations=UUIDS, nodeSelector={"a": "b"}),
]
OTHER = [
    new_pod(annotations={"gpuwarden.dev/gpu-uuids": "GPU-b"}),
    new_pod(annotations=UUIDS | {"gpuwarden.dev/min-level": "L1"}),
    new_pod(annotations=UUIDS, labels={"gpuwarden.dev/gpu.big": "true"}),
    new_pod(container(gpus=1), annotations=UUIDS),
    new_pod(annotations=UUIDS, resourceClaims=[{"name": "x"}]),
    new_pod(annotations=UUIDS | {"attestation-hash.my-company.com/required-hash": "x"}),
]


@pytest.mark.parametrize("document", SAME)
def test_pods_with_the_same_requirements_share_a_key(document: Document) -> None:
    assert key(document) == key(new_pod(annotations=UUIDS))


@pytest.mark.parametrize("document", OTHER)
def test_others_have_another(document: Document) -> None:
    assert key(document) != key(new_pod(annotations=UUIDS))


def test_keys_of_hash_lists_are_the_configured_ones() -> None:
    mine = RequirementRules(hash_keys=("example.org/hash",))
    pod = new_pod(annotations=UUIDS | {"example.org/hash": "x"})
    assert key(pod) == key(new_pod(annotations=UUIDS))
    assert key(pod, mine) != key(new_pod(annotations=UUIDS), mine)


def test_with_a_map_the_line_counts_by_labels_or_a_name_of_its_own() -> None:
    pod = new_pod(annotations=MAP)
    assert key(new_pod(annotations=MAP, labels={INDEX: "0"})) != key(
        new_pod(annotations=MAP, labels={INDEX: "1"})
    )
    assert key(named(pod, "a-0")) != key(named(pod, "a-1"))
    assert key(named(pod, "a-0", generated=True)) == key(pod)


@pytest.mark.parametrize("index", [INDEX, "batch.kubernetes.io/job-completion-index"])
def test_an_index_among_the_annotations_counts_with_a_map_alone(index: str) -> None:
    for asking, differ in ((MAP, True), (UUIDS, False)):
        first, second = (key(new_pod(annotations=asking | {index: x})) for x in "01")
        assert (first != second) is differ
        assert (first != key(new_pod(annotations=asking))) is differ


def test_a_managed_pod_is_pinned_and_keeps_its_scheduler() -> None:
    found = patched_by_hint(new_pod(annotations=UUIDS))
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert hinted(admitted(found), RULES) == key(found)
    assert patched_by_hint(found) == found
    assert validate(found).refusals == ()


def test_a_pod_that_names_another_requirement_s_label_waits_for_its_own() -> None:
    others = key(new_pod(annotations=UUIDS | {"gpuwarden.dev/min-level": "L1"}))
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": terms_of(others)}
    found = patched_by_hint(new_pod(annotations=UUIDS, affinity={"nodeAffinity": terms}))
    assert others in str(found)
    assert hinted(admitted(found), RULES) == key(found) != others


def test_of_a_pod_that_cannot_be_read_no_label_is_known() -> None:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": terms_of(f"{HINT_LABEL_PREFIX}x")}
    pod = new_pod(container(gpus="9e30"), affinity={"nodeAffinity": terms})
    assert hinted(admitted(pod), RULES) is None


def test_its_own_affinity_stays_in_each_alternative() -> None:
    own = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [x]}]} for x in "ab"]
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}
    found = patched_by_hint(new_pod(annotations=UUIDS, affinity={"nodeAffinity": node}))
    terms = found["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert [[x["key"] for x in term["matchExpressions"]] for term in terms] == [
        ["zone", key(found)]
    ] * 2


def test_what_is_reserved_early_is_pinned_by_name_and_not_by_a_hint() -> None:
    early = new_pod(annotations=UUIDS | {"gpuwarden.dev/reserve": "admission"})
    assert hinted(admitted(patched_by_hint(early)), RULES) is None


def test_who_asks_for_nothing_is_not_pinned() -> None:
    assert hinted(admitted(patched_by_hint(new_pod())), RULES) is None


@pytest.mark.parametrize("scheduler", ["default-scheduler", "somebody"])
def test_any_scheduler_will_do(scheduler: str) -> None:
    assert (
        validate(patched_by_hint(new_pod(annotations=UUIDS, schedulerName=scheduler))).refusals
        == ()
    )


def test_a_pod_that_is_not_pinned_is_refused() -> None:
    found = patched_by_hint(new_pod(annotations=UUIDS))
    del found["spec"]["affinity"]
    assert [x.code for x in validate(found).refusals] == [ReasonCode.BYPASS_UNINJECTED]


@pytest.mark.parametrize("rules", [BY_AFFINITY, AdmissionRules(scheduler_name="default-scheduler")])
def test_outside_enforced_namespaces_a_requirement_is_refused(rules: AdmissionRules) -> None:
    pod = admitted(new_pod(annotations=UUIDS))
    judged = validated(pod, rules, enforced=False, injected=False)
    assert [x.code for x in judged.refusals] == [ReasonCode.BYPASS_SCHEDULER]
    assert "requirements are for enforced namespaces" in judged.refusals[0].detail
    assert validated(admitted(new_pod()), rules, enforced=False).refusals == ()


def terms_of(*keys: str) -> Any:
    expressions = [{"key": each, "operator": "In", "values": ["fits"]} for each in keys]
    term = {"matchExpressions": expressions, "matchFields": None}
    return {"nodeSelectorTerms": [{}, term]}


@pytest.mark.parametrize(
    "affinity",
    [
        {},
        {"nodeAffinity": {}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms_of("zone")}},
    ],
)
def test_a_pod_that_waits_for_no_label(affinity: Any) -> None:
    assert hinted(admitted(new_pod(affinity=affinity)), RULES) is None
