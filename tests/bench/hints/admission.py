"""Makes pods of jobs: as people write them, or with the hints of the webhook and the score.

The webhook's handler, the documents of the scoring service and the scoring are the product's, in
one process and without HTTP between them.
"""

import json
from typing import Any, Final

import msgspec

from controller.admission.hints.patch import Bucket, PriorityClass
from controller.admission.hints.request import JOB_TYPE_LABEL
from controller.admission.hints.score import CLASS_LABEL
from controller.admission.hints.webhook import (
    HINTED,
    HintDecision,
    HintRules,
    HintSources,
    HintWebhook,
)
from controller.placement.keys import RequirementRules
from controller.scoring.documents import (
    read_document,
    read_observation,
    read_score,
    score_answer,
)
from controller.scoring.learned import Learned
from controller.scoring.parameters import Parameters
from controller.scoring.score import Scorer
from gpuwarden.settings.controller import HintSettings
from sandbox.kube.json_patch import applied
from tests.bench.hints.placement import scenes
from tests.bench.hints.simulation import Cluster, Ended, Waiting
from tests.bench.hints.workload import Job
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import documents
from tests.builders.fleet_views import NOW_NS
from tests.builders.hinted import hinted_pod

HINT_WEIGHT: Final = 60
"""As docs/hints.md advises."""
_BEGINS_S: Final = 1_780_000_000
_CLASSES: Final = {
    "gpu-ultra": PriorityClass(1000),
    "gpu-high": PriorityClass(750),
    "gpu-medium": PriorityClass(500),
    "gpu-default": PriorityClass(250),
}
"""Those of docs/hints.md."""

Document = dict[str, Any]


def pod_of(job: Job) -> Document:
    """What a person creates."""
    kind = job.type
    return hinted_pod(
        kind.name,
        gpus=None,
        annotations={
            "gpuwarden.dev/gpu-count": str(kind.gpus),
            "gpuwarden.dev/gpu-selector": f"memory>={kind.memory_gib}Gi",
            "gpuwarden.dev/gpu-memory": f"{kind.memory_gib}Gi",
        },
    )


def _stored(document: Document, job: Job) -> Document:
    """With what the API server adds."""
    own = {"name": f"{job.type.name}-{job.number}", "uid": f"uid-{job.number}"}
    return {**document, "metadata": {**document["metadata"], **own}}


class WithoutHints:
    """Pods as they are."""

    async def admit(self, job: Job, _cluster: Cluster) -> Waiting:
        """The pod as it is stored."""
        return Waiting(job, _stored(pod_of(job), job))

    def learn(self, ended: Ended) -> None:
        """Nobody hears of it."""


class WithHints:
    """Pods as the webhook patches them."""

    def __init__(self) -> None:
        parameters = Parameters()
        self._learned = Learned(parameters)
        self._scorer = Scorer(parameters, self._learned)
        self._decisions: list[HintDecision] = []
        self._colocated: tuple[str, ...] = ()
        seen, settings = scenes(HINT_WEIGHT), HintSettings()
        sources = HintSources(
            ask=self._ask,
            scene=seen.now,
            not_ready=lambda: None,
            is_enforced=lambda _namespace: False,
            colocated=lambda _namespace: self._colocated,
            priority_classes=lambda: _CLASSES,
            note=self._decisions.append,
            boottime_ns=lambda: NOW_NS,
            epoch_s=lambda: _BEGINS_S,
        )
        buckets = tuple(Bucket(x.least, x.priority_class) for x in settings.priority_buckets)
        self._webhook = HintWebhook(
            sources, HintRules(RequirementRules(), buckets, settings.class_labels)
        )

    async def admit(self, job: Job, cluster: Cluster) -> Waiting:
        """The pod as it is stored."""
        self._colocated = tuple(sorted({x.pod.job.type.name for x in cluster.running()}))
        document = pod_of(job)
        verdict = await self._webhook.hint(request_of(review_json(document)))
        decision = self._decisions.pop()
        if decision.result != HINTED:
            raise RuntimeError(f"{job.type.name}: {decision.result}, expected {HINTED}")
        made = _stored(applied(document, documents(verdict.patch)), job)
        return Waiting(job, made, made["spec"]["priority"], _avoided(made))

    def learn(self, ended: Ended) -> None:
        """Report a run, as whoever watches jobs would."""
        report = {
            "job_type": ended.job.type.name,
            "gpu_type": ended.gpu_type,
            "measured_runtime_s": ended.ended - ended.began,
            "colocated_job_types": ended.beside,
        }
        body = msgspec.json.encode(report)
        self._learned.observe(read_observation(read_document(body)))

    async def _ask(self, body: bytes) -> bytes:
        request = read_score(read_document(body), {})
        scored = self._scorer.score(request.job, counts=request.counts)
        return json.dumps(score_answer(scored, CLASS_LABEL, request.warnings)).encode()


def _avoided(document: Document) -> tuple[str, ...]:
    """Job types in the terms that the patch has added."""
    affinity = document["spec"].get("affinity", {}).get("podAntiAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    rules = [
        rule
        for term in terms
        for rule in term["podAffinityTerm"]["labelSelector"]["matchExpressions"]
    ]
    return tuple(value for x in rules if x["key"] == JOB_TYPE_LABEL for value in x["values"])
