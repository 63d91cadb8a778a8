"""kube-scheduler's extender/v1 on the wire: requests decoded, answers encoded. Pure.

Source of the wire form: k8s.io/kube-scheduler/extender/v1 (types.go, types_test.go). The Go types
have no JSON tags: keys are the Go field names, Go's decoder takes them in any case, an
unused list arrives as `null`. Nodes are never taken apart: their bytes are echoed.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec

from controller.placement.pod import Pod, PodDecodeError, decode_pod

# --- nodes

_MAX_NODES = 100_000
_MAX_NAME_CHARS = 253

Body = bytes | bytearray | memoryview
_Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME_CHARS)]
_Uid = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_NAME_CHARS)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class ArgsError(ValueError):
    """The body is no ExtenderArgs; the text is for the answer and quotes nothing of the body."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A request: the pod and its candidates, by name (`nodes` None) or as whole objects."""

    pod: Pod
    names: list[str]
    """In input order; with `nodes`, the name of each."""
    nodes: list[msgspec.Raw] | None


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods of one node that kube-scheduler would evict."""

    uids: tuple[str, ...]
    violations: int
    """Of disruption budgets, as kube-scheduler counts them."""


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A request: the pod, and whom it would push out, by node."""

    pod: Pod
    victims: dict[str, Victims]


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


class _VictimMetadata(msgspec.Struct, gc=False):
    uid: _Uid


class _Victim(msgspec.Struct, gc=False):
    """A whole Pod; its name is enough."""

    metadata: _VictimMetadata


class _MetaPod(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    uid: _Uid = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What kube-scheduler itself sends, decoded in one pass; whatever else may come is not this."""

    pods: list[_MetaPod] | None = msgspec.field(name="Pods")
    violations: _Int64 = msgspec.field(name="NumPDBViolations")


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
_BY_NODE = msgspec.json.Decoder(dict[_Name, msgspec.Raw] | None)
_META_BY_NODE = msgspec.json.Decoder(dict[_Name, _MetaVictims] | None)
_PODS = msgspec.json.Decoder(list[msgspec.Raw] | None)
_VICTIM = msgspec.json.Decoder(_Victim)
_UID = msgspec.json.Decoder(_Uid)
_COUNT = msgspec.json.Decoder(_Int64 | None)
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
    FailedAndUnresolvableNodes: FailedNodes would make the scheduler look for pods to evict, again
    and again, on nodes that it does not find full.
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
    found = _in_any_case(body, {"pod", "nodes", "nodenames"})
    return _Args(
        found.get("pod", msgspec.UNSET),
        _NODES.decode(found["nodes"]) if "nodes" in found else None,
        _NAMES.decode(found["nodenames"]) if "nodenames" in found else None,
    )


def _in_any_case(body: Body | msgspec.Raw, known: Container[str]) -> dict[str, msgspec.Raw]:
    """The values of the known keys, by the key in lower case."""
    found: dict[str, msgspec.Raw] = {}
    for key, value in _ANY_CASE.decode(body).items():
        lower = key.lower()
        if lower in known and found.setdefault(lower, value) is not value:
            raise ArgsError(f"decode args: key {lower} is repeated in another case")
    return found


def _checked(args: _Args) -> ExtenderArgs:
    pod = _pod(args.pod)
    nodes = args.nodes.items or [] if isinstance(args.nodes, _NodeList) else None
    names = args.node_names if isinstance(args.node_names, list) else None
    if names or nodes is None:
        return ExtenderArgs(pod, _bounded(names or []), None)
    return ExtenderArgs(pod, _bounded([_name_of(node) for node in nodes]), nodes)


def _pod(found: msgspec.Raw | msgspec.UnsetType) -> Pod:
    if found is msgspec.UNSET or bytes(found) == b"null":
        raise ArgsError("missing pod in args")
    return decode_pod(found)


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


# --- victims

_WHOLE, _META = "nodenametovictims", "nodenametometavictims"


def decode_preemption_args(body: Body) -> PreemptionArgs:
    """Decode ExtenderPreemptionArgs with keys in any case; raises ArgsError.

    Victims are whole pods, or their UIDs alone where the extender is `nodeCacheCapable`.
    """
    try:
        found = _in_any_case(body, {"pod", _WHOLE, _META})
        pod = _pod(found.get("pod", msgspec.UNSET))
        for key, uid_of in ((_META, _uid_alone), (_WHOLE, _uid_of_pod)):
            victims = _by_node(found[key], uid_of) if key in found else {}
            if victims:
                return PreemptionArgs(pod, victims)
        return PreemptionArgs(pod, {})
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PodDecodeError) as error:
        raise ArgsError(f"decode args: {error}") from None


def encode_preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Encode ExtenderPreemptionResult: the nodes that may be emptied, always with UIDs alone."""
    found = {
        name: {"Pods": [{"UID": uid} for uid in each.uids], "NumPDBViolations": each.violations}
        for name, each in victims.items()
    }
    return _ENCODER.encode({"NodeNameToMetaVictims": found})


def _by_node(raw: msgspec.Raw, uid_of: Callable[[msgspec.Raw], str]) -> dict[str, Victims]:
    if uid_of is _uid_alone:
        with suppress(msgspec.ValidationError):
            exact = _META_BY_NODE.decode(raw) or {}
            _bounded(list(exact))
            return {
                name: Victims(tuple(pod.uid for pod in each.pods or ()), each.violations)
                for name, each in exact.items()
            }
    by_node = _BY_NODE.decode(raw) or {}
    _bounded(list(by_node))
    return {name: _victims(each, uid_of) for name, each in by_node.items()}


def _victims(raw: msgspec.Raw, uid_of: Callable[[msgspec.Raw], str]) -> Victims:
    found = _in_any_case(raw, {"pods", "numpdbviolations"})
    pods = _PODS.decode(found["pods"]) if "pods" in found else None
    count = _COUNT.decode(found["numpdbviolations"]) if "numpdbviolations" in found else None
    return Victims(tuple(map(uid_of, pods or ())), count or 0)


def _uid_alone(raw: msgspec.Raw) -> str:
    found = _in_any_case(raw, {"uid"})
    if "uid" not in found:
        raise ArgsError("decode args: a victim has no UID")
    return _UID.decode(found["uid"])


def _uid_of_pod(raw: msgspec.Raw) -> str:
    return _VICTIM.decode(raw).metadata.uid
