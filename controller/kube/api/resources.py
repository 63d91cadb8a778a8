"""The resources of the Kubernetes API that the controller uses: calls, objects and errors.

`CALLS`, `CERTIFICATE_CALLS`, `EXPORT_CALLS` and `HINT_CALLS` are the one list of calls: RBAC in
deploy/ grants exactly it, and tests compare it with the rules and with the API server's audit log.
No IO.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from http import HTTPStatus
from typing import Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from controller.certificates.leaves import AUTHORITY_SECRET, TRUST_BUNDLE, leaf_specs
from gpuwarden.dead_letter_files import EXPORTERS
from gpuwarden.redaction import without_secrets

T = TypeVar("T")

GROUP: Final = "gpuwarden.dev"
LEASE_NAME: Final = "gpuwarden-controller"
PODS_WEBHOOKS: Final = "gpuwarden-pods"
BINDINGS_WEBHOOKS: Final = "gpuwarden-bindings"
EXPORT_SHARDS: Final = 8


class Verb(StrEnum):
    """Verbs of RBAC and of the audit log (audit.k8s.io/v1 `verb`)."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource at the version that we speak."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    namespaced: bool = False

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The path of all objects, of a namespace's, or of one."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "".join(f"/{quote(part, safe='')}" for part in parts)


@dataclass(frozen=True, slots=True)
class Call:
    """A verb on a resource; `own` only in the namespace that the controller runs in."""

    verb: Verb
    resource: Resource
    own_namespace: bool = False
    name: str | None = None
    """The one object that is named, where RBAC can say so (it cannot for create)."""
    subresource: str = ""

    @property
    def rbac_name(self) -> str:
        """The resource as rules and the audit log write it, for example `pods/status`."""
        plural = self.resource.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural


NODES: Final = Resource("", "v1", "nodes")
PODS: Final = Resource("", "v1", "pods", namespaced=True)
NAMESPACES: Final = Resource("", "v1", "namespaces")
ENROLLMENTS: Final = Resource(GROUP, "v1alpha1", "nodeenrollments")
RESERVATIONS: Final = Resource(GROUP, "v1alpha1", "gpureservations")
RESERVATION_STATUS: Final = Resource(GROUP, "v1alpha1", "gpureservations/status")
"""As RBAC calls it; no path is made of it."""
ATTESTATION_CLASSES: Final = Resource(GROUP, "v1alpha1", "attestationclasses")
ATTESTATION_POLICIES: Final = Resource(GROUP, "v1alpha1", "attestationpolicies")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)
EVENTS: Final = Resource("events.k8s.io", "v1", "events", namespaced=True)
CORE_EVENTS: Final = Resource("", "v1", "events", namespaced=True)
"""The same objects, whose text can be changed this way."""
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews")
SUBJECT_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")
"""Both are asked, never stored."""
CLIENT_CA_NAMESPACE: Final = "kube-system"
CLIENT_CA_NAME: Final = "extension-apiserver-authentication"
"""The API server writes there which CAs it takes client certificates of."""
ACCESS_NAME: Final = "gpuwarden-access"
"""What people need to verify the controller, in its own namespace."""
SECRETS: Final = Resource("", "v1", "secrets", namespaced=True)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", namespaced=True)
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"
)
VALIDATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"
)

PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses")

EVICTION: Final = "eviction"
"""Of pods: policy/v1 Eviction."""

CALLS: Final = (
    *(Call(verb, kind) for kind in (NODES, PODS, NAMESPACES) for verb in (Verb.LIST, Verb.WATCH)),
    Call(Verb.PATCH, NODES),
    Call(Verb.GET, PODS),
    Call(Verb.PATCH, PODS),
    Call(Verb.CREATE, PODS, subresource=EVICTION),
    *(
        Call(verb, ENROLLMENTS)
        for verb in (Verb.GET, Verb.LIST, Verb.WATCH, Verb.CREATE, Verb.PATCH)
    ),
    *(
        Call(verb, RESERVATIONS)
        for verb in (Verb.GET, Verb.LIST, Verb.WATCH, Verb.CREATE, Verb.PATCH, Verb.DELETE)
    ),
    Call(Verb.PATCH, RESERVATION_STATUS),
    *(
        Call(verb, kind)
        for kind in (ATTESTATION_CLASSES, ATTESTATION_POLICIES)
        for verb in (Verb.LIST, Verb.WATCH)
    ),
    Call(Verb.PATCH, ATTESTATION_CLASSES, subresource="status"),
    Call(Verb.PATCH, ATTESTATION_POLICIES, subresource="status"),
    Call(Verb.CREATE, LEASES, own_namespace=True),
    Call(Verb.GET, LEASES, own_namespace=True, name=LEASE_NAME),
    Call(Verb.PATCH, LEASES, own_namespace=True, name=LEASE_NAME),
    Call(Verb.CREATE, EVENTS),
    Call(Verb.PATCH, CORE_EVENTS),
    Call(Verb.CREATE, TOKEN_REVIEWS),
    Call(Verb.CREATE, SUBJECT_ACCESS_REVIEWS),
    Call(Verb.GET, CONFIG_MAPS, name=CLIENT_CA_NAME),
    Call(Verb.GET, CONFIG_MAPS, own_namespace=True, name=ACCESS_NAME),
    Call(Verb.PATCH, CONFIG_MAPS, own_namespace=True, name=ACCESS_NAME),
)

CERTIFICATE_CALLS: Final = (
    Call(Verb.CREATE, SECRETS, own_namespace=True),
    *(
        Call(verb, SECRETS, own_namespace=True, name=name)
        for name in (AUTHORITY_SECRET, *(spec.secret for spec in leaf_specs("")))
        for verb in (Verb.GET, Verb.PATCH)
    ),
    Call(Verb.CREATE, CONFIG_MAPS, own_namespace=True),
    *(
        Call(verb, CONFIG_MAPS, own_namespace=True, name=TRUST_BUNDLE)
        for verb in (Verb.GET, Verb.PATCH)
    ),
    *(
        Call(verb, kind, name=name)
        for kind, name in (
            (MUTATING_WEBHOOKS, PODS_WEBHOOKS),
            (MUTATING_WEBHOOKS, BINDINGS_WEBHOOKS),
            (VALIDATING_WEBHOOKS, PODS_WEBHOOKS),
        )
        for verb in (Verb.GET, Verb.PATCH)
    ),
)
"""With `certificates.selfManaged` besides. A name cannot limit create."""

EXPORT_DOCUMENTS: Final = (
    "gpuwarden-export-s3",
    *(f"gpuwarden-export-{name}-{shard}" for name in EXPORTERS for shard in range(EXPORT_SHARDS)),
)
"""ConfigMaps that say how far exporters are."""

EXPORT_CALLS: Final = (
    Call(Verb.CREATE, CONFIG_MAPS, own_namespace=True),
    *(
        Call(verb, CONFIG_MAPS, own_namespace=True, name=name)
        for name in EXPORT_DOCUMENTS
        for verb in (Verb.GET, Verb.PATCH)
    ),
)
"""With `export.exporters` besides."""

HINT_CALLS: Final = tuple(Call(verb, PRIORITY_CLASSES) for verb in (Verb.LIST, Verb.WATCH))
"""With `hints.schedulerUrl` besides."""


def with_query(path: str, **query: str | int | None) -> str:
    """The path with the parameters that have a value."""
    text = urlencode({key: value for key, value in query.items() if value is not None})
    return f"{path}?{text}" if text else path


# --- objects
# An object that lacks its name, UID or version, or whose fields have other types than the
# API's, is an error: without it a cache cannot be known to be whole.


class EventKind(Enum):
    """What an event of a watch says."""

    APPLIED = auto()
    """ADDED or MODIFIED: they mean the same to a cache."""
    DELETED = auto()
    BOOKMARK = auto()


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object, reduced to the fields that the controller uses."""

    version: str
    uid: str
    value: T


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event; `entry` is None for a bookmark, whose only news is the version."""

    kind: EventKind
    version: str
    key: str = ""
    entry: Entry[T] | None = None


class Metadata(msgspec.Struct, rename="camel", gc=False):
    """meta/v1 ObjectMeta, as far as it is used."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, gc=False):
    metadata: Metadata


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

    def event(self, line: bytes) -> WatchEvent[T]:
        """One line of a watch; raises ApiError, the server's own for an ERROR event."""
        try:
            found = _EVENT.decode(line)
            if found.type == "BOOKMARK":
                version = _BOOKMARK.decode(found.object).metadata.resource_version
                return WatchEvent(EventKind.BOOKMARK, version)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ApiError(f"{self.resource.plural}: {_cause(error)}", 422) from None
        if found.type == "ERROR":
            raise error_from_event(bytes(found.object))
        if found.type not in _KINDS:
            raise ApiError(f"{self.resource.plural}: an event of unknown type", 422)
        key, entry = self.entry(found.object)
        return WatchEvent(_KINDS[found.type], entry.version, key, entry)


_KINDS: Final = {
    "ADDED": EventKind.APPLIED,
    "MODIFIED": EventKind.APPLIED,
    "DELETED": EventKind.DELETED,
}
_EVENT: Final = msgspec.json.Decoder(_Event)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)


def _cause(error: Exception) -> str:
    """A decoder's words name fields and types, never values."""
    return f"an object that cannot be read: {error}"[:256]


# --- errors
# Nothing of an answer is kept but the fields of a `Status` object, cut short and without what
# looks like a secret: other bodies come from proxies and may hold anything.

MAX_TEXT: Final = 256
MAX_RETRY_AFTER_S: Final = 60.0
_NO_ANSWER: Final = 0
_WAIT: Final = frozenset({_NO_ANSWER, 401, 403, 408, 429})


class ApiError(Exception):
    """A call failed; `status` is the HTTP status, 0 where there was no answer."""

    def __init__(
        self, text: str, status: int = _NO_ANSWER, reason: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """`Status.reason`, for example AlreadyExists; empty where the body was no Status."""
        self.retry_after_s = retry_after_s
        """How long the server wants us to stay away; 0 where it did not say."""

    @property
    def is_gone(self) -> bool:
        """The resourceVersion or the continue token is too old (410 Expired or Gone)."""
        return self.status == HTTPStatus.GONE

    @property
    def is_conflict(self) -> bool:
        """The object has another resourceVersion, or exists already (409)."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def is_not_found(self) -> bool:
        """There is no such object (404)."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def says_wait(self) -> bool:
        """The request was in order and the server could not take it: ask the same again."""
        return self.status in _WAIT or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class AnswerTooLargeError(ApiError):
    """The answer is larger than anybody here would read; nothing of it counts."""


class _Details(msgspec.Struct, rename="camel", gc=False):
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, gc=False):
    """meta/v1 Status, as far as it is used."""

    kind: str = ""
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_DECODER: Final = msgspec.json.Decoder(Status)


def error_from_answer(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error behind an answer that is no success."""
    found = _status_in(body)
    wait = _seconds(retry_after)
    if found is None:
        return ApiError(f"the API server answered {status}", status, "", wait)
    if not wait and found.details is not None:
        wait = _bounded(found.details.retry_after_seconds or 0.0)
    return ApiError(
        f"the API server answered {status} {cleaned(found.reason or '')}:"
        f" {cleaned(found.message or '')}",
        status,
        cleaned(found.reason or ""),
        wait,
    )


def error_from_event(body: bytes) -> ApiError:
    """The error behind the object of an ERROR event of a watch."""
    found = _status_in(body)
    return error_from_answer((found.code if found else None) or 500, body)


def cleaned(text: str) -> str:
    """Printable ASCII without secrets, at most MAX_TEXT characters."""
    plain = without_secrets(text[: 4 * MAX_TEXT])
    return "".join(x if x.isascii() and x.isprintable() else "?" for x in plain)[:MAX_TEXT]


def _status_in(body: bytes) -> Status | None:
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.kind == "Status" else None


def _seconds(text: str | None) -> float:
    """Of Retry-After; the API server sends whole seconds, a date is not looked at."""
    return _bounded(float(text)) if text and text.isascii() and text.isdigit() else 0.0


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
