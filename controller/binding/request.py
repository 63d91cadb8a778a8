"""A Binding as the API server hands it to the gate: `pods/binding`, or the old `bindings`. Pure.

Source: core/v1 Binding. A Binding has neither the pod's spec nor, when made by hand, its UID;
its annotations and labels land on the pod together with the node's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from controller.admission.review import AdmissionRequest

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


def _decoded(raw: msgspec.Raw | None) -> _Binding:
    try:
        return _BINDING.decode(b"null" if raw is None else raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BindingDecodeError(f"not a Binding: {error}") from None
