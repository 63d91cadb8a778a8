"""The rights that people of the cluster need, and the roles that these make. Pure.

The resource `fleet` of the group `gpuwarden.dev` exists in RBAC alone: nothing serves it. So a role
is given by a ClusterRole and a binding, as everything else in the cluster.
"""

from dataclasses import dataclass
from typing import Final

from controller.access import ALLOWED_CALLERS, CallerKind, Person

GROUP: Final = "gpuwarden.dev"
FLEET: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource, in a namespace or in the whole cluster."""

    verb: str
    resource: str
    group: str = ""
    """Empty for the core group."""
    namespace: str = ""
    """Empty for a resource of the cluster."""
    name: str = ""
    """Empty for all objects."""

    def __str__(self) -> str:
        group = f" in API group {self.group}" if self.group else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f'verb "{self.verb}" on "{self.resource}"{group}{where}'


INSPECT: Final = Right("inspect", FLEET, GROUP)
OPERATE: Final = Right("operate", FLEET, GROUP)
CLUSTER_ROLES: Final = {INSPECT: "gpuwarden-inspector", OPERATE: "gpuwarden-operator"}
"""What ships each right."""


def read_pods(namespace: str, name: str = "") -> Right:
    """The right to read the pods of a namespace, or the one pod of this name."""
    return Right("get", "pods", namespace=namespace, name=name)


@dataclass(frozen=True, slots=True)
class Way:
    """A right that opens a method, and as whom."""

    right: Right
    kind: CallerKind


_OPERATE: Final = Way(OPERATE, CallerKind.OPERATOR)
_INSPECT: Final = Way(INSPECT, CallerKind.INSPECTOR)


def ways_to(method: str) -> tuple[Way, ...]:
    """The rights of which one opens a method; none for a method that is not for people."""
    allowed = ALLOWED_CALLERS.get(method, frozenset())
    if CallerKind.INSPECTOR in allowed:
        return (_INSPECT,)
    return (_OPERATE,) if CallerKind.OPERATOR in allowed else ()


def is_for_tenants(method: str) -> bool:
    """Whether somebody without a role may call it, about pods that they may read."""
    return CallerKind.TENANT in ALLOWED_CALLERS.get(method, frozenset())


def missing(person: Person, method: str, right: Right) -> str:
    """Why a person may not call a method, and which rule would let them."""
    role = CLUSTER_ROLES.get(right)
    given = f" (ClusterRole {role})" if role else ""
    return f"{person.username} may not call {method}: needs {right}{given}"


def review_of(person: Person, right: Right) -> dict[str, object]:
    """The spec of a SubjectAccessReview (authorization.k8s.io/v1)."""
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "namespace": right.namespace,
        "name": right.name,
    }
    return {
        "user": person.username,
        "groups": list(person.groups),
        "uid": person.uid,
        "extra": {key: list(values) for key, values in person.extra},
        "resourceAttributes": {key: text for key, text in attributes.items() if text},
    }
