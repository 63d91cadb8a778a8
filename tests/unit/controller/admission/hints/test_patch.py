"""What hints add to pods and Jobs, as the API server applies it, and what they leave alone."""

from typing import Any

import pytest

from controller.admission.hints.patch import (
    Bucket,
    Decided,
    Hinting,
    LeftOut,
    PriorityClass,
    bucket_of,
    hinting,
)
from controller.admission.hints.score import Score
from controller.placement.gpu_type import chosen_types
from sandbox.kube.json_patch import applied
from tests.builders.admitted_pods import documents
from tests.builders.hinted import (
    A100_TYPE,
    CLASS,
    H100_TYPE,
    L4_TYPE,
    PRODUCT,
    Document,
    hinted_pod,
    job_of,
    workload,
)

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CLASSES = {
    "gpu-high": PriorityClass(750),
    "gpu-quiet": PriorityClass(10, "Never"),
    "standard": PriorityClass(5, is_default=True),
}
DECIDED = Decided(
    Score(85.0, A100_TYPE),
    "training",
    {A100_TYPE: (PRODUCT, ("A100", "A100-SHARED")), L4_TYPE: (CLASS, ("l4",))},
    (CLASS, PRODUCT),
    "gpu-high",
    1_780_000_000,
)
TO_NODES = {
    "weight": 100,
    "preference": {
        "matchExpressions": [{"key": PRODUCT, "operator": "In", "values": ["A100", "A100-SHARED"]}]
    },
}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def decided(**changes: Any) -> Decided:
    return Decided(
        **{
            "score": DECIDED.score,
            "job_type": DECIDED.job_type,
            "labels": DECIDED.labels,
            "label_keys": DECIDED.label_keys,
            "priority_class": DECIDED.priority_class,
            "epoch_s": DECIDED.epoch_s,
            **changes,
        }
    )


def away_from(job_type: str) -> Document:
    wanted = {"key": "app.kubernetes.io/job-type", "operator": "In", "values": [job_type]}
    term = {
        "labelSelector": {"matchExpressions": [wanted]},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"weight": 100, "podAffinityTerm": term}


def hint(document: Document, what: Decided = DECIDED) -> Hinting:
    return hinting(workload(document), what, CLASSES)


def hinted(document: Document, what: Decided = DECIDED) -> Document:
    made: Document = applied(document, documents(hint(document, what).patch))
    return made


# --- The whole of it


def test_all_that_a_pod_gets() -> None:
    pod = hinted_pod()
    what = decided(score=Score(85.0, A100_TYPE, ("serving",)))
    paths = [x["path"] for x in documents(hint(pod, what).patch)]
    assert len([x for x in paths if x.startswith("/spec/affinity")]) == 1
    made = hinted(pod, what)
    assert made["spec"].pop("priorityClassName") == "gpu-high"
    assert made["spec"].pop("priority") == 750
    assert made["spec"].pop("preemptionPolicy") == "PreemptLowerPriority"
    assert made["spec"].pop("affinity") == {
        "nodeAffinity": {PREFERRED: [TO_NODES]},
        "podAntiAffinity": {PREFERRED: [away_from("serving")]},
    }
    assert made["spec"].pop("tolerations") == [TOLERATION]
    assert made["metadata"].pop("labels") == {"app.kubernetes.io/job-type": "training"}
    assert made["metadata"].pop("annotations") == {
        "app.kubernetes.io/job-type": "training",
        "scheduler.radix.ai/priority-score": "85",
        "scheduler.radix.ai/chosen-gpu": A100_TYPE,
        "scheduler.radix.ai/decision-timestamp": "1780000000",
    }
    del pod["metadata"]["annotations"]
    assert made == pod


def test_the_next_best_types_are_preferred_less() -> None:
    others = ((H100_TYPE, 80), (L4_TYPE, 7))
    made = hinted(hinted_pod(), decided(score=Score(85.0, A100_TYPE, others=others)))
    l4 = {"key": CLASS, "operator": "In", "values": ["l4"]}
    to_l4 = {"weight": 7, "preference": {"matchExpressions": [l4]}}
    assert made["spec"]["affinity"]["nodeAffinity"] == {PREFERRED: [TO_NODES, to_l4]}
    annotations = made["metadata"]["annotations"]
    assert annotations["scheduler.radix.ai/chosen-gpu"] == A100_TYPE
    text = f"{A100_TYPE}=100,{H100_TYPE}=80,{L4_TYPE}=7"
    assert annotations["gpuwarden.dev/chosen-gpus"] == text
    assert chosen_types(annotations) == {A100_TYPE: 100, H100_TYPE: 80, L4_TYPE: 7}


def test_without_a_label_of_the_best_type_no_other_is_preferred() -> None:
    what = decided(score=Score(85.0, H100_TYPE, others=((A100_TYPE, 80),)))
    assert hint(hinted_pod(), what).left_out == (LeftOut.NO_LABEL,)
    assert "affinity" not in hinted(hinted_pod(), what)["spec"]


def test_a_job_gets_it_in_its_template_and_nowhere_else() -> None:
    pod = hinted_pod()
    made = hinted(job_of(pod))
    template = made["spec"].pop("template")
    expected = hinted(pod)
    for field in ("priority", "preemptionPolicy"):
        del expected["spec"][field]
    assert template == {"metadata": expected["metadata"], "spec": expected["spec"]}
    untouched = job_of(pod)
    del untouched["spec"]["template"]
    assert made == untouched


def test_a_template_without_metadata_gets_one() -> None:
    job = job_of(hinted_pod(None))
    del job["spec"]["template"]["metadata"]
    paths = [x["path"] for x in documents(hint(job).patch)]
    assert len([x for x in paths if x.startswith("/spec/template/metadata")]) == 1
    assert hinted(job)["spec"]["template"]["metadata"] == {
        "annotations": {
            "scheduler.radix.ai/priority-score": "85",
            "scheduler.radix.ai/chosen-gpu": A100_TYPE,
            "scheduler.radix.ai/decision-timestamp": "1780000000",
        },
        "labels": {"app.kubernetes.io/job-type": "training"},
    }


def test_nothing_required_is_ever_written() -> None:
    patch = documents(hint(hinted_pod()).patch)
    assert REQUIRED not in str(patch)
    assert {x["op"] for x in patch} == {"add"}


# --- Priority


@pytest.mark.parametrize(
    ("score", "name"),
    [
        (100, "ultra"),
        (90, "ultra"),
        (89.9, "high"),
        (70, "high"),
        (69.99, "medium"),
        (50, "medium"),
        (49, "default"),
        (0, "default"),
    ],
)
def test_the_highest_bucket_that_is_reached_counts_in_any_order(score: float, name: str) -> None:
    buckets = [Bucket(50, "medium"), Bucket(90, "ultra"), Bucket(0, "default"), Bucket(70, "high")]
    assert bucket_of(score, buckets) == name


def test_a_score_below_all_buckets_has_none() -> None:
    assert bucket_of(49.9, [Bucket(50, "medium")]) is None
    assert bucket_of(100, []) is None
    pod = hinted_pod(priority=0)
    made = hinted(pod, decided(priority_class=None))
    assert (made["spec"]["priority"], "priorityClassName" in made["spec"]) == (0, False)
    assert hint(pod, decided(priority_class=None)).left_out == ()


def test_number_and_policy_are_those_of_the_class() -> None:
    pod = hinted_pod(priority=0, preemptionPolicy="PreemptLowerPriority")
    spec = hinted(pod, decided(priority_class="gpu-quiet"))["spec"]
    found = (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"])
    assert found == ("gpu-quiet", 10, "Never")


def test_the_clusters_default_class_gives_way() -> None:
    pod = hinted_pod(priorityClassName="standard", priority=5)
    spec = hinted(pod)["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("gpu-high", 750)


@pytest.mark.parametrize("name", ["gpu-quiet", "gpu-high", "elsewhere"])
def test_a_class_that_the_pod_names_stays(name: str) -> None:
    pod = hinted_pod(priorityClassName=name, priority=10, preemptionPolicy="Never")
    assert hint(pod).left_out == (LeftOut.PRIORITY_KEPT,)
    spec = hinted(pod)["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == (name, 10)
    assert spec["preemptionPolicy"] == "Never"
    assert spec["affinity"] == {"nodeAffinity": {PREFERRED: [TO_NODES]}}


@pytest.mark.parametrize("own", [{"priorityClassName": "standard"}, {"priority": 0}])
def test_in_a_template_even_the_default_class_is_the_users(own: Document) -> None:
    job = job_of(hinted_pod(**own))
    assert hint(job).left_out == (LeftOut.PRIORITY_KEPT,)
    spec = hinted(job)["spec"]["template"]["spec"]
    assert {x: spec.get(x) for x in own} == own
    assert len([x for x in spec if x.startswith("priority")]) == 1


@pytest.mark.parametrize("wrap", [lambda x: x, job_of], ids=["pod", "job"])
def test_a_class_that_the_cluster_lacks_changes_no_priority(wrap: Any) -> None:
    document = wrap(hinted_pod())
    what = decided(priority_class="gpu-ultra")
    assert hint(document, what).left_out == (LeftOut.PRIORITY_CLASS_MISSING,)
    assert not [x for x in documents(hint(document, what).patch) if "riority" in x["path"][:45]]


# --- Affinity


RULE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
OWN_NODES = {"weight": 1, "preference": RULE}
OWN_PODS = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}


@pytest.mark.parametrize(
    ("given", "nodes", "pods"),
    [
        (None, [TO_NODES], [away_from("s"), away_from("t")]),
        ({}, [TO_NODES], [away_from("s"), away_from("t")]),
        (
            {"nodeAffinity": {}, "podAntiAffinity": {PREFERRED: []}},
            [TO_NODES],
            [away_from("s"), away_from("t")],
        ),
        (
            {
                "nodeAffinity": {PREFERRED: [OWN_NODES]},
                "podAntiAffinity": {PREFERRED: [OWN_PODS]},
            },
            [OWN_NODES, TO_NODES],
            [OWN_PODS, away_from("s"), away_from("t")],
        ),
    ],
)
def test_preferences_come_behind_those_of_the_pod(given: Any, nodes: Any, pods: Any) -> None:
    what = decided(score=Score(85.0, A100_TYPE, ("s", "t")))
    affinity = hinted(hinted_pod(affinity=given), what)["spec"]["affinity"]
    assert affinity["nodeAffinity"] == {PREFERRED: nodes}
    assert affinity["podAntiAffinity"] == {PREFERRED: pods}


def test_what_the_pod_requires_stays_beside_it() -> None:
    required = {"nodeSelectorTerms": [RULE]}
    own = {"nodeAffinity": {REQUIRED: required}, "podAffinity": {PREFERRED: [OWN_PODS]}}
    affinity = hinted(hinted_pod(affinity=own))["spec"]["affinity"]
    assert affinity == {
        "nodeAffinity": {REQUIRED: required, PREFERRED: [TO_NODES]},
        "podAffinity": {PREFERRED: [OWN_PODS]},
    }


@pytest.mark.parametrize("key", [CLASS, PRODUCT])
def test_a_pod_that_prefers_a_type_itself_is_not_talked_over(key: str) -> None:
    rule = {"matchExpressions": [{"key": key, "operator": "In", "values": ["L4"]}]}
    own = {"nodeAffinity": {PREFERRED: [OWN_NODES, {"weight": 9, "preference": rule}]}}
    pod = hinted_pod(affinity=own)
    assert hint(pod).left_out == (LeftOut.PREFERENCE_KEPT,)
    assert hinted(pod)["spec"]["affinity"] == own
    assert hinted(pod)["spec"]["priority"] == 750


def test_without_a_label_that_agrees_there_is_no_affinity() -> None:
    assert hint(hinted_pod(), decided(labels={})).left_out == (LeftOut.NO_LABEL,)
    assert "affinity" not in hinted(hinted_pod(), decided(labels={}))["spec"]
    assert hinted(hinted_pod(affinity={}), decided(labels={}))["spec"]["affinity"] == {}


def test_several_hints_may_be_left_out() -> None:
    what = decided(labels={}, priority_class="gpu-ultra")
    left_out = (LeftOut.PRIORITY_CLASS_MISSING, LeftOut.NO_LABEL)
    assert hint(hinted_pod(), what).left_out == left_out


# --- Toleration, label, annotations


def test_a_toleration_comes_behind_others_and_once() -> None:
    other = {"key": "team", "operator": "Exists"}
    assert hinted(hinted_pod(tolerations=[other]))["spec"]["tolerations"] == [other, TOLERATION]
    assert hinted(hinted_pod(tolerations=[]))["spec"]["tolerations"] == [TOLERATION]
    own = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert hinted(hinted_pod(tolerations=own))["spec"]["tolerations"] == own


def test_the_label_by_which_others_keep_away_is_added_and_never_changed() -> None:
    labelled = hinted_pod(labels={"app": "x"})
    labels = {"app": "x", "app.kubernetes.io/job-type": "training"}
    assert hinted(labelled)["metadata"]["labels"] == labels
    own = hinted_pod(labels={"app.kubernetes.io/job-type": "mine"})
    assert hinted(own)["metadata"]["labels"] == {"app.kubernetes.io/job-type": "mine"}


def test_a_pod_may_have_no_annotations_at_all() -> None:
    pod = hinted_pod(None, labels={"app.kubernetes.io/job-type": "training"})
    assert "annotations" not in pod["metadata"]
    assert len(hinted(pod)["metadata"]["annotations"]) == 3


def test_a_choice_that_the_pod_made_up_is_replaced() -> None:
    pod = hinted_pod(annotations={"scheduler.radix.ai/chosen-gpu": "B200"})
    assert hinted(pod)["metadata"]["annotations"]["scheduler.radix.ai/chosen-gpu"] == A100_TYPE
