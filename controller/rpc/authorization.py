"""Who may call which gRPC method: one table, default deny.

A method that is not in the table is refused for everybody, also when a service
happens to be registered. Pure: knows full method names and caller kinds only;
must not look at requests, certificates or the fleet.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gpuwarden.identity.spiffe_id import Role
from gpuwarden.reasons import ReasonCode, Refusal


class CallerKind(StrEnum):
    """What a caller has proven to be."""

    AGENT = "agent"
    CONTROLLER = "controller"
    INSPECTOR = "inspector"
    OPERATOR = "operator"
    LOCAL = "local"
    """Could open the controller's unix socket (mode 0600)."""
    NONE = "none"
    """Nothing proven: no certificate, or none that counts."""


KIND_OF_ROLE: Final[Mapping[Role, CallerKind]] = MappingProxyType(
    {role: CallerKind(role.value) for role in Role}
)

_AGENTS: Final = frozenset({CallerKind.AGENT})
_READERS: Final = frozenset({CallerKind.INSPECTOR, CallerKind.OPERATOR, CallerKind.LOCAL})
_INSPECTORS: Final = frozenset({CallerKind.INSPECTOR})
_OPERATORS: Final = frozenset({CallerKind.OPERATOR, CallerKind.LOCAL})
_KNOWN: Final = _AGENTS | _READERS

_FLEET: Final = "/gpuwarden.wire.v1.FleetService"
_OPERATOR: Final = "/gpuwarden.wire.v1.OperatorService"
_PLACEMENT: Final = "/gpuwarden.wire.v1.PlacementService"
_SUPPORT: Final = "/gpuwarden.wire.v1.SupportService"
_HEALTH: Final = "/grpc.health.v1.Health"

ALLOWED_CALLERS: Final[Mapping[str, frozenset[CallerKind]]] = MappingProxyType(
    {
        "/gpuwarden.wire.v1.AttestationService/Attest": _AGENTS,
        f"{_FLEET}/ListNodes": _READERS,
        f"{_FLEET}/GetNode": _READERS,
        f"{_FLEET}/WatchNodes": _READERS,
        f"{_FLEET}/ListGpus": _READERS,
        f"{_FLEET}/ListClasses": _READERS,
        f"{_FLEET}/GetClass": _READERS,
        f"{_FLEET}/ExplainNode": _READERS,
        f"{_FLEET}/FitPod": _READERS,
        f"{_OPERATOR}/AcceptNode": _OPERATORS,
        f"{_OPERATOR}/QuarantineNode": _OPERATORS,
        f"{_OPERATOR}/ReleaseNode": _OPERATORS,
        f"{_OPERATOR}/ReleaseGpu": _OPERATORS,
        f"{_PLACEMENT}/ListReservations": _READERS,
        f"{_PLACEMENT}/ExplainPod": _READERS,
        f"{_SUPPORT}/Collect": _READERS,
        f"{_HEALTH}/Check": _KNOWN,
        f"{_HEALTH}/List": _KNOWN,
        f"{_HEALTH}/Watch": _KNOWN,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _INSPECTORS,
    }
)
"""Full method name -> caller kinds that may call it."""


def authorize(method: str, caller: CallerKind) -> Refusal | None:
    """None when `caller` may call `method`, else ROLE_DENIED; unknown methods are denied."""
    if caller in ALLOWED_CALLERS.get(method, frozenset()):
        return None
    return Refusal(ReasonCode.ROLE_DENIED, f"{caller} may not call {method}")


def authorization_document() -> str:
    """The table as Markdown: docs/authorization.md is exactly this text."""
    kinds = tuple(CallerKind)
    lines = [
        "# Who may call what over gRPC",
        "",
        "Generated from `controller/rpc/authorization.py`; do not edit. Everything that is not",
        "listed is refused with `ROLE_DENIED`. `local` is the unix socket of the controller",
        "(mode 0600), `none` a caller without a certificate that counts; the other kinds come",
        "from the SPIFFE ID of the client certificate (`…/gpuwarden/<kind>/<name>`).",
        "",
        "| method | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for method, allowed in ALLOWED_CALLERS.items():
        marks = ("yes" if kind in allowed else "no" for kind in kinds)
        lines.append(f"| `{method}` | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
