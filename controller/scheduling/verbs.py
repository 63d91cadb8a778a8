"""The extender's verbs from request bytes to answer bytes, without any HTTP.

Reads snapshots that others keep in memory, never the network: an answer takes what
the CPU needs for it. No side effects but the decision that it hands back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller.ledger.record import ShareGroup
from controller.scheduling.decision import FilterDecision
from controller.scheduling.explanation import PodExplanation, explain_bound, explain_waiting
from controller.scheduling.filter import filter_nodes
from controller.scheduling.fit import FitReport, explain_fit
from controller.scheduling.pod import Pod, decode_pod, find_pod
from controller.scheduling.prioritize import prioritize_nodes
from controller.scheduling.refusal_texts import message
from controller.scheduling.requirements import (
    Requirements,
    RequirementsInvalid,
    parse_requirements,
)
from controller.scheduling.scene import Scene
from controller.scheduling.scenes import NO_USE, DeviceUse, Scenes
from controller.scheduling.share_group import share_group
from controller.scheduling.wire import (
    ArgsError,
    Body,
    ExtenderArgs,
    decode_args,
    encode_error,
    encode_filter_result,
    encode_priorities,
)
from controller.scheduling.wish_keys import WishRules
from gpuwarden.reasons import ReasonCode, Refusal

INSECURE_STATIC_HASHES = "static-hashes"
_MARK = " (insecure static hashes)"


class GpuUse(Protocol):
    """Who has which device, beyond what evidence shows: reservations, pods of the cluster."""

    def use(self, pod_uid: str | None, share: ShareGroup | None) -> DeviceUse:
        """As a pod sees it; the same object while nothing has changed."""


class NoGpuUse:
    """For an installation without reservations."""

    def use(self, pod_uid: str | None, share: ShareGroup | None) -> DeviceUse:
        """Nothing is known to be busy."""
        del pod_uid, share
        return NO_USE


def _no_nodes(_pod_uid: str) -> frozenset[str]:
    """For an installation without a gate."""
    return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the verbs ask at each request. All of it answers from memory."""

    scenes: Scenes
    not_ready: Callable[[], str | None]
    """Why nothing may be decided about guarded pods yet, or None."""
    use: GpuUse
    rules: WishRules
    is_enforced: Callable[[str], bool] = lambda _namespace: False
    """Whether a namespace makes every GPU pod in it guarded."""
    denied: Callable[[str], frozenset[str]] = _no_nodes
    """Nodes that the gate has just denied the pod of a UID."""
    report: bool = False
    """Report-only mode: every decision is made and handed back, and every node passes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer in the making. `result` is a metric label; `decision` is for the audit log."""

    status: int
    body: bytes
    result: str
    decision: FilterDecision | None = None


class ExtenderVerbs:
    """Answers requests."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings

    @property
    def insecure(self) -> tuple[str, ...]:
        """Names of insecure stand-ins that answers may rest on."""
        return (INSECURE_STATIC_HASHES,) if self._around.rules.opaque_hashes else ()

    def filter(self, body: Body) -> Answer:
        """Answer /filter."""
        try:
            args = decode_args(body)
        except ArgsError as error:
            return Answer(400, encode_error(str(error)), "bad")
        needs = self._needs(args.pod)
        if isinstance(needs, Requirements) and not needs.guarded:
            return Answer(200, self._passing(args), "untouched")
        reason = self._around.not_ready()
        if reason is not None:
            text = self._text(Refusal(ReasonCode.CONTROLLER_NOT_READY, reason))
            body = self._passing(args) if self._around.report else encode_error(text)
            return Answer(200, body, "not_ready")
        scene = self._scene(args.pod, needs)
        uid = args.pod.metadata.uid or ""
        outcome = filter_nodes(args.names, needs, scene, self._around.denied(uid))
        metadata = args.pod.metadata
        decision = FilterDecision(
            namespace=metadata.namespace or "",
            pod=metadata.name or "",
            uid=metadata.uid or "",
            candidates=len(args.names),
            policy_digest=scene.policy.policy.digest,
            fleet_version=scene.fleet.version,
            insecure=self.insecure,
            totals=outcome.totals,
            reported=self._around.report,
        )
        if self._around.report:
            result = "passed" if outcome.passed else "reported"
            return Answer(200, self._passing(args), result, decision)
        reasons = {name: self._text(refusal) for name, refusal in outcome.reasons.items()}
        result = "passed" if outcome.passed else "rejected"
        return Answer(200, encode_filter_result(args, outcome.passed, reasons), result, decision)

    def prioritize(self, body: Body) -> Answer:
        """Answer /prioritize; all scores are 0 for unguarded pods and while not ready."""
        try:
            args = decode_args(body)
        except ArgsError as error:
            return Answer(400, encode_error(str(error)), "bad")
        needs = self._needs(args.pod)
        zeros = encode_priorities(dict.fromkeys(args.names, 0))
        if isinstance(needs, Requirements) and not needs.guarded:
            return Answer(200, zeros, "untouched")
        if self._around.not_ready() is not None:
            return Answer(200, zeros, "not_ready")
        scores = prioritize_nodes(args.names, needs, self._scene(args.pod, needs))
        return Answer(200, encode_priorities(scores), "passed")

    def fit(
        self, pod_json: bytes, namespace: str = ""
    ) -> tuple[Requirements | RequirementsInvalid, FitReport | None]:
        """Judge a pod (or the template in a workload) that does not exist yet on every node.

        The report is None for a pod that asks for nothing of ours. Raises PodDecodeError.
        """
        pod = find_pod(pod_json)
        needs = self._needs(pod, namespace)
        if isinstance(needs, Requirements) and not needs.guarded:
            return needs, None
        return needs, explain_fit(needs, self._scene(pod, needs))

    def explain(self, pod_json: bytes) -> PodExplanation:
        """Why a pod that exists waits, or what it is promised where it is.

        Raises PodDecodeError.
        """
        pod = decode_pod(pod_json)
        needs = self._needs(pod)
        if isinstance(needs, Requirements) and not needs.guarded:
            return PodExplanation(needs=needs)
        scene = self._scene(pod, needs)
        if pod.spec.node_name:
            return explain_bound(needs, scene, pod.spec.node_name)
        reason = self._around.not_ready()
        if reason is not None:
            return PodExplanation(
                needs=needs, refusal=Refusal(ReasonCode.CONTROLLER_NOT_READY, reason)
            )
        return explain_waiting(needs, scene, self._around.denied(pod.metadata.uid or ""))

    @staticmethod
    def _passing(args: ExtenderArgs) -> bytes:
        """The answer that rejects no node."""
        return encode_filter_result(args, args.names, {})

    def passing(self, pod: Pod) -> list[str]:
        """The nodes that a waiting pod of an enforced namespace would pass to."""
        needs = parse_requirements(pod, self._around.rules, enforced=True)
        if isinstance(needs, RequirementsInvalid) or not needs.guarded:
            return []
        scene = self._scene(pod, needs)
        return filter_nodes(list(scene.fleet.nodes), needs, scene).passed

    def _needs(self, pod: Pod, namespace: str = "") -> Requirements | RequirementsInvalid:
        enforced = self._around.is_enforced(pod.metadata.namespace or namespace)
        return parse_requirements(pod, self._around.rules, enforced=enforced)

    def _scene(self, pod: Pod, needs: Requirements | RequirementsInvalid) -> Scene:
        use = self._around.use.use(pod.metadata.uid, share_group(pod, needs))
        return self._around.scenes.now(use)

    def _text(self, refusal: Refusal) -> str:
        return message(refusal) + (_MARK if self._around.rules.opaque_hashes else "")
