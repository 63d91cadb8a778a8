"""Every operation of the HTTP API, each once: routes, rights and the OpenAPI document. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from controller.http_api.callers import Access
from controller.http_api.documents import Devices, Done, FinalizeRequest, Nodes, Reservations

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
class Described:
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
    Operation.DEVICES: Described(
        "GET",
        "/devices",
        Access.READER,
        "Devices of accepted evidence by UUID: node, labels, who holds them."
        " A page is of so many nodes",
        Devices,
        is_paged=True,
        problems=((503, "LEDGER_UNAVAILABLE"),),
    ),
    Operation.NODES: Described(
        "GET",
        "/nodes",
        Access.READER,
        "Nodes by name, and how far they are trusted now",
        Nodes,
        is_paged=True,
    ),
    Operation.RESERVATIONS: Described(
        "GET",
        "/reservations",
        Access.READER,
        "Reservations by id: pod, node, and the state of each GPU",
        Reservations,
        is_paged=True,
        problems=((503, "LEDGER_UNAVAILABLE"),),
    ),
    Operation.FINALIZE: Described(
        "POST",
        "/finalize",
        Access.HOLDER,
        "The pod's word that it is bound, for one GPU; the same again is the same answer",
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
    Operation.OPENAPI: Described(
        "GET", "/openapi.json", Access.ANYBODY, "This document", dict[str, Any]
    ),
}
"""`/healthz` is beside it: it is for probes."""
