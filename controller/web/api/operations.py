"""The operations of the HTTP API that are older than v1: route, caller, parameters. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from controller.access import BoundPod, Caller, CallerKind, TokenIdentity
from controller.web.api.documents import (
    Devices,
    Done,
    FinalizeRequest,
    Nodes,
    PageRequest,
    Reservations,
)
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode, Refusal

# --- callers

_ACCOUNT: Final = "system:serviceaccount:"


class Access(StrEnum):
    """What an operation asks of its caller."""

    ANYBODY = "anybody"
    READER = "reader"
    HOLDER = "holder"
    """The very pod that the request names, or an operator."""
    VIEWER = "viewer"
    """A reader, or a person about pods of a namespace that they may read."""


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """A caller that is known.

    A token for this audience names the account and the pod that it was made for; that alone gives
    nothing but the right to speak for this one pod. Reading is for inspectors, operators and the
    accounts that `api.readers` names: who has which GPU is not every pod's business.
    """

    name: str
    """SPIFFE ID, or user name of the token."""
    reads: bool
    operates: bool
    pod: BoundPod | None = None
    has_role: bool = False
    """Whether an SVID proves it to be an inspector or operator."""

    @property
    def key(self) -> str:
        """Under which its requests are counted."""
        return self.name if self.pod is None else f"{self.name} {self.pod.uid}"

    def speaks_as_pod(self, access: Access) -> bool:
        """Whether a pod's token is all that lets it call; a token of a reader's pod is more."""
        return self.pod is not None and not (access is Access.READER and self.reads)


def svid_caller(caller: Caller) -> ApiCaller:
    """The caller behind a client certificate."""
    operates = caller.kind is CallerKind.OPERATOR
    has_role = operates or caller.kind is CallerKind.INSPECTOR
    return ApiCaller(caller.name, reads=has_role, operates=operates, has_role=has_role)


def token_caller(found: TokenIdentity, readers: Collection[str]) -> ApiCaller:
    """The caller behind a token; `readers` are service accounts as `namespace/name`."""
    account = found.username.removeprefix(_ACCOUNT).replace(":", "/")
    reads = found.username.startswith(_ACCOUNT) and account in readers
    return ApiCaller(found.username, reads, operates=False, pod=found.pod)


def access_refusal(caller: ApiCaller, access: Access) -> Refusal | None:
    """Why the caller may not use an operation at all."""
    if access is Access.ANYBODY or (access is Access.READER and caller.reads):
        return None
    if access is Access.HOLDER and (caller.operates or caller.pod is not None):
        return None
    wanted = "a reader" if access is Access.READER else "an operator and has no pod's token"
    return Refusal(ReasonCode.ROLE_DENIED, f"the caller is not {wanted}")


def holder_refusal(caller: ApiCaller, request: FinalizeRequest) -> Refusal | None:
    """Why the caller may not speak for the pod of a request."""
    pod = BoundPod(request.namespace, request.name, request.uid)
    if caller.operates or caller.pod == pod:
        return None
    return Refusal(ReasonCode.ROLE_DENIED, "the caller's token is not of the pod that is named")


# --- operations

MOST_KEYS: Final = 500
"""Of one page."""
RETRIED: Final = frozenset({429, 503})
"""Statuses of answers that say when to ask again."""


class Operation(StrEnum):
    """Under which name an operation is known: `operationId`, and label of metrics."""

    DEVICES = "devices"
    NODES = "nodes"
    RESERVATIONS = "reservations"
    FINALIZE = "finalize"
    OPENAPI = "openapi"
    V1_STATUS = "v1-status"
    V1_FLEET = "v1-fleet"
    V1_NODES = "v1-nodes"
    V1_NODE = "v1-node"
    V1_GPUS = "v1-gpus"
    V1_GPU = "v1-gpu"
    V1_PODS = "v1-pods"
    V1_POD = "v1-pod"
    V1_VERDICTS = "v1-verdicts"
    V1_RESERVATIONS = "v1-reservations"
    V1_CLASSES = "v1-classes"
    V1_AUDIT = "v1-audit"
    V1_CHECKPOINT = "v1-checkpoint"
    V1_PROOF = "v1-proof"
    V1_EVENTS = "v1-events"
    CONSOLE = "console"
    CONSOLE_FORM = "console-form"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request's query or path."""

    name: str
    about: str
    expected: str
    """In an error, after the value that was given."""
    accepts: Callable[[str], bool]
    schema: Mapping[str, Any]
    default: str = ""
    in_path: bool = False


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """What an operation asks and answers."""

    method: str
    path: str
    access: Access
    summary: str
    answer: Any
    """Type of the body of 200."""
    body: Any = None
    """Type of the request's body."""
    is_paged: bool = False
    parameters: tuple[Parameter, ...] = ()
    media: str = "application/json"
    problems: tuple[tuple[int, str], ...] = ()
    """Beside those that any operation has: status and meaning."""


OPERATIONS: Final = {
    Operation.DEVICES: OperationSpec(
        "GET",
        "/devices",
        Access.READER,
        "Devices of accepted evidence by UUID: node, labels, who holds them."
        " A page is of so many nodes",
        Devices,
        is_paged=True,
        problems=((503, "LEDGER_UNAVAILABLE"),),
    ),
    Operation.NODES: OperationSpec(
        "GET",
        "/nodes",
        Access.READER,
        "Nodes by name, and how far they are trusted now",
        Nodes,
        is_paged=True,
    ),
    Operation.RESERVATIONS: OperationSpec(
        "GET",
        "/reservations",
        Access.READER,
        "Reservations by id: pod, node, and the state of each GPU",
        Reservations,
        is_paged=True,
        problems=((503, "LEDGER_UNAVAILABLE"),),
    ),
    Operation.FINALIZE: OperationSpec(
        "POST",
        "/finalize",
        Access.HOLDER,
        "Confirms one GPU of a pod that is bound; the same request again gets the same answer",
        Done,
        body=FinalizeRequest,
        problems=(
            (400, "Names every missing field, or the field that is wrong"),
            (404, "RESERVATION_UNKNOWN"),
            (408, "The body did not arrive in time"),
            (409, "RESERVATION_CONFLICT: another holder, GPU or node; RESERVATION_EXPIRED"),
            (413, "The body is too large"),
            (503, "LEDGER_UNAVAILABLE, or without a code: too many large bodies at once"),
        ),
    ),
    Operation.OPENAPI: OperationSpec(
        "GET", "/openapi.json", Access.ANYBODY, "This document", dict[str, Any]
    ),
}
"""`/healthz` is beside it: it is for probes."""


# --- parameters of pages

MOST_AFTER: Final = 512
"""Characters of `after`: namespace, name and UID of a pod have more than a name has."""
_SHOWN: Final = 80
_DIGITS: Final = len(str(MOST_KEYS))


class QueryError(ValueError):
    """A parameter cannot be used; names it, the value and what was expected."""


def read_query(pairs: Iterable[tuple[str, str]]) -> PageRequest:
    """The page behind `limit` and `after`, each at most once; raises QueryError."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key not in {"limit", "after"}:
            raise QueryError(f"{quote(key, _SHOWN)}: no such parameter, expected limit or after")
        if key in found:
            raise QueryError(f"{key}: given twice, expected once")
        found[key] = value
    return PageRequest(_limit(found.get("limit", str(MOST_KEYS))), _after(found.get("after", "")))


def _limit(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not is_number or not 1 <= int(text) <= MOST_KEYS:
        raise QueryError(f"limit: {quote(text, _SHOWN)}, expected 1 to {MOST_KEYS}")
    return int(text)


def _after(text: str) -> str:
    if len(text) > MOST_AFTER:
        raise QueryError(f"after: expected at most {MOST_AFTER} characters")
    return text
