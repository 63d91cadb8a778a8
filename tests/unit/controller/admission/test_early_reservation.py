"""Which pods get their GPUs at their creation, and what such a pod brings of it."""

from dataclasses import replace

import pytest

from controller.admission.early_reservation import (
    DRY_RUN_ID,
    Given,
    Granted,
    cdi_names,
    early_patch,
    granted_early,
    is_early,
    unreservable,
)
from controller.ledger.reservation_id import ReservationIds, ReservationKey, ReservationSubject
from controller.placement.requirements import Guarantee, Requirements, Reserve
from gpuwarden.reasons import ReasonCode
from tests.builders.admitted_pods import admitted, documents, new_pod

ASKS_US = Requirements(managed=True, count=1)
ASKS_KUBELET = replace(ASKS_US, requests=(("nvidia.com/gpu", 1),))
ASKS_A_DRIVER = replace(ASKS_US, claims=True)

NAMESPACE, NODE = "team-a", "gpu-1"
GPUS = ("GPU-b", "GPU-a")
"""As the container sees them, which is not the order in which they are claimed."""
IDS = ReservationIds("lab", (ReservationKey("k1", b"s" * 32),))
CLAIMED = ReservationSubject(NAMESPACE, NODE, ("GPU-a", "GPU-b"))
EARLY_ID = IDS.make(CLAIMED, "0" * 32)
GRANTED = Granted(EARLY_ID, NAMESPACE, NODE, GPUS)
SAID = {
    "gpuwarden.dev/reservation-id": EARLY_ID,
    "gpuwarden.dev/node": NODE,
    "gpuwarden.dev/gpu-uuids-assigned": "GPU-b,GPU-a",
}


def brought(
    annotations: dict[str, str], *, ids: ReservationIds | None = IDS, dry_run: bool = False
) -> Granted | None:
    pod = admitted(new_pod(annotations=annotations))
    return granted_early(pod, NAMESPACE, ids, dry_run=dry_run)


# --- Which pods


@pytest.mark.parametrize(
    ("needs", "node", "expected"),
    [
        (ASKS_US, None, False),
        (ASKS_US, "", False),
        (ASKS_US, NODE, True),
        (replace(ASKS_US, reserve=Reserve.ADMISSION), None, True),
        (ASKS_KUBELET, NODE, False),
        (replace(ASKS_KUBELET, reserve=Reserve.ADMISSION), None, False),
    ],
)
def test_early_is_who_asks_for_it_or_is_on_its_node_already(
    needs: Requirements, node: str | None, *, expected: bool
) -> None:
    assert is_early(admitted(new_pod(nodeName=node)), needs) is expected


@pytest.mark.parametrize("needs", [ASKS_KUBELET, ASKS_A_DRIVER], ids=["kubelet", "driver"])
def test_what_others_choose_later_cannot_be_reserved(needs: Requirements) -> None:
    found = unreservable(replace(needs, reserve=Reserve.ADMISSION))
    assert found is not None
    assert found.code is ReasonCode.EXACT_UNAVAILABLE
    assert "nothing to reserve" in found.detail


@pytest.mark.parametrize(
    "needs",
    [
        ASKS_KUBELET,
        replace(ASKS_US, reserve=Reserve.ADMISSION),
        replace(ASKS_KUBELET, reserve=Reserve.ADMISSION, accepts=Guarantee.SET),
    ],
    ids=["not asked for", "ours to give", "a lesser guarantee is fine"],
)
def test_nothing_is_against_the_reservation_of_others(needs: Requirements) -> None:
    assert unreservable(needs) is None


# --- What a pod brings


def test_a_pod_brings_the_reservation_that_was_made_for_it() -> None:
    assert brought(SAID) == GRANTED


@pytest.mark.parametrize(
    "twin",
    [
        {"fudo.org/gpu.uuid": "GPU-b,GPU-a"},
        {"fudo.org/gpu.reservation-id": EARLY_ID},
        {"fudo.org/gpu.node": NODE},
        {"cdi.k8s.io/gpu-assignment": "nvidia.com/gpu=GPU-b,nvidia.com/gpu=GPU-a"},
    ],
)
def test_what_says_it_again_must_say_the_same(twin: dict[str, str]) -> None:
    assert brought(SAID | twin) == GRANTED
    (key,) = twin
    assert brought(SAID | {key: "other"}) is None
    assert brought(SAID | {key: ""}) is None


@pytest.mark.parametrize("key", SAID)
def test_a_pod_that_lacks_one_of_the_keys_brings_nothing(key: str) -> None:
    assert brought({k: x for k, x in SAID.items() if k != key}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"gpuwarden.dev/node": "gpu-2"},
        {"gpuwarden.dev/gpu-uuids-assigned": "GPU-b"},
        {"gpuwarden.dev/reservation-id": EARLY_ID[:-1] + "x"},
        {"gpuwarden.dev/reservation-id": DRY_RUN_ID},
    ],
)
def test_what_the_id_was_not_made_for_is_not_authentic(change: dict[str, str]) -> None:
    assert brought(SAID | change) is None


def test_an_id_counts_in_its_namespace_alone() -> None:
    pod = admitted(new_pod(annotations=SAID))
    assert granted_early(pod, "team-b", IDS) is None


def test_the_id_of_a_pod_that_was_bound_is_no_early_one() -> None:
    bound = IDS.make(replace(CLAIMED, pod_uid="u"))
    assert brought(SAID | {"gpuwarden.dev/reservation-id": bound}) is None


def test_where_nothing_can_be_reserved_nothing_is_authentic() -> None:
    assert brought(SAID, ids=None) is None


def test_the_stand_in_for_an_id_counts_in_a_dry_run_alone() -> None:
    said = SAID | {"gpuwarden.dev/reservation-id": "dry-run"}
    assert brought(said, ids=None, dry_run=True) == replace(GRANTED, reservation="dry-run")
    assert brought(said) is None
    assert brought({**said, "fudo.org/gpu.node": "gpu-2"}, dry_run=True) is None
    assert brought(SAID, dry_run=True) == GRANTED
    forged = SAID | {"gpuwarden.dev/reservation-id": EARLY_ID[:-1] + "x"}
    assert brought(forged, dry_run=True) is None


def test_a_request_is_no_dry_run_unless_it_says_so() -> None:
    said = SAID | {"gpuwarden.dev/reservation-id": "dry-run"}
    assert granted_early(admitted(new_pod(annotations=said)), NAMESPACE, IDS) is None


def test_what_a_pod_leaves_out_is_not_made_up() -> None:
    said = {"gpuwarden.dev/reservation-id": "dry-run"}
    assert brought(said, dry_run=True) == Granted("dry-run", NAMESPACE, node="", gpus=("",))


# --- What is written into it

ON_NODE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
PINNED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ON_NODE]}
    }
}
PIN = {"op": "add", "path": "/spec/affinity", "value": PINNED}


def test_a_pod_without_annotations_gets_all_at_once() -> None:
    patch = early_patch(admitted(new_pod()), Given(GRANTED, {"b": "2", "a/b": "1"}))
    made = {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "1", "b": "2"}}
    assert documents(patch) == [made, PIN]


def test_others_get_what_they_lack_key_by_key() -> None:
    given = Given(GRANTED, {"b": "2", "a/b": "1", "same": "x", "other": "x"})
    pod = admitted(new_pod(annotations={"theirs": "", "same": "x", "other": "y"}))
    assert documents(early_patch(pod, given)) == [
        {"op": "add", "path": "/metadata/annotations/a~1b", "value": "1"},
        {"op": "add", "path": "/metadata/annotations/b", "value": "2"},
        {"op": "add", "path": "/metadata/annotations/other", "value": "x"},
        PIN,
    ]


def test_a_pod_that_names_its_node_is_not_sent_there() -> None:
    there = admitted(new_pod(nodeName=NODE))
    assert early_patch(there, Given(GRANTED, {})) == ()


def test_names_of_the_container_device_interface() -> None:
    assert cdi_names(("GPU-b", "GPU-a")) == "nvidia.com/gpu=GPU-b,nvidia.com/gpu=GPU-a"
