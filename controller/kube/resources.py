"""The resources of the Kubernetes API that the controller touches, and every call it makes.

`CALLS` is the one list: RBAC in deploy/ grants exactly it, and tests compare it with the
rules and with what an API server's audit log has seen. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, urlencode

GROUP: Final = "gpuwarden.dev"
LEASE_NAME: Final = "gpuwarden-controller"


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
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews")
"""Asked, never stored."""

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
    Call(Verb.PATCH, EVENTS),
    Call(Verb.CREATE, TOKEN_REVIEWS),
)


def with_query(path: str, **query: str | int | None) -> str:
    """The path with the parameters that have a value."""
    text = urlencode({key: value for key, value in query.items() if value is not None})
    return f"{path}?{text}" if text else path
