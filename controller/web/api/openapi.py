"""The OpenAPI document of the HTTP API, from the same types that go over it. Pure."""

from functools import cache
from typing import Any, Final

import msgspec

from controller.web.api.documents import Problem
from controller.web.api.operations import (
    MOST_AFTER,
    MOST_KEYS,
    OPERATIONS,
    RETRIED,
    Access,
    Operation,
    OperationSpec,
    Parameter,
)
from controller.web.api.v1_operations import V1_OPERATIONS

EVERY_OPERATION: Final = {**OPERATIONS, **V1_OPERATIONS}

VERSION: Final = "v1"
"""Of the API; fields may be added."""
_REFS: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_WHO: Final = {
    Access.READER: "For inspectors, operators, and the accounts of `api.readers`.",
    Access.HOLDER: "For the pod that is named, by a token bound to it, and for operators.",
    Access.ANYBODY: "For anybody.",
    Access.VIEWER: "For whoever reads, and for people about pods of a namespace that they may read"
    " (`get pods`, by SubjectAccessReview).",
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


_ETAG: Final = {
    "description": "Equal for equal answers; with `If-None-Match` the answer is 304 then",
    "schema": {"type": "string"},
}


@cache
def openapi_json() -> bytes:
    """The document, indented, with a line feed at its end."""
    text = msgspec.json.format(msgspec.json.encode(openapi_document()), indent=2)
    return text + b"\n"


def openapi_document() -> dict[str, Any]:
    """The document."""
    every = EVERY_OPERATION.values()
    types = [x for each in every for x in (each.answer, each.body) if x is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_REFS)
    schema_of = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation, each in EVERY_OPERATION.items():
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
    parameters = [_parameter(x) for x in each.parameters]
    if each.is_paged:
        parameters += _paging()
    if parameters:
        found["parameters"] = parameters
    if each.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": schema_of[repr(each.body)]}},
        }
    return found


def _answers(each: OperationSpec, schema_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
    good: dict[str, Any] = {
        "description": "The answer",
        "content": {each.media: {"schema": schema_of[repr(each.answer)]}},
    }
    meanings: dict[int, list[str]] = {}
    problems = each.problems
    if each.is_paged:
        text = '`<…>; rel="next"` where there is a further page (RFC 8288)'
        good["headers"] = {"Link": {"description": text, "schema": {"type": "string"}}}
        problems = ((400, "`limit` or `after` is wrong"), *problems)
    if each.path.startswith("/v1/"):
        text = "A parameter is unknown or wrong: names it, its value and what is expected"
        problems = ((400, text), *problems)
    if each.path.startswith("/v1/") and each.media == _JSON:
        good.setdefault("headers", {})["ETag"] = _ETAG
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
    after = {"type": "string", "maxLength": MOST_AFTER}
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


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": "path" if one.in_path else "query",
        "required": one.in_path,
        "description": one.about,
        "schema": dict(one.schema),
    }
