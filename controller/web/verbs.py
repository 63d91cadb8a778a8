"""The scheduler extender's verbs, from request bytes to answer bytes, without any HTTP. Pure.

Reads snapshots that others keep in memory, never the network: an answer takes what
the CPU needs for it. No side effects but the decision that it hands back.

Source of the wire form: k8s.io/kube-scheduler/extender/v1 (types.go, types_test.go). The Go types
have no JSON tags: keys are the Go field names, Go's decoder takes them in any case, an
unused list arrives as `null`. Nodes are never taken apart: their bytes are echoed.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from controller.placement.explanation import (
    FitReport,
    PodExplanation,
    explain_bound,
    explain_fit,
    explain_waiting,
)
from controller.placement.filter_and_score import (
    FilterDecision,
    HeldBack,
    filter_nodes,
    prioritize_nodes,
)
from controller.placement.keys import RequirementRules
from controller.placement.pod import Pod, PodDecodeError, decode_pod
from controller.placement.refusals import message
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    parse_requirements,
    share_group,
)
from controller.placement.snapshot import GpuUse, Scene, Scenes
from gpuwarden.reasons import ReasonCode, Refusal

# --- kube-scheduler's extender/v1 on the wire

_MAX_NODES = 100_000
_MAX_NAME_CHARS = 253

Body = bytes | bytearray | memoryview
_Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME_CHARS)]


class ArgsError(ValueError):
    """The body is no ExtenderArgs; the text is for the answer and quotes nothing of the body."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A request: the pod and its candidates, by name (`nodes` None) or as whole objects."""

    pod: Pod
    names: list[str]
    """In input order; with `nodes`, the name of each."""
    nodes: list[msgspec.Raw] | None


class _NodeList(msgspec.Struct, gc=False):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct, rename="pascal", gc=False):
    """What kube-scheduler itself sends, decoded in one pass."""

    pod: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    nodes: _NodeList | msgspec.UnsetType | None = msgspec.UNSET
    node_names: list[_Name] | msgspec.UnsetType | None = msgspec.UNSET


class _NodeMetadata(msgspec.Struct, gc=False):
    name: _Name


class _Node(msgspec.Struct, gc=False):
    metadata: _NodeMetadata


class _FilterResult(msgspec.Struct, rename="pascal"):
    nodes: object
    node_names: Sequence[str] | None
    failed_nodes: Mapping[str, str]
    failed_and_unresolvable_nodes: Mapping[str, str]
    error: str


_ARGS = msgspec.json.Decoder(_Args)
_ANY_CASE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NODES = msgspec.json.Decoder(_NodeList | None)
_NAMES = msgspec.json.Decoder(list[_Name] | None)
_NODE = msgspec.json.Decoder(_Node)
_ENCODER = msgspec.json.Encoder()
_NAME_FIRST = b'{"metadata":{"name":"'
"""How Go writes a Node inside a list: ObjectMeta's first field is the name."""


def decode_args(body: Body) -> ExtenderArgs:
    """Decode ExtenderArgs with keys in any case; raises ArgsError."""
    try:
        args = _ARGS.decode(body)
        if msgspec.UNSET in (args.pod, args.nodes, args.node_names):
            args = _decode_any_case(body)
        return _checked(args)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PodDecodeError) as error:
        raise ArgsError(f"decode args: {error}") from None


def encode_filter_result(
    args: ExtenderArgs, passed: Sequence[str], reasons: Mapping[str, str], error: str = ""
) -> bytes:
    """Encode ExtenderFilterResult in the form of the request.

    `passed` is a subset of the names in input order. Every rejection stands in
    FailedAndUnresolvableNodes: with no preempt verb, FailedNodes would make the
    scheduler evict pods for nothing.
    """
    nodes, names = None, None
    if args.nodes is None:
        names = passed
    else:
        nodes = {"metadata": {}, "items": _kept(args, frozenset(passed))}
    return _ENCODER.encode(_FilterResult(nodes, names, {}, reasons, error))


def encode_error(error: str) -> bytes:
    """Encode a result that says nothing but why there is none; it fails the scheduling cycle."""
    return _ENCODER.encode(_FilterResult(None, None, {}, {}, error))


def encode_priorities(scores: Mapping[str, int]) -> bytes:
    """Encode HostPriorityList: a bare array."""
    return _ENCODER.encode([{"Host": host, "Score": score} for host, score in scores.items()])


def _kept(args: ExtenderArgs, passed: Container[str]) -> list[msgspec.Raw]:
    pairs = zip(args.names, args.nodes or (), strict=True)
    return [node for name, node in pairs if name in passed]


def _decode_any_case(body: Body) -> _Args:
    found: dict[str, msgspec.Raw] = {}
    for key, value in _ANY_CASE.decode(body).items():
        lower = key.lower()
        if lower in {"pod", "nodes", "nodenames"} and found.setdefault(lower, value) is not value:
            raise ArgsError(f"decode args: key {lower} is repeated in another case")
    return _Args(
        found.get("pod", msgspec.UNSET),
        _NODES.decode(found["nodes"]) if "nodes" in found else None,
        _NAMES.decode(found["nodenames"]) if "nodenames" in found else None,
    )


def _checked(args: _Args) -> ExtenderArgs:
    if args.pod is msgspec.UNSET or bytes(args.pod) == b"null":
        raise ArgsError("missing pod in args")
    pod = decode_pod(args.pod)
    nodes = args.nodes.items or [] if isinstance(args.nodes, _NodeList) else None
    names = args.node_names if isinstance(args.node_names, list) else None
    if names or nodes is None:
        return ExtenderArgs(pod, _bounded(names or []), None)
    return ExtenderArgs(pod, _bounded([_name_of(node) for node in nodes]), nodes)


def _bounded(names: list[str]) -> list[str]:
    if len(names) > _MAX_NODES:
        raise ArgsError(f"decode args: more than {_MAX_NODES} nodes")
    return names


def _name_of(node: msgspec.Raw) -> str:
    """The name of a Node's bytes, without reading them to the end where Go wrote them."""
    start = bytes(memoryview(node)[: len(_NAME_FIRST) + _MAX_NAME_CHARS + 1])
    if start.startswith(_NAME_FIRST):
        name, quote, _ = start[len(_NAME_FIRST) :].partition(b'"')
        if quote and b"\\" not in name:
            return name.decode()
    return _NODE.decode(node).metadata.name


# --- the verbs

INSECURE_STATIC_HASHES = "static-hashes"
_MARK = " (insecure static hashes)"


def _no_nodes(_pod_uid: str) -> frozenset[str]:
    """For an installation without a binding webhook."""
    return frozenset()


AskHeldBack = Callable[[str, str, int], HeldBack | None]
"""Why the pod of a namespace and UID, which asks for so many, gets no GPUs now, whichever."""


def nobody_held_back(_namespace: str, _pod_uid: str, _count: int) -> HeldBack | None:
    """For an installation without a binding webhook."""


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
    held_back: AskHeldBack = nobody_held_back
    """What the binding webhook would say to the pod whichever GPUs it is to get."""
    report: bool = False
    """Report-only mode: every decision is made and handed back, and every node passes."""

    @property
    def insecure(self) -> tuple[str, ...]:
        """Names of insecure stand-ins that answers may rest on."""
        return (INSECURE_STATIC_HASHES,) if self.rules.opaque_hashes else ()

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
        uid = args.pod.metadata.uid or ""
        outcome = filter_nodes(
            args.names, needs, scene, self.denied(uid), self._held_back(args.pod, needs)
        )
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
            reported=self.report,
        )
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
        scores = prioritize_nodes(args.names, needs, self._scene(args.pod, needs))
        return Answer(200, encode_priorities(scores), "passed")

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
            return needs, FitReport((), {}, Refusal(ReasonCode.CONTROLLER_NOT_READY, reason))
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
        return explain_waiting(needs, scene, denied, held_back)

    def why_waiting(self, pod: Pod) -> PodExplanation:
        """Why a waiting pod of an enforced namespace waits, where no scheduler asks /filter."""
        needs = parse_requirements(pod, self.rules, enforced=True)
        return explain_waiting(needs, self._scene(pod, needs), self.denied(pod.metadata.uid or ""))

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
