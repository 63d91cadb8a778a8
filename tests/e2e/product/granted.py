"""Rights that deploy/ grants, and whether a call in the audit log is one of them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from controller.kube.api.resources import CALLS
from tests.e2e.lab.audit_log import AuditedCall

_MOMENT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource, everywhere or in one namespace, on all objects or one."""

    verb: str
    group: str
    resource: str
    namespace: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {kind}{'/' + self.name if self.name else ''}{where}"

    def covers(self, call: AuditedCall) -> bool:
        return (
            (self.verb, self.group, self.resource) == (call.verb, call.group, call.resource)
            and self.namespace in (None, call.namespace)
            and self.name in (None, call.name)
        )


def rights_of_calls(namespace: str) -> set[Right]:
    """What the controller says that it calls; `namespace` is its own."""
    return {
        Right(
            call.verb.value,
            call.resource.group,
            call.rbac_name,
            namespace if call.own_namespace else None,
            call.name,
        )
        for call in CALLS
    }


def rights_of_roles(documents: Iterable[dict[str, Any]]) -> set[Right]:
    """What the roles among these objects grant."""
    return {
        Right(verb, group, resource, role["metadata"].get("namespace"), name)
        for role in documents
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [None])
    }


def not_granted(calls: Iterable[AuditedCall], rights: Iterable[Right]) -> list[AuditedCall]:
    """Calls that no right covers."""
    known = tuple(rights)
    return [call for call in calls if not any(right.covers(call) for right in known)]


def not_called(rights: Iterable[Right], calls: Iterable[AuditedCall]) -> list[Right]:
    """Rights that no call has made use of."""
    made = tuple(calls)
    unused = (right for right in rights if not any(right.covers(call) for call in made))
    return sorted(unused, key=str)


def refused_for_good(calls: Iterable[AuditedCall]) -> list[AuditedCall]:
    """Refused calls that were not allowed a moment later.

    A server that has just started refuses what is granted until it has read its roles.
    """
    made = tuple(calls)
    return [x for x in made if not x.allowed and not any(_is_retry(y, x) for y in made)]


def _is_retry(later: AuditedCall, call: AuditedCall) -> bool:
    return (
        later.allowed
        and call.at < later.at <= call.at + _MOMENT
        and replace(later, at=call.at, allowed=call.allowed) == call
    )
