"""Documents.

Holds: documents, device status, listing, finalize request, callers, operations, query, openapi.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from controller.access import BoundPod, Caller, CallerKind, TokenIdentity
from controller.fleet.view import Acceptance, FleetSnapshot, GpuView, NodeState, NodeView
from controller.ledger.record import Holder, HolderState, key_of
from controller.ledger.release import card_of
from controller.ledger.store import Entry, LedgerSnapshot
from controller.messages import node_message
from controller.placement.devices import DevicePool
from controller.placement.selector import Device as DeviceFacts
from controller.placement.selector import Device as DeviceStatusDevice
from controller.placement.selector import Selector, labels_of
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode, Refusal

# --- documents
# What goes over the HTTP API, as types; the OpenAPI document is made from them. Pure.
#
# Keys are written with hyphens (`reservation-id`). Collections are objects whose keys are in
# order, so that equal states give equal answers.

_END = r"$(?!\n)"
"""In Python `$` is also before a last line feed."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = f"^{_LABEL}{_END}"
_NAME = rf"^{_LABEL}(?:\.{_LABEL})*{_END}"
_UID = f"^[A-Za-z0-9-]+{_END}"
_RESERVATION = f"^[!-~]+{_END}"
_GPU = f"^(?:GPU|MIG)-[A-Za-z0-9](?:[A-Za-z0-9.-]{{0,246}}[A-Za-z0-9])?{_END}"


class DeviceStatus(StrEnum):
    """Where a device stands; the first that is true."""

    ASSIGNED = "assigned"
    """Reserved for a pod that is bound."""
    PENDING = "pending"
    """Reserved for a pod that is not known to be bound."""
    RELEASING = "releasing"
    """Its pod has ended, its processes may not have."""
    UNATTESTED = "unattested"
    """The node's evidence is refused or too old."""
    UNHEALTHY = "unhealthy"
    """Lost, or with bad news since the last evidence; a part whose GPU is."""
    IN_USE = "in-use"
    """The last evidence saw a process on it, or that kubelet has given it, and no reservation
    explains it; or somebody has a part of a GPU of its node that is not shown any more."""
    FREE = "free"


class Assignment(msgspec.Struct, frozen=True, rename="kebab"):
    """One pod that holds a device."""

    namespace: str
    name: str
    """Empty while the API server has given none."""
    uid: str
    """Empty while the pod is unborn."""
    reservation_id: str
    state: str
    """Proposed, Confirmed or Releasing."""


class Device(msgspec.Struct, frozen=True, rename="kebab"):
    """A GPU of accepted evidence, or a MIG device in the place of its GPU."""

    node: str
    index: int
    """Of the physical GPU, in PCI bus order."""
    model: str
    """Empty where the driver does not say."""
    labels: list[str]
    """That pods can ask for, sorted."""
    status: DeviceStatus
    assignment: Assignment | None
    """Who holds it; of a share group the first."""
    others: list[Assignment]
    """Further holders: of a share group."""


class Node(msgspec.Struct, frozen=True, rename="kebab"):
    """A node as it is trusted now."""

    state: str
    """unknown, refused, eligible, stale, revoked or quarantined."""
    reason: str
    """Reason code; empty where the node is eligible."""
    detail: str
    mode: str
    """env, plugin, per-gpu or dra."""
    level: str
    """Of the last accepted evidence, as all below; empty where there is none."""
    attestation_hash: str
    evidence_digest: str
    gpus: int
    fresh_for_ms: int
    """0 where the node is not eligible."""


class Reservation(msgspec.Struct, frozen=True, rename="kebab"):
    """What one reservation holds."""

    namespace: str
    name: str
    uid: str
    node: str
    gpus: dict[str, str]
    """UUID to state."""


class FinalizeRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """A pod's word that it is bound, for one of its GPUs."""

    namespace: Annotated[str, msgspec.Meta(pattern=_NAMESPACE)]
    name: Annotated[str, msgspec.Meta(pattern=_NAME, max_length=253)]
    uid: Annotated[str, msgspec.Meta(pattern=_UID, max_length=128)]
    reservation_id: Annotated[str, msgspec.Meta(pattern=_RESERVATION, max_length=253)]
    gpu_uuid: Annotated[str, msgspec.Meta(pattern=_GPU)]


class Done(msgspec.Struct, frozen=True):
    """The confirmation stands, by this call or an earlier one."""

    status: str = "ok"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer."""

    error: str
    code: str = ""
    """Reason code; none of requests that are no requests of this API, nor where nobody decided."""


Devices = dict[str, Device]
"""By UUID, in the order of nodes and of their GPUs."""
Nodes = dict[str, Node]
"""By name, in order."""
Reservations = dict[str, Reservation]
"""By reservation id, in order."""


# --- device status
# Which devices of a node are shown, and where each stands. Pure.
#
# Records come first: whatever is held is shown as held. The rest is said by the node's last
# accepted
# evidence, and a device is free only where nothing of it says otherwise.

_PART: Final = key_of("MIG-")
_HELD: Final = (
    (HolderState.CONFIRMED, DeviceStatus.ASSIGNED),
    (HolderState.PROPOSED, DeviceStatus.PENDING),
    (HolderState.RELEASING, DeviceStatus.RELEASING),
)


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What is said of a node's devices besides their records."""

    is_eligible: bool
    given: frozenset[str]
    """Keys of what kubelet has given."""
    is_part_hidden: bool
    """Whether somebody has a MIG device that the node does not show any more: no GPU is free whole,
    for nobody can tell which it was a part of."""


def use_on(
    node: str, accepted: Acceptance, ledger: LedgerSnapshot, *, is_eligible: bool
) -> NodeUse:
    """Asked once per node."""
    uuids = (card_of(x.device) for x in accepted.allocations or ())
    given = frozenset(key_of(x) for x in uuids if x is not None)
    shown = {key_of(mig.uuid) for gpu in accepted.gpus for mig in gpu.mig_devices}
    had = {x for x in given if x.startswith(_PART)} | set(map(key_of, ledger.parts_on(node)))
    return NodeUse(is_eligible, given, not had <= shown)


def shown_devices(accepted: Acceptance, ledger: LedgerSnapshot) -> list[DeviceStatusDevice]:
    """What pods can be given, could be given if its GPU were well, or hold; in PCI bus order.

    A GPU that is split is shown as its parts. One that has none yet is shown only while it is held.
    """
    usable = DevicePool(accepted).devices
    there = {device.gpu.uuid for device in usable}
    others = [
        device
        for gpu in accepted.gpus
        if gpu.uuid not in there and (_is_unusable(gpu) or ledger.get(gpu.uuid) is not None)
        for device in _parts_or_whole(gpu, accepted)
    ]
    return sorted((*usable, *others), key=lambda x: x.gpu.index)


def status_of(device: DeviceStatusDevice, holders: Iterable[Holder], use: NodeUse) -> DeviceStatus:
    """The first that is true."""
    states = {x.state for x in holders}
    for state, shown in _HELD:
        if state in states:
            return shown
    if not use.is_eligible:
        return DeviceStatus.UNATTESTED
    if _is_unusable(device.gpu):
        return DeviceStatus.UNHEALTHY
    return DeviceStatus.IN_USE if _is_used(device, use) else DeviceStatus.FREE


def _is_used(device: DeviceStatusDevice, use: NodeUse) -> bool:
    """Whether somebody has it without a record."""
    if device.in_use or not use.given.isdisjoint(map(key_of, (device.uuid, device.gpu.uuid))):
        return True
    return device.mig is None and use.is_part_hidden


def _parts_or_whole(gpu: GpuView, accepted: Acceptance) -> Iterator[DeviceStatusDevice]:
    """Devices of which nobody asks whether a process uses them."""
    if not gpu.mig or not gpu.mig_devices:
        yield DeviceStatusDevice(gpu.uuid, accepted.host, gpu, None, in_use=False)
        return
    for mig in gpu.mig_devices:
        yield DeviceStatusDevice(mig.uuid, accepted.host, gpu, mig, in_use=False)


def _is_unusable(gpu: GpuView) -> bool:
    return gpu.lost is not None or gpu.unhealthy is not None


# --- listing
# Pages of devices, nodes and reservations from one moment's snapshots. Pure.
#
# Nodes are in the order of their names, devices in PCI bus order, reservations in that of their
# ids; a page says after which key the next one begins. Snapshots do not change, so a page can be
# made on a thread.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """What pages are made from."""

    fleet: FleetSnapshot
    ledger: LedgerSnapshot
    labels: Mapping[str, Selector]
    """Of the policy."""
    now_ns: int
    """CLOCK_BOOTTIME."""

    @property
    def is_ledger_known(self) -> bool:
        """Whether the ledger was read, and not too long ago to be shown."""
        return self.now_ns < self.ledger.fresh_until_ns


@dataclass(frozen=True, slots=True)
class Asked:
    """Which page: at most so many keys, those after `after`."""

    limit: int
    after: str = ""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page."""

    items: T
    next_after: str | None
    """Where the next page begins; None where there is none."""


def device_page(moment: Moment, asked: Asked) -> Page[Devices]:
    """Devices of so many nodes, lost and unhealthy ones included."""
    names, further = _keys(moment.fleet.nodes, asked)
    items: Devices = {}
    for name in names:
        items |= _devices_of(moment, moment.fleet.nodes[name])
    return Page(items, further)


def node_page(moment: Moment, asked: Asked) -> Page[Nodes]:
    """So many nodes."""
    names, further = _keys(moment.fleet.nodes, asked)
    return Page({x: _node(moment.fleet.nodes[x], moment.now_ns) for x in names}, further)


def reservation_page(moment: Moment, asked: Asked) -> Page[Reservations]:
    """So many reservations."""
    ids, further = _keys(moment.ledger.by_reservation, asked)
    return Page({x: _reservation(x, moment.ledger.holding(x)) for x in ids}, further)


def _keys(keys: Iterable[str], asked: Asked) -> tuple[list[str], str | None]:
    found = heapq.nsmallest(asked.limit + 1, (x for x in keys if x > asked.after))
    shown = found[: asked.limit]
    return shown, shown[-1] if len(found) > asked.limit else None


def _devices_of(moment: Moment, node: NodeView) -> Devices:
    if node.acceptance is None:
        return {}
    is_eligible = node.state(moment.now_ns) is NodeState.ELIGIBLE
    use = use_on(node.name, node.acceptance, moment.ledger, is_eligible=is_eligible)
    devices = shown_devices(node.acceptance, moment.ledger)
    return {x.uuid: _device(moment, node.name, x, use) for x in devices}


def _device(moment: Moment, node: str, device: DeviceFacts, use: NodeUse) -> Device:
    entry = moment.ledger.get(device.uuid)
    if entry is None and device.mig is not None:
        entry = moment.ledger.get(device.gpu.uuid)  # held whole, before it was split
    holders = () if entry is None else entry.record.holders
    held = [_assignment(x) for x in holders]
    return Device(
        node=node,
        index=device.gpu.index,
        model=device.gpu.product or "",
        labels=list(labels_of(device, moment.labels)),
        status=status_of(device, holders, use),
        assignment=held[0] if held else None,
        others=held[1:],
    )


def _assignment(holder: Holder) -> Assignment:
    pod = holder.pod
    return Assignment(
        pod.namespace, pod.name or "", pod.uid or "", holder.reservation, holder.state.value
    )


def _node(node: NodeView, now_ns: int) -> Node:
    message = node_message(node, now_ns)
    return Node(
        state=message.state,
        reason=message.code,
        detail=message.detail,
        mode=message.mode,
        level=message.level,
        attestation_hash=message.attestation_hash,
        evidence_digest=message.evidence_digest,
        gpus=message.gpu_count,
        fresh_for_ms=message.fresh_for_ms,
    )


def _reservation(name: str, entries: Iterable[Entry]) -> Reservation:
    parts = [(x.record, holder) for x in entries if (holder := x.record.holder(name)) is not None]
    first, holder = parts[0]
    return Reservation(
        namespace=holder.pod.namespace,
        name=holder.pod.name or "",
        uid=holder.pod.uid or "",
        node=first.node,
        gpus={record.gpu: part.state.value for record, part in parts},
    )


# --- finalize request
# Reads the body of `POST /finalize`. Pure; the body is bounded already.

FIELDS: Final = tuple(x.encode_name for x in msgspec.structs.fields(FinalizeRequest))
"""In the order in which missing ones are named."""
_SHOWN: Final = 80
_AT: Final = " - at `$."


class FinalizeRequestError(ValueError):
    """The body is no request; names what is missing, or the field and what was expected."""


def read_finalize(body: bytes | bytearray | memoryview) -> FinalizeRequest:
    """The request in a body; raises FinalizeRequestError.

    What is no JSON object lacks every field. A field that is no text, or blank, is missing.
    Other fields are not looked at.
    """
    found = _object(body)
    missing = [x for x in FIELDS if not _is_text(found.get(x))]
    if missing:
        raise FinalizeRequestError(f"missing required fields: {', '.join(missing)}")
    try:
        return msgspec.convert(found, FinalizeRequest)
    except msgspec.ValidationError as error:
        raise FinalizeRequestError(_named(str(error), found)) from None


def _object(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _named(text: str, found: dict[str, Any]) -> str:
    """`Expected … - at `$.uid`` -> `uid: '…', expected …`."""
    expected, _, place = text.partition(_AT)
    field = place.rstrip("`")
    return f"{field}: {quote(found[field], _SHOWN)}, {expected[:1].lower()}{expected[1:]}"


# --- callers
# Who calls the HTTP API and what that gives: one place, default deny. Pure.
#
# A token for our audience says which account, and which pod, it was made for; that alone gives
# nothing but the right to speak for this one pod. Reading is for inspectors, operators and the
# accounts that `api.readers` names: what is assigned to whom is not every pod's business.

_ACCOUNT: Final = "system:serviceaccount:"


class Access(StrEnum):
    """What an operation asks of its caller."""

    ANYBODY = "anybody"
    READER = "reader"
    HOLDER = "holder"
    """The very pod that the request names, or an operator."""


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """A caller that is known."""

    name: str
    """SPIFFE ID, or user name of the token."""
    reads: bool
    operates: bool
    pod: BoundPod | None = None

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
    return ApiCaller(caller.name, operates or caller.kind is CallerKind.INSPECTOR, operates)


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
# Every operation of the HTTP API, each once: routes, rights and the OpenAPI document. Pure.

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


# --- query
# Reads which page is asked for. Pure.

_MOST_CHARS: Final = 253
_DIGITS: Final = len(str(MOST_KEYS))


class QueryError(ValueError):
    """A parameter cannot be used; names it, the value and what was expected."""


def read_query(pairs: Iterable[tuple[str, str]]) -> Asked:
    """The page behind `limit` and `after`, each at most once; raises QueryError."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key not in {"limit", "after"}:
            raise QueryError(f"{quote(key, _SHOWN)}: no such parameter, expected limit or after")
        if key in found:
            raise QueryError(f"{key}: given twice, expected once")
        found[key] = value
    return Asked(_limit(found.get("limit", str(MOST_KEYS))), _after(found.get("after", "")))


def _limit(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not is_number or not 1 <= int(text) <= MOST_KEYS:
        raise QueryError(f"limit: {quote(text, _SHOWN)}, expected 1 to {MOST_KEYS}")
    return int(text)


def _after(text: str) -> str:
    if len(text) > _MOST_CHARS:
        raise QueryError(f"after: expected at most {_MOST_CHARS} characters")
    return text


# --- openapi
# The OpenAPI document of the HTTP API, made from operations and types. Pure.
#
# Source: OpenAPI Specification 3.1.1, whose schemas are JSON Schema 2020-12, as msgspec makes.

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
    (401, "No token that counts for our audience, and no SVID; or one that does not count"),
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
    operation: Operation, each: Described, schema_of: dict[str, dict[str, Any]]
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


def _answers(each: Described, schema_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
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
