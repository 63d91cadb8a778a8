"""Every operation of the HTTP API, each once: route, who may call it, parameters, OpenAPI. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

import msgspec

from controller.access import BoundPod, Caller, CallerKind, TokenIdentity
from controller.web.documents import (
    Devices,
    Done,
    FinalizeRequest,
    Nodes,
    PageRequest,
    Problem,
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

_MOST_CHARS: Final = 253
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
    if len(text) > _MOST_CHARS:
        raise QueryError(f"after: expected at most {_MOST_CHARS} characters")
    return text


# --- OpenAPI 3.1.1, whose schemas are JSON Schema 2020-12, as msgspec makes

VERSION: Final = "v1alpha1"
"""Of the API; fields may be added."""
_REFS: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_WHO: Final = {
    Access.READER: "For inspectors, operators, and the accounts of `api.readers`.",
    Access.HOLDER: "For the pod that is named, by a token bound to it, and for operators.",
    Access.ANYBODY: "For anybody.",
}
_AUTHENTICATED: Final = (
    (401, "Neither a token that counts for `api.audience` nor an SVID; or one that does not count"),
    (403, "ROLE_DENIED"),
    (429, "LIMIT_RATE: too many requests of this caller"),
    (503, "TOKEN_REVIEW_UNAVAILABLE, or without a code: no answer in time. Ask again"),
)
_FAULT: Final = (500, "A fault of the controller; it stands in its log")

_RETRY: Final = {
    "Retry-After": {
        "description": "Seconds after which it may be asked again",
        "schema": {"type": "integer", "minimum": 1},
    }
}


@cache
def openapi_json() -> bytes:
    """The document, indented, with a line feed at its end."""
    text = msgspec.json.format(msgspec.json.encode(openapi_document()), indent=2)
    return text + b"\n"


def openapi_document() -> dict[str, Any]:
    """The document."""
    types = [x for each in OPERATIONS.values() for x in (each.answer, each.body) if x is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_REFS)
    schema_of = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation, each in OPERATIONS.items():
        described = _operation(operation, each, schema_of)
        paths.setdefault(each.path, {})[each.method.lower()] = described
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "gpuwarden",
            "version": VERSION,
            "summary": "Devices, nodes and reservations, and a pod's own confirmation",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A service account's token for the audience of `api.audience`",
                },
                "svid": {"type": "mutualTLS", "description": "X509-SVID, role in its path"},
            },
        },
    }


def _operation(
    operation: Operation, each: OperationSpec, schema_of: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.value,
        "summary": each.summary,
        "description": _WHO[each.access],
        "security": [] if each.access is Access.ANYBODY else [{"token": []}, {"svid": []}],
        "responses": _answers(each, schema_of),
    }
    if each.is_paged:
        found["parameters"] = _paging()
    if each.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": schema_of[repr(each.body)]}},
        }
    return found


def _answers(each: OperationSpec, schema_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
    good: dict[str, Any] = {
        "description": "The answer",
        "content": {_JSON: {"schema": schema_of[repr(each.answer)]}},
    }
    meanings: dict[int, list[str]] = {}
    problems = each.problems
    if each.is_paged:
        text = '`<…>; rel="next"` where there is a further page (RFC 8288)'
        good["headers"] = {"Link": {"description": text, "schema": {"type": "string"}}}
        problems = ((400, "`limit` or `after` is wrong"), *problems)
    if each.access is not Access.ANYBODY:
        problems = (*problems, *_AUTHENTICATED)
    problems = (*problems, _FAULT)
    for status, meaning in problems:
        meanings.setdefault(status, []).append(meaning)
    problem = {"content": {_JSON: {"schema": schema_of[repr(Problem)]}}}
    return {"200": good} | {
        str(status): {
            "description": "; ".join(meanings[status]),
            **({"headers": _RETRY} if status in RETRIED else {}),
            **problem,
        }
        for status in sorted(meanings)
    }


def _paging() -> list[dict[str, Any]]:
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_KEYS, "default": MOST_KEYS}
    after = {"type": "string", "maxLength": 253}
    return [
        {
            "name": "limit",
            "in": "query",
            "description": "Keys of one page at most",
            "schema": limit,
        },
        {
            "name": "after",
            "in": "query",
            "description": "Begin after this key; stands in `Link`",
            "schema": after,
        },
    ]
