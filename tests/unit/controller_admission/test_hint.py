"""Pods that are sent to nodes by a hint label, where no scheduler asks the extender."""

import json
from typing import Any

import pytest

from controller.admission.mutation import encode_patch, hint, hinted
from controller.admission.pod_view import AdmissionRules
from controller.admission.validation import Judged, mutated, validated
from controller.placement.texts import HINT_LABEL_PREFIX, WishRules
from gpuwarden.reasons import ReasonCode
from tests.builders.admitted_pods import UUIDS, Document, admitted, container, new_pod
from tests.fakes.json_patch import applied

RULES = WishRules()
BY_AFFINITY = AdmissionRules(by_affinity=True)
MAP = {"gpu-scheduling-map": "0=n1:0\n1=n2:0"}
INDEX = "apps.kubernetes.io/pod-index"


def key(document: Document, rules: WishRules = RULES) -> str:
    return hint(admitted(document), rules).key


def named(document: Document, name: str, *, generated: bool = False) -> Document:
    """With its final name; what the API server makes keeps `generateName`."""
    metadata = document["metadata"] | {"name": name}
    if not generated:
        del metadata["generateName"]
    return document | {"metadata": metadata}


def patched(document: Document) -> Document:
    judged = mutated(admitted(document), BY_AFFINITY, enforced=True)
    found: Document = applied(document, json.loads(encode_patch(judged.patch)))
    return found


def validate(document: Document, *, enforced: bool = True) -> Judged:
    return validated(admitted(document), BY_AFFINITY, enforced=enforced)


def test_the_key_is_a_label_that_no_kubelet_may_set() -> None:
    prefix, _, name = key(new_pod(annotations=UUIDS)).partition("/")
    assert prefix.endswith(".node-restriction.kubernetes.io")
    assert len(name) <= 63
    assert name.startswith("wish-")


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
def test_pods_with_the_same_wishes_share_a_key(document: Document) -> None:
    assert key(document) == key(new_pod(annotations=UUIDS))


@pytest.mark.parametrize("document", OTHER)
def test_others_have_another(document: Document) -> None:
    assert key(document) != key(new_pod(annotations=UUIDS))


def test_keys_of_hash_lists_are_the_configured_ones() -> None:
    mine = WishRules(hash_keys=("example.org/hash",))
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


def test_a_guarded_pod_is_pinned_and_keeps_its_scheduler() -> None:
    found = patched(new_pod(annotations=UUIDS))
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert hinted(admitted(found), RULES) == key(found)
    assert patched(found) == found
    assert validate(found).refusals == ()


def test_a_pod_that_names_another_wish_s_label_waits_for_its_own() -> None:
    others = key(new_pod(annotations=UUIDS | {"gpuwarden.dev/min-level": "L1"}))
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": terms_of(others)}
    found = patched(new_pod(annotations=UUIDS, affinity={"nodeAffinity": terms}))
    assert others in str(found)
    assert hinted(admitted(found), RULES) == key(found) != others


def test_of_a_pod_that_cannot_be_read_no_label_is_known() -> None:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": terms_of(f"{HINT_LABEL_PREFIX}x")}
    pod = new_pod(container(gpus="9e30"), affinity={"nodeAffinity": terms})
    assert hinted(admitted(pod), RULES) is None


def test_its_own_affinity_stays_in_each_alternative() -> None:
    own = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [x]}]} for x in "ab"]
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}
    found = patched(new_pod(annotations=UUIDS, affinity={"nodeAffinity": node}))
    terms = found["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert [[x["key"] for x in term["matchExpressions"]] for term in terms] == [
        ["zone", key(found)]
    ] * 2


def test_what_is_reserved_early_is_pinned_by_name_and_not_by_a_hint() -> None:
    early = new_pod(annotations=UUIDS | {"gpuwarden.dev/reserve": "admission"})
    assert hinted(admitted(patched(early)), RULES) is None


def test_who_asks_for_nothing_is_not_pinned() -> None:
    assert hinted(admitted(patched(new_pod())), RULES) is None


@pytest.mark.parametrize("scheduler", ["default-scheduler", "somebody"])
def test_any_scheduler_will_do(scheduler: str) -> None:
    assert validate(patched(new_pod(annotations=UUIDS, schedulerName=scheduler))).refusals == ()


def test_a_pod_that_is_not_pinned_is_refused() -> None:
    found = patched(new_pod(annotations=UUIDS))
    del found["spec"]["affinity"]
    assert [x.code for x in validate(found).refusals] == [ReasonCode.DOOR_UNINJECTED]


@pytest.mark.parametrize("rules", [BY_AFFINITY, AdmissionRules(scheduler_name="default-scheduler")])
def test_outside_enforced_namespaces_a_wish_is_refused(rules: AdmissionRules) -> None:
    pod = admitted(new_pod(annotations=UUIDS))
    judged = validated(pod, rules, enforced=False, injected=False)
    assert [x.code for x in judged.refusals] == [ReasonCode.DOOR_SCHEDULER]
    assert "wishes are for enforced namespaces" in judged.refusals[0].detail
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
