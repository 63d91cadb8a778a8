"""The webhook for hints: whom it asks about, what comes of it, and that it fails at nothing."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.admission.hints.patch import Bucket, LeftOut, PriorityClass
from controller.admission.hints.score import OPEN_NS, Score, ScoreError, ScoreFault
from controller.admission.hints.webhook import (
    HINTS,
    RADIX_HINTS,
    TYPES_LAST_NS,
    HintDecision,
    HintRules,
    HintSources,
    HintWebhook,
)
from controller.admission.review import Verdict
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import Scene
from gpuwarden.moment import Moment
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import documents
from tests.builders.fleet_views import NOW_NS
from tests.builders.hinted import (
    A100,
    A100_TYPE,
    CLASS,
    H100,
    H100_TYPE,
    PRODUCT,
    Document,
    answer,
    hinted_pod,
    job_of,
    machine,
    room,
)
from tests.builders.runs import DIGEST

JOBS: dict[str, Any] = {"resource": {"group": "batch", "version": "v1", "resource": "jobs"}}


@dataclass
class World:
    """What the webhook asks, as the test wants it."""

    scene: Scene = field(default_factory=lambda: room(machine("a", A100), machine("h", H100)))
    answers: Callable[[bytes], bytes] = lambda _body: answer()
    questions: list[bytes] = field(default_factory=list)
    decisions: list[HintDecision] = field(default_factory=list)
    unready: str | None = None
    enforced: bool = False
    classes: dict[str, PriorityClass] = field(default_factory=lambda: {"high": PriorityClass(7)})
    now_ns: int = NOW_NS
    report: bool = False
    meanwhile: Document | None = None
    """Comes while another one waits for the scorer."""

    def __post_init__(self) -> None:
        sources = HintSources(
            ask=self.ask,
            scene=lambda: self.scene,
            not_ready=lambda: self.unready,
            is_enforced=lambda _namespace: self.enforced,
            colocated=lambda namespace: (f"in-{namespace}",),
            priority_classes=lambda: self.classes,
            note=self.decisions.append,
            boottime_ns=lambda: self.now_ns,
            epoch_s=lambda: 1_780_000_000,
        )
        rules = HintRules(RequirementRules(), (Bucket(50, "high"),), (CLASS, PRODUCT))
        self.webhook = HintWebhook(sources, rules, report=self.report)

    async def ask(self, body: bytes) -> bytes:
        self.questions.append(body)
        if self.meanwhile is not None:
            other, self.meanwhile = self.meanwhile, None
            await self.hint(other)
        return self.answers(body)

    async def hint(self, document: Document, *, path: str = HINTS, **request: Any) -> Verdict:
        handler = self.webhook.handlers()[path]
        return await handler(request_of(review_json(document, **request)))

    async def result(self, document: Document, **request: Any) -> str:
        """Of an object that stays as it is."""
        verdict = await self.hint(document, **request)
        assert verdict == Verdict(warnings=verdict.warnings)
        (decision,) = self.decisions
        assert (decision.score, decision.left_out) == (None, ())
        self.decisions.clear()
        return decision.result


def raising(fault: ScoreFault) -> Callable[[bytes], bytes]:
    def answers(_body: bytes) -> bytes:
        raise ScoreError(fault, "in words")

    return answers


# --- What is hinted


async def test_a_pod_is_hinted_by_what_the_scorer_chose() -> None:
    world, pod = World(), hinted_pod(annotations={"gpu.mem.gi": "40Gi"})
    verdict = await world.hint(pod)
    assert (verdict.refusals, verdict.warnings, verdict.result) == ((), (), "patched")
    made = applied(pod, documents(verdict.patch))
    assert made["spec"]["priorityClassName"] == "high"
    annotations = made["metadata"]["annotations"]
    assert annotations["scheduler.radix.ai/chosen-gpu"] == A100_TYPE
    assert annotations["scheduler.radix.ai/decision-timestamp"] == "1780000000"
    (question,) = world.questions
    assert json.loads(question) == {
        "job_type": "training",
        "features": {"tenant": "default", "gpu_mem_gb": 40.0},
        "candidate_gpu_types": [A100_TYPE, H100_TYPE],
        "candidate_gpu_mem_gb": {A100_TYPE: 79.648, H100_TYPE: 79.648},
        "colocated_job_types": ["in-team-a"],
    }
    score = Score(85.0, A100_TYPE)
    assert world.decisions == [
        HintDecision("team-a", "train-7d9f-*", "hinted", "", score, (LeftOut.NO_LABEL,))
    ]


async def test_a_label_of_the_nodes_leads_to_the_chosen_type() -> None:
    labels = {"a": {PRODUCT: "A100"}, "h": {PRODUCT: "H100"}}
    world = World(room(machine("a", A100), machine("h", H100), labels=labels))
    world.answers = lambda _body: answer(H100_TYPE, 49)
    made = applied(hinted_pod(), documents((await world.hint(hinted_pod())).patch))
    (term,) = made["spec"]["affinity"]["nodeAffinity"].popitem()[1]
    (rule,) = term["preference"]["matchExpressions"]
    assert rule == {"key": PRODUCT, "operator": "In", "values": ["H100"]}
    assert "priorityClassName" not in made["spec"]


async def test_a_job_is_hinted_and_its_pods_are_then_left_alone() -> None:
    world, job = World(), job_of(hinted_pod())
    verdict = await world.hint(job, name="train", **JOBS)
    made = applied(job, documents(verdict.patch))
    assert world.decisions.pop().name == "train"
    pod = hinted_pod() | made["spec"]["template"]
    assert await world.result(pod) == "decided"
    assert len(world.questions) == 1


async def test_without_a_job_type_the_owner_stands_for_it() -> None:
    """The pod gets no label: none could hold the name."""
    world, pod = World(), hinted_pod(None)
    owner = {"kind": "StatefulSet", "name": "serve", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    pod["spec"]["containers"][0]["image"] = f"serve@{DIGEST}"
    made = applied(pod, documents((await world.hint(pod)).patch))
    assert "labels" not in made["metadata"]
    assert made["metadata"]["annotations"]["scheduler.radix.ai/chosen-gpu"] == A100_TYPE
    job = job_of(hinted_pod(None))
    del job["metadata"]["namespace"], job["spec"]["template"]["metadata"]
    made = applied(job, documents((await world.hint(job, name="train", **JOBS)).patch))
    assert made["spec"]["template"]["metadata"]["labels"] == {}
    asked = [json.loads(x) for x in world.questions]
    assert [x["job_type"] for x in asked] == ["team-a/StatefulSet/serve", "team-a/Job/train"]
    assert [x.get("image") for x in asked] == [DIGEST, None]


async def test_with_radixs_label_alone_only_job_types_count() -> None:
    job = job_of(hinted_pod(None))
    assert await World().result(job, path=RADIX_HINTS, **JOBS) == "no_job_type"
    world = World()
    assert (await world.hint(hinted_pod(), path=RADIX_HINTS)).patch
    assert len(world.questions) == 1


async def test_a_pod_that_only_requires_gpus_is_hinted_too() -> None:
    pod = hinted_pod(gpus=None, annotations={"gpuwarden.dev/gpu-count": "1"})
    world = World()
    assert await world.result(pod) == "no_candidates"  # plugin nodes give it none
    assert (await World().hint(hinted_pod(resourceClaims=[{"name": "g"}], gpus=None))).patch


async def test_in_an_enforced_namespace_candidates_must_serve_the_pod() -> None:
    world = World(enforced=True)
    assert (await world.hint(hinted_pod(gpus=2))).patch
    world.decisions.clear()
    assert await world.result(hinted_pod(gpus=3)) == "no_candidates"


# --- What is not


@pytest.mark.parametrize(
    ("pod", "result"),
    [
        (hinted_pod(None), "no_job_type"),
        (hinted_pod("a b"), "no_job_type"),
        (hinted_pod(nodeName="a"), "placed"),
        (hinted_pod(annotations={"scheduler.radix.ai/decision-timestamp": ""}), "decided"),
        (hinted_pod(annotations={"k": "x" * (65 << 10)}), "too_large"),
        (
            hinted_pod(annotations={"gpuwarden.dev/min-level": "high"}),
            "requirement_unreadable",
        ),
        (hinted_pod(gpus=None), "no_gpus"),
        (hinted_pod(gpus=0), "no_gpus"),
        (hinted_pod(nodeSelector={"zone": "none"}), "no_candidates"),
        (hinted_pod(annotations={"gpu.mem.gi": "1Ti"}), "no_candidates"),
        ({"metadata": {}, "spec": []}, "unreadable"),
        (None, "unreadable"),
    ],
)
async def test_what_gets_no_hints_is_admitted_as_it_is(pod: Any, result: str) -> None:
    world = World()
    assert await world.result(pod) == result
    assert world.questions == []


async def test_nothing_is_asked_before_nodes_are_known() -> None:
    world = World(unready="agents have not answered yet")
    assert await world.result(hinted_pod()) == "not_ready"
    assert world.questions == []


@pytest.mark.parametrize(
    "request_",
    [
        {"dry_run": True},
        {"operation": "UPDATE"},
        {"operation": "UPDATE", "subresource": "status"},
        {"subresource": "binding"},
        {"resource": {"group": "", "version": "v1", "resource": "jobs"}},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
)
async def test_other_requests_are_not_its_business(request_: dict[str, Any]) -> None:
    world = World()
    assert await world.hint(hinted_pod(), **request_) == Verdict()
    assert (world.questions, world.decisions) == ([], [])


async def test_nothing_is_patched_in_report_only_mode() -> None:
    world = World(report=True)
    assert await world.hint(hinted_pod()) == Verdict()
    assert (world.questions, world.decisions) == ([], [])


@pytest.mark.parametrize("pod", [hinted_pod("a b"), hinted_pod(annotations={"gpu.mem.gi": "x"})])
async def test_what_was_left_out_is_a_warning(pod: Document) -> None:
    verdict = await World().hint(pod)
    (warning,) = verdict.warnings
    assert " is ignored, expected " in warning


# --- A scorer that fails or lies


@pytest.mark.parametrize("fault", list(ScoreFault))
async def test_without_an_answer_nothing_changes(fault: ScoreFault) -> None:
    world = World(answers=raising(fault))
    assert await world.hint(hinted_pod()) == Verdict()
    (decision,) = world.decisions
    assert decision == HintDecision("team-a", "train-7d9f-*", fault.value, "in words")
    assert decision.is_fault


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (answer(score=101), "out_of_range"),
        (answer("B200"), "unknown_type"),
        (answer(score="85"), "malformed"),
        (b"x" * (65 << 10), "too_large"),
    ],
)
async def test_a_lie_changes_nothing(body: bytes, result: str) -> None:
    assert await World(answers=lambda _body: body).result(hinted_pod()) == result


async def test_whose_fault_it_was() -> None:
    assert HintDecision("n", "p", "breaker_open").is_fault
    assert not HintDecision("n", "p", "hinted").is_fault
    assert not HintDecision("n", "p", "no_gpus").is_fault


@pytest.mark.parametrize("fails", [raising(ScoreFault.TIMEOUT), lambda _body: answer("B200")])
async def test_after_five_faults_pods_no_longer_wait_for_it(
    fails: Callable[[bytes], bytes],
) -> None:
    world = World(answers=fails)
    for _ in range(5):
        assert await world.result(hinted_pod()) in {"timeout", "unknown_type"}
    assert await world.result(hinted_pod()) == "breaker_open"
    assert len(world.questions) == 5
    world.now_ns += OPEN_NS
    world.answers = lambda _body: answer()
    assert (await world.hint(hinted_pod())).patch
    assert (await world.hint(hinted_pod())).patch


async def test_while_it_is_tried_again_nobody_else_waits() -> None:
    world = World(answers=raising(ScoreFault.TIMEOUT))
    for _ in range(5):
        await world.hint(hinted_pod())
    world.now_ns += OPEN_NS
    world.decisions.clear()
    world.answers, world.meanwhile = (lambda _body: answer()), hinted_pod()
    assert (await world.hint(hinted_pod())).patch
    assert [x.result for x in world.decisions] == ["breaker_open", "hinted"]


async def test_one_question_that_it_refuses_is_not_held_against_it() -> None:
    world = World(answers=raising(ScoreFault.REFUSED))
    for _ in range(6):
        assert await world.result(hinted_pod()) == "refused"
    world.answers = raising(ScoreFault.TIMEOUT)
    for _ in range(4):
        assert await world.result(hinted_pod()) == "timeout"
    world.answers = raising(ScoreFault.REFUSED)
    assert await world.result(hinted_pod()) == "refused"
    world.answers = raising(ScoreFault.TIMEOUT)
    assert await world.result(hinted_pod()) == "timeout"
    assert await world.result(hinted_pod()) == "timeout"


# --- Types of the fleet


async def test_which_nodes_have_which_type_is_worked_out_again_after_a_while() -> None:
    world = World(room(machine("a", A100)))
    assert (await world.hint(hinted_pod())).patch
    world.scene = room(machine("a", A100), machine("h", H100))
    await world.hint(hinted_pod())
    assert b"H100" not in world.questions[-1]
    moment = Moment(NOW_NS + TYPES_LAST_NS - 1, 0)
    world.scene = room(machine("a", A100), machine("h", H100), now_ns=moment.boottime_ns)
    await world.hint(hinted_pod())
    assert b"H100" not in world.questions[-1]
    world.scene = room(machine("a", A100), machine("h", H100), now_ns=NOW_NS + TYPES_LAST_NS)
    await world.hint(hinted_pod())
    assert b"H100" in world.questions[-1]
    assert TYPES_LAST_NS == 5_000_000_000
