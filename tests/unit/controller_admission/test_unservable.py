"""Pods that request GPUs of kubelet where no node is declared to have a device plugin."""

from dataclasses import replace

import pytest

from controller.admission.review import VALIDATE, Verdict, pod_handlers
from controller.policy import NodeMode, NodePool, Policy
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import UUIDS, Document, container, new_pod, patched
from tests.fakes.admission import AdmissionWorld

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
    ports = replace(
        world.ports(report=report), modes=lambda: None if policy is None else policy.modes
    )
    return await pod_handlers(ports)[VALIDATE].decide(
        request_of(review_json(pod, namespace=namespace))
    )


async def test_is_told_how_to_ask_instead() -> None:
    (refusal,) = (await ask(GPU_POD, ALL_ENV)).refusals
    assert refusal.code == "NODE_MODE"
    assert refusal.detail == (
        "no node gives GPUs to a container that requests nvidia.com/gpu: take the request away,"
        ' and annotate the pod with gpuwarden.dev/gpu-count: "2"'
    )


async def test_is_not_told_to_ask_otherwise_where_that_helps_nobody() -> None:
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
