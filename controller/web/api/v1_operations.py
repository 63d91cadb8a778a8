"""The operations of the HTTP API v1: routes, parameters, and what they answer. Pure."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from controller.explain.fleet_rows import CellState, FleetMap, GpuRow, Grouping, NodeRow
from controller.explain.gpu_history import GpuHistory
from controller.explain.node_detail import NodeDetail
from controller.explain.pod_views import NodeVerdict, PodDetail, PodRow
from controller.fleet.view import NodeState
from controller.policy import NodeMode
from controller.web.api.documents import PageRequest
from controller.web.api.operations import (
    Access,
    Operation,
    OperationSpec,
    Parameter,
    QueryError,
    read_query,
)
from gpuwarden.evidence.strict_json import quote
from gpuwarden.identity.spiffe_id import is_node_name

T = TypeVar("T")

# --- answers that have no read model of their own


class StatusView(msgspec.Struct, frozen=True, rename="kebab"):
    """This controller, and what a person should know before they believe the rest.

    Warnings, replicas, alarms and SPIRE are empty for callers who may not see the fleet.
    """

    cluster: str
    replica: str
    version: str
    not_ready: str
    """Why it decides nothing now; empty where it does."""
    warnings: list[str]
    enforcement: str
    evaluation: bool
    """Whether it is an evaluation on made-up hardware."""
    leads: bool
    replicas: list[str]
    alarms: dict[str, list[str]]
    """Nodes whose agents accuse an audit log, with the codes."""
    spire: str
    """off, ok, or why the SPIRE server says nothing."""
    ledger_known: bool


class GpuDetail(msgspec.Struct, frozen=True, rename="kebab"):
    """One GPU, whether a node shows it now or only the log knows it."""

    uuid: str
    now: GpuRow | None
    history: GpuHistory


class ReservationRow(msgspec.Struct, frozen=True, rename="kebab"):
    """What one reservation holds."""

    reservation_id: str
    namespace: str
    name: str
    uid: str
    node: str
    gpus: dict[str, str]
    """UUID to state."""


class ClassRow(msgspec.Struct, frozen=True, rename="kebab"):
    """An attestation class of the fleet or of policy."""

    reference: str
    """Hash, or name in policy."""
    hashes: list[str]
    names: list[str]
    level: str
    nodes: list[str]
    """Eligible ones."""
    gpus: int
    document: str


class AuditRow(msgspec.Struct, frozen=True, rename="kebab"):
    """A record of this replica's audit log."""

    record: int
    at: str
    kind: str
    actor: str
    subject: str
    decision: str
    codes: list[str]
    line: str
    """The very bytes that the tree's leaf is the hash of."""


class Witness(msgspec.Struct, frozen=True, rename="kebab"):
    """The last checkpoint of this log that an agent says it knows."""

    node: str
    note: str


class CheckpointView(msgspec.Struct, frozen=True, rename="kebab"):
    """The last published checkpoint, and who has seen which."""

    note: str
    key: str
    """Verifier key, as C2SP writes it."""
    key_changes: list[str]
    size: int
    root: str
    """In base64, as the hashes of proofs."""
    witnesses: list[Witness]
    alarms: dict[str, list[str]]


class ProofView(msgspec.Struct, frozen=True, rename="kebab"):
    """That a record is in the tree, or that a tree continues an earlier one."""

    size: int
    inclusion: list[str]
    """Of the record; empty where none was asked for."""
    consistency: list[str]
    """From the earlier size; empty where none was asked for."""


class Items(msgspec.Struct, frozen=True, rename="kebab"):
    """A page of a list."""

    next: str | None
    """`after` of the next page; null where there is none."""


class NodePage(Items, frozen=True):
    """Nodes."""

    items: list[NodeRow]


class GpuPage(Items, frozen=True):
    """GPUs."""

    items: list[GpuRow]


class PodPage(Items, frozen=True):
    """Pods."""

    items: list[PodRow]


class VerdictPage(Items, frozen=True):
    """Verdicts of nodes about a pod."""

    items: list[NodeVerdict]


class ReservationPage(Items, frozen=True):
    """Reservations."""

    items: list[ReservationRow]


class ClassPage(Items, frozen=True):
    """Classes."""

    items: list[ClassRow]


class AuditPage(Items, frozen=True):
    """Records, the newest first."""

    items: list[AuditRow]
    searched_since: str
    """Of the oldest record that was looked at; what is older was not."""


# --- parameters

MOST_CHARS: Final = 253
_PLAIN: Final = re.compile(rf"[^\x00-\x1f\x7f]{{1,{MOST_CHARS}}}")
_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


def _text(name: str, about: str) -> Parameter:
    return Parameter(
        name,
        about,
        f"1 to {MOST_CHARS} characters without control characters",
        lambda x: _PLAIN.fullmatch(x) is not None,
        {"type": "string", "maxLength": MOST_CHARS, "pattern": f"^{_PLAIN.pattern}$"},
    )


def _choice(name: str, about: str, values: type[StrEnum], default: str = "") -> Parameter:
    known = [x.value for x in values]
    schema: dict[str, Any] = {"type": "string", "enum": known}
    if default:
        schema["default"] = default
    expected = "one of " + ", ".join(known)
    return Parameter(name, about, expected, known.__contains__, schema, default)


def _name(name: str, about: str, *, in_path: bool = False) -> Parameter:
    pattern = rf"^{_LABEL}(\.{_LABEL})*$"
    schema = {"type": "string", "maxLength": MOST_CHARS, "pattern": pattern}
    return Parameter(name, about, "an RFC 1123 name", is_node_name, schema, in_path=in_path)


_NUMBER: Final = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)


def _number(name: str, about: str) -> Parameter:
    return Parameter(
        name,
        about,
        "a number from 1 on",
        lambda x: _NUMBER.fullmatch(x) is not None,
        {"type": "integer", "minimum": 1, "maximum": 10**15 - 1},
    )


_GPU_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_OF_NODES: Final = (
    _text("q", "Part of a node's name, or of a GPU's UUID or serial"),
    _choice("node-state", "State of the node", NodeState),
    _choice("state", "State of a GPU", CellState),
    _text("reason", "Reason code of the node"),
    _text("class", "Attestation hash, or its beginning"),
    _text("model", "Part of a GPU's model"),
    _name("namespace", "Namespace of a pod that holds a GPU"),
    _text("zone", "Zone of the node, by its label"),
    _text("pool", "Node pool, by the node's label"),
    _choice("mode", "Mode of the node", NodeMode),
)
_NODE: Final = _name("name", "Node", in_path=True)
_OF_POD: Final = (
    _name("namespace", "Namespace of the pod", in_path=True),
    _name("name", "Pod", in_path=True),
)


class PodState(StrEnum):
    """For the filter of pods."""

    PENDING = "pending"
    BOUND = "bound"
    ENDED = "ended"
    GONE = "gone"


_LEDGER: Final = ((503, "LEDGER_UNAVAILABLE"),)
_AUDIT: Final = ((503, "AUDIT_UNAVAILABLE: no checkpoint is published, or the tree lacks a hash"),)

V1_OPERATIONS: Final[Mapping[Operation, OperationSpec]] = {
    Operation.V1_STATUS: OperationSpec(
        "GET", "/v1/status", Access.VIEWER, "This controller, and what limits its word", StatusView
    ),
    Operation.V1_FLEET: OperationSpec(
        "GET",
        "/v1/fleet",
        Access.READER,
        "Every GPU of the fleet as one letter, by groups of nodes",
        FleetMap,
        parameters=(_choice("group", "What nodes are grouped by", Grouping, "class"), *_OF_NODES),
    ),
    Operation.V1_NODES: OperationSpec(
        "GET",
        "/v1/nodes",
        Access.READER,
        "Nodes by name, with their GPUs",
        NodePage,
        is_paged=True,
        parameters=_OF_NODES,
    ),
    Operation.V1_NODE: OperationSpec(
        "GET",
        "/v1/nodes/{name}",
        Access.READER,
        "One node: evidence, enrollment, its class against the most common one, timeline",
        NodeDetail,
        parameters=(_NODE,),
        problems=((404, "NODE_UNKNOWN"),),
    ),
    Operation.V1_GPUS: OperationSpec(
        "GET",
        "/v1/gpus",
        Access.READER,
        "GPUs in the order of nodes and of PCI buses",
        GpuPage,
        is_paged=True,
        parameters=(_name("node", "Node"), *_OF_NODES),
    ),
    Operation.V1_GPU: OperationSpec(
        "GET",
        "/v1/gpus/{id}",
        Access.READER,
        "One GPU by UUID or serial: where it was and who had it, by this replica's log",
        GpuDetail,
        parameters=(
            Parameter(
                "id",
                "UUID or serial",
                "a UUID or serial of at most 128 characters",
                lambda x: _GPU_ID.fullmatch(x) is not None,
                {"type": "string", "pattern": f"^{_GPU_ID.pattern}$"},
                in_path=True,
            ),
        ),
        problems=((404, "Neither the fleet nor the log knows it"),),
    ),
    Operation.V1_PODS: OperationSpec(
        "GET",
        "/v1/pods",
        Access.VIEWER,
        "Managed pods, and those that still hold GPUs; of one namespace for callers without a role",
        PodPage,
        is_paged=True,
        parameters=(
            _name("namespace", "Namespace"),
            _choice("state", "State of the pod", PodState),
            _name("node", "Node"),
            _text("q", "Part of the pod's name"),
        ),
        problems=_LEDGER,
    ),
    Operation.V1_POD: OperationSpec(
        "GET",
        "/v1/pods/{namespace}/{name}",
        Access.VIEWER,
        "One pod from what it requires to what runs on its GPUs",
        PodDetail,
        parameters=_OF_POD,
        problems=((404, "POD_UNKNOWN"),),
    ),
    Operation.V1_VERDICTS: OperationSpec(
        "GET",
        "/v1/pods/{namespace}/{name}/nodes",
        Access.READER,
        "What every node is to a pod that waits, and what would have to change",
        VerdictPage,
        is_paged=True,
        parameters=_OF_POD,
        problems=((404, "POD_UNKNOWN"),),
    ),
    Operation.V1_RESERVATIONS: OperationSpec(
        "GET",
        "/v1/reservations",
        Access.VIEWER,
        "Reservations by id; of one namespace for callers without a role",
        ReservationPage,
        is_paged=True,
        parameters=(_name("namespace", "Namespace"), _name("node", "Node")),
        problems=_LEDGER,
    ),
    Operation.V1_CLASSES: OperationSpec(
        "GET",
        "/v1/classes",
        Access.READER,
        "Attestation classes of the fleet and of policy",
        ClassPage,
        is_paged=True,
    ),
    Operation.V1_AUDIT: OperationSpec(
        "GET",
        "/v1/audit",
        Access.READER,
        "Records of this replica's audit log, the newest first",
        AuditPage,
        is_paged=True,
        parameters=(
            _text("kind", "Beginning of the kind, such as `reservation.`"),
            _text("subject", "Subject, such as `node/gpu-7`"),
            _text("actor", "Part of the actor"),
            _text("code", "Reason code"),
            _text("q", "Part of the record"),
        ),
        problems=_AUDIT,
    ),
    Operation.V1_CHECKPOINT: OperationSpec(
        "GET",
        "/v1/audit/checkpoint",
        Access.READER,
        "The last signed checkpoint of this replica's log, and its witnesses",
        CheckpointView,
        problems=_AUDIT,
    ),
    Operation.V1_PROOF: OperationSpec(
        "GET",
        "/v1/audit/proof",
        Access.READER,
        "Proofs by the log's Merkle tree (RFC 6962)",
        ProofView,
        parameters=(
            _number("record", "Number of a record that shall be shown to be in the tree"),
            _number("from", "Size of an earlier tree that shall be shown to be continued"),
            _number("size", "Size of the tree; by default that of the last checkpoint"),
        ),
        problems=_AUDIT,
    ),
    Operation.V1_EVENTS: OperationSpec(
        "GET",
        "/v1/events",
        Access.READER,
        "Server-sent events: `node` for each node that changes, `reservations` when any of them"
        " do. A stream ends within a minute; the browser opens the next one",
        str,
        media="text/event-stream",
        problems=((503, "Too many streams"),),
    ),
}


# --- requests

Query = dict[str, str]


def read_parameters(
    spec: OperationSpec, pairs: Iterable[tuple[str, str]], path: Mapping[str, str]
) -> tuple[Query, PageRequest]:
    """What was asked; parameters that were not given are empty or have their default.

    Raises QueryError.
    """
    known = {x.name: x for x in spec.parameters}
    found = {x.name: x.default for x in spec.parameters}
    paging: list[tuple[str, str]] = []
    given: set[str] = set()
    for key, value in pairs:
        if spec.is_paged and key in {"limit", "after"}:
            paging.append((key, value))
            continue
        one = known.get(key)
        if one is None or one.in_path:
            names = [x.name for x in spec.parameters if not x.in_path]
            names += ["limit", "after"] if spec.is_paged else []
            expected = ", ".join(names) or "none"
            raise QueryError(f"{quote(key, 80)}: no such parameter, expected {expected}")
        if key in given:
            raise QueryError(f"{key}: given twice, expected once")
        given.add(key)
        found[key] = _checked(one, value)
    for one in spec.parameters:
        if one.in_path:
            found[one.name] = _checked(one, path[one.name])
    return found, read_query(paging)


def _checked(one: Parameter, value: str) -> str:
    if not one.accepts(value):
        raise QueryError(f"{one.name}: {quote(value, 80)}, expected {one.expected}")
    return value


def page_of(rows: Iterable[tuple[str, T]], asked: PageRequest) -> tuple[list[T], str | None]:
    """The page of rows behind their keys, which come in order, and where the next one begins."""
    found: list[T] = []
    last = ""
    for key, row in rows:
        if asked.after and key <= asked.after:
            continue
        if len(found) == asked.limit:
            return found, last
        found.append(row)
        last = key
    return found, None
