"""A Binding as the API server sends it, the stored pod that it names, and what is written into it.

Pure. Must not decide whether the pod may be bound.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol

import msgspec

from controller.admission.early_reservation import cdi_names
from controller.admission.pod import AdmittedPod
from controller.admission.review import AdmissionRequest, Operation, Value, Verb, pointer
from controller.ledger.record import PodGone, PodRef, PodSeen, PodSight
from controller.ledger.restore import LivePod
from controller.placement.keys import (
    ASSIGNED_UUIDS,
    ATTESTATION_HASH,
    CDI_ASSIGNMENT,
    GIVEN_GUARANTEE,
    GIVEN_NODE,
    GUARANTEE_LIMIT,
    RESERVATION_ID,
    RESULT_ALIASES,
    RUNTIME_DEVICE_PREFIXES,
    SEED_ASSIGN,
    SEED_LABEL_PREFIX,
    ReservedKeys,
)
from controller.placement.node_verdict import Promise
from controller.placement.requirements import Requirements, RequirementsInvalid
from gpuwarden.policy.texts import shown
from gpuwarden.reasons import ReasonCode, Refusal

# --- the request
# `pods/binding`, or the older `bindings`. Source: core/v1 Binding. A Binding does not carry the
# pod's spec, nor, when made by hand, its UID. Its annotations and labels are stored on the pod
# together with the node's name.

_MAX_CHARS: Final = 253
_Name = Annotated[str, msgspec.Meta(max_length=_MAX_CHARS)]
_NODE_KINDS: Final = frozenset({"", "Node"})
_RESOURCES: Final = frozenset({("pods", "binding"), ("bindings", "")})


class BindingDecodeError(ValueError):
    """The request is no Binding that could be judged; the text quotes nothing of it."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class _Metadata(_Object, frozen=True, gc=False):
    name: _Name = ""
    uid: _Name = ""
    resource_version: _Name = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Target(_Object, frozen=True, gc=False):
    kind: _Name = ""
    name: _Name = ""


class _Binding(_Object, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    target: _Target = _Target()


@dataclass(frozen=True, slots=True)
class BindingRequest:
    """Who wants which pod on which node."""

    namespace: str
    pod: str
    node: str
    uid: str | None = None
    """The pod's, where the caller demands it."""
    version: str | None = None
    """The pod's resourceVersion, where the caller demands it."""
    annotations: Mapping[str, str] | None = None
    """None where the Binding has none: a patch then has to make them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    dry_run: bool = False


_BINDING: Final = msgspec.json.Decoder(_Binding)


def read_binding(request: AdmissionRequest) -> BindingRequest:
    """The Binding of a request; raises BindingDecodeError."""
    kind = (request.resource.resource, request.sub_resource)
    if kind not in _RESOURCES or request.operation != "CREATE":
        raise BindingDecodeError("not a Binding: correct the webhook's rules")
    binding = _decoded(request.object)
    metadata, target = binding.metadata, binding.target
    if request.name and metadata.name not in {"", request.name}:
        raise BindingDecodeError("metadata.name: another one than in the request's path")
    pod = request.name or metadata.name
    if not (request.namespace and pod):
        raise BindingDecodeError("metadata.name: expected a pod's name")
    if target.kind not in _NODE_KINDS or not target.name:
        raise BindingDecodeError("target: expected a Node with a name")
    return BindingRequest(
        namespace=request.namespace,
        pod=pod,
        node=target.name,
        uid=metadata.uid or None,
        version=metadata.resource_version or None,
        annotations=metadata.annotations,
        labels=metadata.labels or {},
        user=request.user_info.username,
        dry_run=bool(request.dry_run),
    )


def _decoded(raw: msgspec.Raw) -> _Binding:
    try:
        return _BINDING.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BindingDecodeError(f"not a Binding: {error}") from None


# --- the pod as it is stored


class PodsUnavailableError(Exception):
    """The API server did not say whether there is such a pod."""


@dataclass(frozen=True, slots=True)
class StoredPod:
    """One version of a pod."""

    uid: str
    version: str
    """Its resourceVersion: what is decided about it holds for no other one."""
    node: str
    """Empty while it is not bound."""
    has_ended: bool
    pod: AdmittedPod | None
    """None where it is bound or has ended: then nothing is decided about it."""


def stale_binding(request: BindingRequest, stored: StoredPod) -> Refusal | None:
    """Why the Binding cannot be about the pod as it is stored."""
    if request.uid not in {None, stored.uid}:
        return _stale("the pod is another one by now")
    if stored.has_ended:
        return _stale("the pod has ended")
    if stored.node:
        return _stale("the pod is bound already")
    if request.version not in {None, stored.version}:
        return _stale("the pod has changed since")
    return None


def _stale(text: str) -> Refusal:
    return Refusal(ReasonCode.BINDING_STALE, text)


# --- what is written into the Binding


@dataclass(frozen=True, slots=True)
class Result:
    """What gpuwarden writes into a pod about its place."""

    node: str
    attestation_hash: str | None
    promise: Promise
    gpus: tuple[str, ...] = ()
    """In the order in which the container sees them; none where kubelet chooses, or none are
    asked for."""
    reservation: str | None = None


def result_annotations(result: Result, pod: AdmittedPod) -> Mapping[str, str]:
    """The annotations of a result, and their aliases where the pod used the seeds' spelling."""
    found = {GIVEN_NODE: result.node, GIVEN_GUARANTEE: result.promise.guarantee.value}
    if result.promise.limit is not None:
        found[GUARANTEE_LIMIT] = result.promise.limit.value
    if result.attestation_hash is not None:
        found[ATTESTATION_HASH] = result.attestation_hash
    if result.reservation is not None:
        found |= {ASSIGNED_UUIDS: ",".join(result.gpus), RESERVATION_ID: result.reservation}
    if any(label.startswith(SEED_LABEL_PREFIX) for label in pod.labels):
        found |= {alias: found[key] for alias, key in RESULT_ALIASES.items() if key in found}
    if result.gpus and _wants_cdi(pod):
        found[CDI_ASSIGNMENT] = cdi_names(result.gpus)
    return found


def same_pod_patch(stored: StoredPod) -> tuple[Operation, ...]:
    """The precondition that the pod is no other one than the one that was judged."""
    return (Operation(Verb.ADD, pointer("metadata", "uid"), stored.uid),)


def binding_patch(
    request: BindingRequest, stored: StoredPod, annotations: Mapping[str, str]
) -> tuple[Operation, ...]:
    """Annotations, and the preconditions that the pod is still the one that was judged."""
    preconditions = (
        *same_pod_patch(stored),
        Operation(Verb.ADD, pointer("metadata", "resourceVersion"), stored.version),
    )
    place = pointer("metadata", "annotations")
    if not request.annotations:
        made: Value = dict(sorted(annotations.items()))
        return (*preconditions, Operation(Verb.ADD, place, made))
    return (
        *preconditions,
        *(
            Operation(Verb.ADD, place + pointer(key), text)
            for key, text in sorted(annotations.items())
        ),
    )


def _wants_cdi(pod: AdmittedPod) -> bool:
    return pod.labels.get(SEED_ASSIGN) in {"", "true"}


# --- keys that a caller may not set


def forged_key(request: BindingRequest, keys: ReservedKeys) -> Refusal | None:
    """A key that the caller may not set: gpuwarden's, a map's ordinal, or a container runtime's."""
    for key in _given(request):
        is_device = key.startswith(RUNTIME_DEVICE_PREFIXES)
        if keys.is_ours(key) or key in keys.ordinals or is_device:
            text = f"{shown(key)} is not for a Binding to say"
            return Refusal(ReasonCode.BINDING_FORGED, text)
    return None


def _given(request: BindingRequest) -> Iterable[str]:
    return sorted({*(request.annotations or ()), *request.labels})


# --- the pods of the cluster


@dataclass(frozen=True, slots=True)
class BoundPod:
    """From the cache of the pods."""

    pod: PodRef
    """With name and UID."""
    node: str
    needs: Requirements | RequirementsInvalid | None
    """None for a pod that is not managed."""


class StoredPods(Protocol):
    """The pods of the cluster, by name. Implemented by `kube.pods`."""

    def known(self, namespace: str, name: str) -> StoredPod | None:
        """From the cache; None where it does not know, or is too old to be relied on."""

    async def read(self, namespace: str, name: str) -> StoredPod | None:
        """At its newest, past the cache; raises PodsUnavailableError."""


class PodStates(Protocol):
    """The pods of the cluster, by UID. Implemented by `kube.pods`."""

    def sight(self, pod: PodRef) -> PodSight:
        """From the cache; that it lacks a pod proves nothing."""

    def live(self) -> tuple[LivePod, ...]:
        """Bound pods that have not ended and say that they hold GPUs, from the cache."""

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        """The pod of that UID at its newest; raises PodsUnavailableError."""

    async def requeue(self, pod: PodRef) -> PodSeen | PodGone:
        """Change the pod, so that older Bindings of it fail, and return it as stored.

        Raises PodsUnavailableError.
        """

    def reread(self) -> None:
        """Make the cache again, soon."""


class BoundPods(Protocol):
    """The bound pods of the cluster that have not ended, from the cache.

    Implemented by `kube.pods`.
    """

    def named(self, namespace: str, name: str) -> BoundPod | None:
        """The pod of that name."""

    def with_uid(self, uid: str) -> BoundPod | None:
        """The pod of that UID."""

    def managed(self, node: str) -> Iterable[BoundPod]:
        """The managed pods of a node."""
