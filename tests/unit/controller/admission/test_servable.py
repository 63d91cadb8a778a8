"""Pods that no node will ever serve, by what the policy declares."""

from types import MappingProxyType
from typing import Any

import pytest

from controller.admission.servable import no_gpu_warning, unservable
from controller.placement.gpu_map import Place
from controller.placement.requirements import Guarantee, Requirements
from controller.policy import AttestationClass, NodeMode, NodePool, Policy
from gpuwarden.reasons import ReasonCode, Refusal

ENV = Policy(default_mode=NodeMode.ENV)
PLUGIN = Policy()
BOTH = Policy(pools=(NodePool("a-*", NodeMode.ENV),))
NEITHER = Policy(pools=(NodePool("*", NodeMode.DRA), NodePool("a", NodeMode.PER_GPU)))
GPU = "nvidia.com/gpu"
RESOURCES = (GPU, "example.org/gpu")


def asking(**fields: Any) -> Requirements:
    return Requirements(managed=True, **fields)


NODE_ALONE = asking()
ASKS_KUBELET = asking(count=2, requests=((GPU, 2),))
ASKS_US = asking(count=1)
NAMES = asking(count=1, uuids=("GPU-a",))
NAMES_OF_KUBELET = asking(count=1, uuids=("GPU-a",), requests=((GPU, 1),))
MAPPED = asking(count=1, mapped=True, place=Place("n", (0,)), requests=((GPU, 1),))


def against(needs: Requirements, policy: Policy | None) -> Refusal | None:
    return unservable(needs, policy, RESOURCES)


@pytest.mark.parametrize(
    ("needs", "env", "plugin"),
    [
        (NODE_ALONE, True, True),
        (ASKS_KUBELET, False, True),
        (ASKS_US, True, False),
        (NAMES, True, False),
        (NAMES_OF_KUBELET, False, False),
        (MAPPED, False, False),
        (asking(count=1, mapped=True, requests=((GPU, 1),)), False, False),
        (
            asking(count=1, uuids=("GPU-a",), requests=((GPU, 1),), accepts=Guarantee.SET),
            False,
            True,
        ),
        (asking(count=1, uuids=("GPU-a",), accepts=Guarantee.NODE), True, False),
        (asking(count=1, claims=True), True, True),
    ],
)
def test_a_pod_is_admitted_where_a_declared_mode_serves_it(
    needs: Requirements, *, env: bool, plugin: bool
) -> None:
    assert (against(needs, ENV) is None) is env
    assert (against(needs, PLUGIN) is None) is plugin
    assert (against(needs, BOTH) is None) is (env or plugin)
    assert against(needs, None) is None


def test_the_request_is_to_be_taken_away_where_no_kubelet_gives_gpus() -> None:
    assert against(ASKS_KUBELET, ENV) == Refusal(
        ReasonCode.NODE_MODE,
        "no node gives GPUs to a container that requests nvidia.com/gpu: take the request away,"
        ' and annotate the pod with gpuwarden.dev/gpu-count: "2"',
    )


def test_every_requested_resource_is_named() -> None:
    found = against(asking(count=3, requests=((GPU, 1), ("example.org/gpu", 2))), ENV)
    assert found is not None
    assert "requests nvidia.com/gpu, example.org/gpu:" in found.detail
    assert found.detail.endswith('gpuwarden.dev/gpu-count: "3"')


def test_a_request_is_missing_where_kubelet_gives_every_gpu() -> None:
    assert against(ASKS_US, PLUGIN) == Refusal(
        ReasonCode.NODE_MODE,
        "every node gives GPUs by a device plugin: request nvidia.com/gpu or example.org/gpu in a"
        " container",
    )


@pytest.mark.parametrize("needs", [NAMES, NAMES_OF_KUBELET, MAPPED])
def test_no_gpu_can_be_named_where_kubelet_chooses_every_one(needs: Requirements) -> None:
    assert against(needs, PLUGIN) == Refusal(
        ReasonCode.EXACT_UNAVAILABLE,
        "kubelet chooses the GPU on every node: name none, and request nvidia.com/gpu or"
        " example.org/gpu in a container (or accept gpuwarden.dev/guarantee: node)",
    )


@pytest.mark.parametrize("needs", [NAMES_OF_KUBELET, MAPPED])
def test_nor_the_gpu_of_a_request(needs: Requirements) -> None:
    assert against(needs, BOTH) == Refusal(
        ReasonCode.EXACT_UNAVAILABLE,
        "kubelet chooses the GPU that a container requests: take the request away, name no GPU,"
        " or annotate the pod with gpuwarden.dev/guarantee: node",
    )


@pytest.mark.parametrize("needs", [NODE_ALONE, ASKS_US, ASKS_KUBELET, NAMES])
def test_no_other_way_is_named_where_that_helps_nobody(needs: Requirements) -> None:
    assert against(needs, NEITHER) == Refusal(
        ReasonCode.NODE_MODE,
        "no node gives GPUs: none is of a mode that gives any yet (dra, per-gpu)",
    )


def test_a_label_or_a_class_that_the_policy_does_not_define() -> None:
    known = Policy(
        default_mode=NodeMode.ENV,
        labels=MappingProxyType({"big": "memory>=40Gi"}),
        classes=MappingProxyType({"prod": AttestationClass("prod", ())}),
    )
    fine = asking(count=1, labels=frozenset({"big", "model-l40"}), attestation_class="prod")
    assert against(fine, known) is None
    assert against(asking(count=1, labels=frozenset({"big", "x y"})), known) == Refusal(
        ReasonCode.REQ_INVALID, "GPU label 'x y' is not in the policy"
    )
    assert against(asking(attestation_class="test", claims=True), known) == Refusal(
        ReasonCode.CLASS_UNKNOWN, "attestation class is not in the policy"
    )
    assert against(asking(attestation_class="test"), None) is None


# --- A managed pod that asks for no GPU

NONE = "gpuwarden: the pod asks for no GPU and gets none"
REQUEST = "request nvidia.com/gpu or example.org/gpu in a container (plugin nodes)"
ANNOTATE = 'annotate the pod with gpuwarden.dev/gpu-count: "1" (env nodes)'


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (None, f"{NONE}; to get one, {REQUEST} or {ANNOTATE}"),
        (BOTH, f"{NONE}; to get one, {REQUEST} or {ANNOTATE}"),
        (PLUGIN, f"{NONE}; to get one, {REQUEST}"),
        (ENV, f"{NONE}; to get one, {ANNOTATE}"),
        (NEITHER, NONE),
    ],
)
def test_its_author_hears_how_to_ask(policy: Policy | None, text: str) -> None:
    assert no_gpu_warning(NODE_ALONE, policy, RESOURCES) == text
    assert len(text) <= 256, "the API server cuts it"


@pytest.mark.parametrize(
    "needs", [Requirements(), ASKS_US, ASKS_KUBELET, asking(claims=True)], ids=lambda x: str(x)[:40]
)
def test_nobody_else_does(needs: Requirements) -> None:
    assert no_gpu_warning(needs, None, RESOURCES) is None
