"""The webhook for hints: a pod or a Job of a namespace that opted in, and what it gets.

It refuses nothing and fails at nothing: whatever goes wrong, the object is admitted as it is. Which
namespaces opted in is the API server's to know (`namespaceSelector`).
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from controller.admission.hints.candidates import GpuTypes, candidates, gpu_types
from controller.admission.hints.patch import (
    Bucket,
    Decided,
    LeftOut,
    PriorityClass,
    bucket_of,
    hinting,
)
from controller.admission.hints.request import (
    TIMESTAMP,
    Features,
    Workload,
    decode_workload,
    has_room,
    image_of,
    name_by_owner,
    requests_gpus,
    score_request,
    told,
)
from controller.admission.hints.score import Breaker, Score, ScoreError, ScoreFault, read_score
from controller.admission.node_selection import our_toleration
from controller.admission.review import AdmissionHandler, AdmissionRequest, Verdict
from controller.placement.keys import RequirementRules
from controller.placement.pod import PodDecodeError
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    parse_requirements,
)
from controller.placement.snapshot import Scene
from gpuwarden.moment import NS_PER_S

HINTS: Final = "/mutate/hints"
RADIX_HINTS: Final = "/mutate/radix-hints"
"""Of namespaces with radix's label alone: as there, what has no job type is left as it is."""
TYPES_LAST_NS: Final = 5 * NS_PER_S
"""Which nodes have which type is worked out again after so long: it takes all nodes."""
_UNTOUCHED: Final = Verdict()
_RESOURCES: Final = frozenset({("", "pods"), ("batch", "jobs")})


class Untouched(StrEnum):
    """Why an object gets no hints, besides the faults of the scorer."""

    UNREADABLE = "unreadable"
    PLACED = "placed"
    """It names its node."""
    DECIDED = "decided"
    """It has the annotations: its Job got them, or it is a copy."""
    NO_JOB_TYPE = "no_job_type"
    """And no owner that stands for it."""
    NO_GPUS = "no_gpus"
    TOO_LARGE = "too_large"
    REQUIREMENT_UNREADABLE = "requirement_unreadable"
    """What it requires cannot be read; another webhook says so."""
    NOT_READY = "not_ready"
    """Nothing is decided about nodes yet."""
    NO_CANDIDATES = "no_candidates"
    """No attested node could serve it."""
    BREAKER_OPEN = "breaker_open"
    """The scorer failed too often just now."""


HINTED: Final = "hinted"


@dataclass(frozen=True, slots=True)
class HintDecision:
    """What became of one object; for metrics and the log."""

    namespace: str
    name: str
    result: str
    """`hinted`, or a word of `Untouched` or `ScoreFault`."""
    detail: str = ""
    score: Score | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def is_fault(self) -> bool:
        """Whether the scorer is to blame."""
        return self.result in {*ScoreFault, Untouched.BREAKER_OPEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class HintSources:
    """What the webhook asks; all but the scorer answer from memory."""

    ask: Callable[[bytes], Coroutine[Any, Any, bytes]]
    """Asks the scorer; raises ScoreError."""
    scene: Callable[[], Scene]
    not_ready: Callable[[], str | None]
    is_enforced: Callable[[str], bool]
    colocated: Callable[[str], tuple[str, ...]]
    """Job types of the pods with GPUs that run in a namespace."""
    priority_classes: Callable[[], Mapping[str, PriorityClass]]
    note: Callable[[HintDecision], None]
    boottime_ns: Callable[[], int]
    epoch_s: Callable[[], int]


@dataclass(frozen=True, slots=True)
class HintRules:
    """What an installation configures."""

    requirements: RequirementRules
    buckets: tuple[Bucket, ...]
    label_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Subject:
    """Whom a request is about."""

    namespace: str
    name: str
    """What it will begin with, where it is generated."""


class HintWebhook:
    """One for the process."""

    def __init__(self, sources: HintSources, rules: HintRules, *, report: bool = False) -> None:
        """`report`: nothing is patched, so nothing is asked."""
        self._sources = sources
        self._rules = rules
        self._report = report
        self._breaker = Breaker()
        self._types: tuple[int, GpuTypes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the scorer has failed too often, and not answered since."""
        return self._breaker.is_open

    def handlers(self) -> Mapping[str, AdmissionHandler]:
        """The handlers by their paths."""
        return {HINTS: self.hint, RADIX_HINTS: self.hint_job_types}

    async def hint(self, request: AdmissionRequest) -> Verdict:
        """Answer the creation of a Pod or a Job.

        A dry run is not hinted: the scorer counts what it is asked.
        """
        return await self._answer(request, by_owner=True)

    async def hint_job_types(self, request: AdmissionRequest) -> Verdict:
        """The same for those with a job type alone."""
        return await self._answer(request, by_owner=False)

    async def _answer(self, request: AdmissionRequest, *, by_owner: bool) -> Verdict:
        resource = (request.resource.group, request.resource.resource)
        is_creation = (request.operation, request.sub_resource) == ("CREATE", "")
        if self._report or request.dry_run or not is_creation or resource not in _RESOURCES:
            return _UNTOUCHED
        try:
            work = decode_workload(request.object, request.resource.resource)
        except PodDecodeError as error:
            subject = _Subject(request.namespace, request.name)
            return self._untouched(subject, Untouched.UNREADABLE, str(error))
        found = told(work, name_by_owner(work, request.namespace) if by_owner else "")
        subject = _Subject(request.namespace, request.name or work.pod.shown_name)
        verdict = await self._hinted(subject, work, found.features)
        return Verdict(patch=verdict.patch, warnings=found.warnings, result=verdict.result)

    async def _hinted(
        self, subject: _Subject, work: Workload, features: Features | None
    ) -> Verdict:
        sources, rules, pod = self._sources, self._rules, work.pod
        enforced = sources.is_enforced(subject.namespace)
        needs = parse_requirements(pod, rules.requirements, enforced=enforced)
        reason = self._against(work, features, needs)
        if reason is not None or features is None or isinstance(needs, RequirementsInvalid):
            return self._untouched(subject, reason or Untouched.NO_JOB_TYPE)
        if sources.not_ready() is not None:
            return self._untouched(subject, Untouched.NOT_READY)
        scene = sources.scene()
        types = self._gpu_types(scene)
        found = candidates(
            pod,
            needs,
            types,
            scene,
            ours=our_toleration(enforced=enforced, protected=scene.protected),
            memory_gib=features.memory_gib,
        )
        if not found:
            return self._untouched(subject, Untouched.NO_CANDIDATES)
        if not self._breaker.lets(sources.boottime_ns()):
            return self._untouched(subject, Untouched.BREAKER_OPEN)
        image = image_of(pod, rules.requirements.managed_resources)
        try:
            score = await self._score(subject.namespace, features, found, types, image)
        except ScoreError as error:
            return self._untouched(subject, error.fault, str(error))
        decided = Decided(
            score,
            features.job_type,
            types.labels,
            rules.label_keys,
            bucket_of(score.priority, rules.buckets),
            sources.epoch_s(),
        )
        made = hinting(work, decided, sources.priority_classes())
        sources.note(
            HintDecision(
                subject.namespace, subject.name, HINTED, score=score, left_out=made.left_out
            )
        )
        return Verdict(patch=made.patch, result="patched")

    def _against(
        self,
        work: Workload,
        features: Features | None,
        needs: Requirements | RequirementsInvalid,
    ) -> Untouched | None:
        """What is known without the fleet; the first counts."""
        pod, resources = work.pod, self._rules.requirements.managed_resources
        asks = isinstance(needs, Requirements) and needs.count > 0
        checks = (
            (features is None, Untouched.NO_JOB_TYPE),
            (bool(pod.spec.node_name), Untouched.PLACED),
            (TIMESTAMP in pod.annotations, Untouched.DECIDED),
            (not has_room(pod), Untouched.TOO_LARGE),
            (isinstance(needs, RequirementsInvalid), Untouched.REQUIREMENT_UNREADABLE),
            (not (asks or requests_gpus(pod, resources)), Untouched.NO_GPUS),
        )
        return next((reason for holds, reason in checks if holds), None)

    async def _score(
        self,
        namespace: str,
        features: Features,
        found: tuple[str, ...],
        types: GpuTypes,
        image: str,
    ) -> Score:
        sources = self._sources
        colocated = sources.colocated(namespace)
        question = score_request(features, found, colocated, types.memory_gib, image)
        self._breaker = self._breaker.trying(sources.boottime_ns())
        try:
            body = await sources.ask(question)
            score = read_score(body, found, features.job_type)
        except ScoreError as error:
            if error.fault is ScoreFault.REFUSED:
                self._breaker = self._breaker.succeeded()
            else:
                self._breaker = self._breaker.failed(sources.boottime_ns())
            raise
        self._breaker = self._breaker.succeeded()
        return score

    def _gpu_types(self, scene: Scene) -> GpuTypes:
        now_ns = scene.now.boottime_ns
        if self._types is None or now_ns >= self._types[0]:
            found = gpu_types(scene.fleet, scene.nodes, self._rules.label_keys)
            self._types = (now_ns + TYPES_LAST_NS, found)
        return self._types[1]

    def _untouched(
        self, subject: _Subject, reason: Untouched | ScoreFault, detail: str = ""
    ) -> Verdict:
        decision = HintDecision(subject.namespace, subject.name, reason.value, detail)
        self._sources.note(decision)
        return _UNTOUCHED
