"""The scheduler extender's verbs, from request bytes to answer bytes, without any HTTP. Pure.

Reads snapshots that others keep in memory, never the network: an answer takes what
the CPU needs for it. No side effects but the decision that it hands back.
"""

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.ledger.record import PodRef
from controller.placement.explanation import (
    FitReport,
    PodExplanation,
    explain_bound,
    explain_fit,
    explain_waiting,
)
from controller.placement.filter_and_score import (
    FilterDecision,
    FilterOutcome,
    HeldBack,
    filter_nodes,
    prioritize_nodes,
)
from controller.placement.gpu_type import chosen_types
from controller.placement.keys import GIVEN_NODE, RESERVATION_ID, RequirementRules
from controller.placement.pod import Pod, decode_pod
from controller.placement.preemption import none_of, preempt_nodes, waits_for
from controller.placement.refusals import message
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    parse_requirements,
    share_group,
)
from controller.placement.snapshot import GpuUse, Scene, Scenes
from controller.placement.verdict_cache import PlacementMemory
from controller.web.extender.scheduler_messages import (
    ArgsError,
    Body,
    ExtenderArgs,
    PreemptionArgs,
    decode_args,
    decode_preemption_args,
    encode_error,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)
from gpuwarden.reasons import ReasonCode, Refusal

INSECURE_STATIC_HASHES = "static-hashes"
EVALUATION = "evaluation"
_MARK = " (insecure static hashes)"


def _no_nodes(_pod_uid: str) -> frozenset[str]:
    """For an installation without a binding webhook."""
    return frozenset()


def _no_pod(_pod: PodRef) -> bool:
    """For an installation of which nobody says what pods it has."""
    return False


def _given_node(pod: Pod) -> str | None:
    """Where a pod that is not bound has got GPUs at its creation: it can go nowhere else."""
    found = pod.annotations
    return found.get(GIVEN_NODE) if RESERVATION_ID in found else None


AskHeldBack = Callable[[str, str, int], HeldBack | None]
"""Why the pod of a namespace and UID, which asks for so many, gets no GPUs now, whichever."""


def nobody_held_back(_namespace: str, _pod_uid: str, _count: int) -> HeldBack | None:
    """For an installation without a binding webhook."""


def _not_ready(reason: str) -> FitReport:
    return FitReport((), {}, Refusal(ReasonCode.CONTROLLER_NOT_READY, reason))


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer in the making. `result` is a metric label; `decision` is for the audit log."""

    status: int
    body: bytes
    result: str
    decision: FilterDecision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderVerbs:
    """Answers requests. What it asks at each of them answers from memory."""

    scenes: Scenes
    not_ready: Callable[[], str | None]
    """Why nothing may be decided about managed pods yet, or None."""
    use: GpuUse
    rules: RequirementRules
    is_enforced: Callable[[str], bool] = lambda _namespace: False
    """Whether a namespace makes every GPU pod in it managed."""
    denied: Callable[[str], frozenset[str]] = _no_nodes
    """Nodes that the binding webhook has just denied the pod of a UID."""
    is_leaving: Callable[[PodRef], bool] = _no_pod
    """Whether a pod that holds GPUs is being deleted or gone."""
    held_back: AskHeldBack = nobody_held_back
    """What the binding webhook would say to the pod whichever GPUs it is to get."""
    report: bool = False
    """Report-only mode: every decision is made and handed back, and every node passes."""
    evaluation: bool = False
    """GPUs may be made up."""

    @property
    def insecure(self) -> tuple[str, ...]:
        """Names of insecure stand-ins that answers may rest on."""
        found = ((EVALUATION, self.evaluation), (INSECURE_STATIC_HASHES, self.rules.opaque_hashes))
        return tuple(name for name, is_on in found if is_on)

    def filter(self, body: Body) -> Answer:
        """Answer /filter."""
        try:
            args = decode_args(body)
        except ArgsError as error:
            return Answer(400, encode_error(str(error)), "bad")
        needs = self._needs(args.pod)
        if isinstance(needs, Requirements) and not needs.managed:
            return Answer(200, self._passing(args), "untouched")
        reason = self.not_ready()
        if reason is not None:
            text = self._text(Refusal(ReasonCode.CONTROLLER_NOT_READY, reason))
            body = self._passing(args) if self.report else encode_error(text)
            return Answer(200, body, "not_ready")
        scene = self._scene(args.pod, needs)
        denied = self.denied(args.pod.metadata.uid or "")
        held_back = self._held_back(args.pod, needs)
        outcome = filter_nodes(args.names, needs, scene, denied, held_back)
        decision = self._decision(args.pod, outcome, scene)
        if self.report:
            result = "passed" if outcome.passed else "reported"
            return Answer(200, self._passing(args), result, decision)
        reasons = {name: self._text(refusal) for name, refusal in outcome.reasons.items()}
        result = "passed" if outcome.passed else "rejected"
        return Answer(200, encode_filter_result(args, outcome.passed, reasons), result, decision)

    def prioritize(self, body: Body) -> Answer:
        """Answer /prioritize; all scores are 0 for unmanaged pods and while not ready."""
        try:
            args = decode_args(body)
        except ArgsError as error:
            return Answer(400, encode_error(str(error)), "bad")
        needs = self._needs(args.pod)
        zeros = encode_priorities(dict.fromkeys(args.names, 0))
        if isinstance(needs, Requirements) and not needs.managed:
            return Answer(200, zeros, "untouched")
        if self.not_ready() is not None:
            return Answer(200, zeros, "not_ready")
        chosen = chosen_types(args.pod.annotations)
        scores = prioritize_nodes(args.names, needs, self._scene(args.pod, needs), chosen)
        return Answer(200, encode_priorities(scores), "passed")

    def preempt(self, body: Body) -> Answer:
        """Answer /preempt: no node for managed pods while nothing can be decided about them."""
        try:
            args = decode_preemption_args(body)
        except ArgsError as error:
            return Answer(400, encode_error(str(error)), "bad")
        everybody, nobody = encode_preemption_result(args.victims), encode_preemption_result({})
        needs = self._needs(args.pod)
        if isinstance(needs, Requirements) and not needs.managed:
            return Answer(200, everybody, "untouched")
        if self.not_ready() is not None:
            return Answer(200, everybody if self.report else nobody, "not_ready")
        scene = self._scene(args.pod, needs)
        outcome = self._emptied(args, needs, scene)
        decision = self._decision(args.pod, outcome, scene, preempts=True)
        if self.report:
            return Answer(200, everybody, "passed" if outcome.passed else "reported", decision)
        kept = encode_preemption_result({name: args.victims[name] for name in outcome.passed})
        return Answer(200, kept, "passed" if outcome.passed else "rejected", decision)

    def _emptied(
        self, args: PreemptionArgs, needs: Requirements | RequirementsInvalid, scene: Scene
    ) -> FilterOutcome:
        denied = self.denied(args.pod.metadata.uid or "")
        nominated = args.pod.status.nominated_node_name
        if nominated and waits_for(nominated, needs, scene, self.is_leaving, denied):
            return none_of(list(args.victims))
        victims = {name: frozenset(each.uids) for name, each in args.victims.items()}
        return preempt_nodes(victims, needs, scene, denied, self._held_back(args.pod, needs))

    def fit(
        self, pod: Pod, *, placed: bool = False
    ) -> tuple[Requirements | RequirementsInvalid, FitReport | None]:
        """Judge a pod that does not exist yet on every node; the report of no managed one is None.

        `placed`: on the node alone which its map names, where it names one.
        """
        needs = self._needs(pod)
        if isinstance(needs, Requirements) and not needs.managed:
            return needs, None
        reason = self.not_ready()
        if reason is not None:
            return needs, _not_ready(reason)
        scene = self._scene(pod, needs)
        place = needs.place if isinstance(needs, Requirements) and placed else None
        names = None if place is None else (scene.node_of(place.node),)
        held_back = self._held_back(pod, needs)
        return needs, explain_fit(needs, scene, names=names, held_back=held_back)

    def explain(self, pod_json: bytes) -> PodExplanation:
        """Why a pod that exists waits, or what it is promised where it is.

        Raises PodDecodeError.
        """
        pod = decode_pod(pod_json)
        needs = self._needs(pod)
        if isinstance(needs, Requirements) and not needs.managed:
            return PodExplanation(needs=needs)
        scene = self._scene(pod, needs)
        if pod.spec.node_name:
            return explain_bound(needs, scene, pod.spec.node_name)
        reason = self.not_ready()
        if reason is not None:
            return PodExplanation(
                needs=needs, refusal=Refusal(ReasonCode.CONTROLLER_NOT_READY, reason)
            )
        denied, held_back = self.denied(pod.metadata.uid or ""), self._held_back(pod, needs)
        return explain_waiting(needs, scene, denied, held_back, only=_given_node(pod))

    def judging(self, pod_json: bytes) -> Callable[[], FitReport]:
        """Takes snapshots; what it returns judges by them a pod that exists, on any thread.

        Memory and ledger's use belong to the event loop: so the judge gets a memory of its own.
        Raises PodDecodeError.
        """
        pod = decode_pod(pod_json)
        needs = self._needs(pod)
        if isinstance(needs, Requirements) and not needs.managed:
            return partial(FitReport, (), {}, None)
        reason = self.not_ready()
        if reason is not None:
            return partial(_not_ready, reason)
        scene = replace(self._scene(pod, needs), memory=PlacementMemory())
        return partial(explain_fit, needs, scene, held_back=self._held_back(pod, needs))

    def why_waiting(
        self, pod: Pod, known: MutableMapping[Hashable, PodExplanation] | None = None
    ) -> PodExplanation:
        """Why a waiting pod of an enforced namespace waits, where no scheduler asks /filter.

        `known`: what was found at this moment, for pods against which all the same stands.
        """
        needs, uid = parse_requirements(pod, self.rules, enforced=True), pod.metadata.uid
        denied, held_back = self.denied(uid or ""), self._held_back(pod, needs)
        use = self.use(uid, share_group(pod, needs))
        question = needs, denied, held_back, use.own, use.shared
        found = None if known is None else known.get(question)
        if found is None:
            found = explain_waiting(needs, self.scenes.now(use), denied, held_back)
            if known is not None:
                known[question] = found
        return found

    def _decision(
        self, pod: Pod, outcome: FilterOutcome, scene: Scene, *, preempts: bool = False
    ) -> FilterDecision:
        return FilterDecision(
            namespace=pod.metadata.namespace or "",
            pod=pod.metadata.name or "",
            uid=pod.metadata.uid or "",
            candidates=len(outcome.names),
            policy_digest=scene.policy.policy.digest,
            fleet_version=scene.fleet.version,
            insecure=self.insecure,
            totals=outcome.totals,
            reported=self.report,
            preempts=preempts,
        )

    @staticmethod
    def _passing(args: ExtenderArgs) -> bytes:
        """The answer that rejects no node."""
        return encode_filter_result(args, args.names, {})

    def passing(self, pod: Pod, names: Sequence[str] | None = None) -> list[str]:
        """The nodes, of `names` or all, that a waiting pod of an enforced namespace passes to."""
        needs = parse_requirements(pod, self.rules, enforced=True)
        if isinstance(needs, RequirementsInvalid) or not needs.managed:
            return []
        scene = self._scene(pod, needs)
        return filter_nodes(
            list(scene.fleet.nodes if names is None else names), needs, scene
        ).passed

    def is_held_back(self, pod: Pod) -> bool:
        """Whether a waiting pod of an enforced namespace gets no GPUs now, whichever they are."""
        return self._held_back(pod, parse_requirements(pod, self.rules, enforced=True)) is not None

    def _needs(self, pod: Pod) -> Requirements | RequirementsInvalid:
        enforced = self.is_enforced(pod.metadata.namespace or "")
        return parse_requirements(pod, self.rules, enforced=enforced)

    def _held_back(self, pod: Pod, needs: Requirements | RequirementsInvalid) -> HeldBack | None:
        if isinstance(needs, RequirementsInvalid):
            return None
        found = pod.metadata
        return self.held_back(found.namespace or "", found.uid or "", needs.count)

    def _scene(self, pod: Pod, needs: Requirements | RequirementsInvalid) -> Scene:
        use = self.use(pod.metadata.uid, share_group(pod, needs))
        return self.scenes.now(use)

    def _text(self, refusal: Refusal) -> str:
        return message(refusal) + (_MARK if self.rules.opaque_hashes else "")
