"""What is kept of each object of the cluster: the fields that something here uses. Pure.

Unknown fields are skipped while they are decoded. An object that lacks its name, UID or
version, or whose fields have other types than the API's, is an error: the copy cannot be
known to be whole without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from controller.admission.hint import FITS
from controller.admission.pod_view import AdmittedPod, decode_admitted
from controller.fleet.directory import KnownNode, Taint
from controller.kube.errors import ApiError, error_from_event
from controller.kube.reflection import Entry, Event, EventKind
from controller.kube.resources import NAMESPACES, NODES, PODS, Resource
from controller.ledger.adoption import LivePod
from controller.ledger.record import PodRef, in_claiming_order
from controller.ledger.reservation_id import is_early_id
from controller.ledger.states import Origin
from controller.scheduling.pod import Pod, decode_pod
from controller.scheduling.requirements import Requirements, RequirementsInvalid, parse_requirements
from controller.scheduling.reserved_keys import MANAGED_EFFECT, MANAGED_TAINT
from controller.scheduling.share_group import controlling_owner, share_group
from controller.scheduling.wish_keys import (
    ASSIGNED_UUIDS,
    HINT_LABEL_PREFIX,
    MAP_NAME,
    RESERVATION_ID,
    WishRules,
)

T = TypeVar("T")

ENFORCE_LABEL: Final = "gpuwarden.dev/enforce"


class Metadata(msgspec.Struct, rename="camel", gc=False):
    """meta/v1 ObjectMeta, as far as it is used."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Taint(msgspec.Struct, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct, gc=False):
    taints: list[_Taint] | None = None


class _Node(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


class _Namespace(msgspec.Struct, gc=False):
    metadata: Metadata


class _PodStatus(msgspec.Struct, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: Metadata
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, gc=False):
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the cluster."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty until it is bound."""
    has_ended: bool
    """Succeeded or Failed: it holds nothing any more."""
    asks: bool
    """It carries a wish, or one that cannot be read."""
    uses_gpus: bool
    """In an enforced namespace it would be guarded."""
    waiting: AdmittedPod | None = None
    """The whole pod, while it is not bound and has not ended: the gate judges it."""
    held: LivePod | None = None
    """What it was told that it holds, once it is bound; nobody has checked the id yet."""
    needs: Requirements | RequirementsInvalid | None = None
    """What it asks for while it is bound, as in an enforced namespace; None for nothing of ours."""


@dataclass(frozen=True, slots=True)
class KnownNamespace:
    """A namespace of the cluster."""

    enforced: bool


class Kind(Generic[T]):
    """How one kind of object is read from JSON."""

    def __init__(self, resource: Resource, read: Callable[[bytes], tuple[Metadata, T]]) -> None:
        self.resource = resource
        self._read = read

    def entry(self, body: bytes | msgspec.Raw) -> tuple[str, Entry[T]]:
        """Key and entry of one object; raises ApiError."""
        try:
            metadata, value = self._read(bytes(body))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ApiError(f"{self.resource.plural}: {_cause(error)}", 422) from None
        if not (metadata.name and metadata.uid and metadata.resource_version):
            raise ApiError(f"{self.resource.plural}: an object without name, UID or version", 422)
        key = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        return key, Entry(metadata.resource_version, metadata.uid, value)

    def event(self, line: bytes) -> Event[T]:
        """One line of a watch; raises ApiError, the server's own for an ERROR event."""
        try:
            found = _EVENT.decode(line)
            if found.type == "BOOKMARK":
                version = _BOOKMARK.decode(found.object).metadata.resource_version
                return Event(EventKind.BOOKMARK, version)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ApiError(f"{self.resource.plural}: {_cause(error)}", 422) from None
        if found.type == "ERROR":
            raise error_from_event(bytes(found.object))
        if found.type not in _KINDS:
            raise ApiError(f"{self.resource.plural}: an event of unknown type", 422)
        key, entry = self.entry(found.object)
        return Event(_KINDS[found.type], entry.version, key, entry)


_KINDS: Final = {
    "ADDED": EventKind.APPLIED,
    "MODIFIED": EventKind.APPLIED,
    "DELETED": EventKind.DELETED,
}
_EVENT: Final = msgspec.json.Decoder(_Event)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)
_NODE: Final = msgspec.json.Decoder(_Node)
_NAMESPACE: Final = msgspec.json.Decoder(_Namespace)
_POD: Final = msgspec.json.Decoder(_Pod)
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def _read_node(body: bytes) -> tuple[Metadata, KnownNode]:
    node = _NODE.decode(body)
    found = node.metadata
    managed = any(map(_is_ours, node.spec.taints or ()))
    labels = found.labels or {}
    hints = frozenset(x for x in labels if x.startswith(HINT_LABEL_PREFIX) and labels[x] == FITS)
    taints = tuple(
        Taint(x.key, x.value, x.effect) for x in node.spec.taints or () if x.effect in _HARD
    )
    known = KnownNode(found.uid, managed, labels.get(MAP_NAME), hints, labels, taints)
    return found, known


def _is_ours(taint: _Taint) -> bool:
    return taint.key == MANAGED_TAINT and taint.effect == MANAGED_EFFECT


def pod_kind(rules: WishRules) -> Kind[KnownPod]:
    """Pods, with what `rules` make of their wishes."""

    def read(body: bytes) -> tuple[Metadata, KnownPod]:
        head, pod = _POD.decode(body), decode_pod(body)
        found, node = head.metadata, pod.spec.node_name or ""
        has_ended = head.status.phase in _ENDED
        wishes = parse_requirements(pod, rules, enforced=False)
        asks, strict = _is_guarded(wishes), parse_requirements(pod, rules, enforced=True)
        uses_gpus = asks or _is_guarded(strict)
        return found, KnownPod(
            found.namespace,
            found.name,
            found.uid,
            node=node,
            has_ended=has_ended,
            asks=asks,
            uses_gpus=uses_gpus,
            waiting=None if node or has_ended else decode_admitted(body),
            held=_held(found, node, pod, wishes),
            needs=strict if node and uses_gpus and not has_ended else None,
        )

    return Kind(PODS, read)


def _held(
    found: Metadata, node: str, pod: Pod, wishes: Requirements | RequirementsInvalid
) -> LivePod | None:
    reservation = pod.annotations.get(RESERVATION_ID)
    if not node or reservation is None:
        return None
    ref = PodRef(found.namespace, found.name, found.uid, controlling_owner(pod))
    gpus = in_claiming_order(tuple(pod.annotations.get(ASSIGNED_UUIDS, "").split(",")))
    origin = Origin.ADMISSION if is_early_id(reservation) else Origin.GATE
    return LivePod(ref, node, reservation, gpus, origin, share_group(pod, wishes))


def _is_guarded(wishes: Requirements | RequirementsInvalid) -> bool:
    return isinstance(wishes, RequirementsInvalid) or wishes.guarded


def _read_namespace(body: bytes) -> tuple[Metadata, KnownNamespace]:
    found = _NAMESPACE.decode(body).metadata
    return found, KnownNamespace((found.labels or {}).get(ENFORCE_LABEL) == "true")


def _cause(error: Exception) -> str:
    """A decoder's words name fields and types, never values."""
    return f"an object that cannot be read: {error}"[:256]


NODE_KIND: Final = Kind(NODES, _read_node)
NAMESPACE_KIND: Final = Kind(NAMESPACES, _read_namespace)
