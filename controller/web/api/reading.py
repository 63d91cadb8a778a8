"""What the HTTP API v1 and the console show: the same read models, from one moment's snapshots.

Files are read and long lists are made on threads, few at a time. Must not decide who may ask: the
viewer comes in, and says whether they see the whole fleet.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from controller.audit.checkpoints import Published
from controller.audit.proofs import NoProofError, prove_consistency, prove_inclusion
from controller.explain.classes import list_classes
from controller.explain.fleet_rows import (
    FleetFacts,
    GpuRow,
    Grouping,
    NodeRow,
    Wanted,
    fleet_map,
    node_row,
    node_rows,
    wanted_gpus,
    wanted_nodes,
)
from controller.explain.gpu_history import history_rows
from controller.explain.node_detail import node_detail
from controller.explain.pod import AllocationTrace
from controller.explain.pod_views import PodRow, SeenPod, pod_detail, pod_rows, verdicts
from controller.explain.tenant_messages import shown_trace
from controller.fleet.quarantine import Shown
from controller.fleet.view import NodeView
from controller.ledger.record import Holder
from controller.ledger.store import LedgerSnapshot
from controller.messages import trace_message
from controller.people.roles import NO_NAMESPACE
from controller.placement.explanation import FitReport
from controller.policy import Policy
from controller.web.api.answers import ProblemError, refused
from controller.web.api.documents import PageRequest
from controller.web.api.log_reading import about, gpu_of_serial, history_of, search
from controller.web.api.operations import Operation
from controller.web.api.v1_operations import (
    AuditPage,
    CheckpointView,
    ClassPage,
    ClassRow,
    GpuDetail,
    GpuPage,
    NodePage,
    PodPage,
    ProofView,
    Query,
    ReservationPage,
    ReservationRow,
    StatusView,
    VerdictPage,
    Witness,
    page_of,
)
from controller.web.api.viewers import Viewer, Viewers
from gpuwarden.audit.gpu_history import is_uuid
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2

T = TypeVar("T")
_ROWS_NS: Final = NS_PER_S
"""How long rows of the whole fleet are shown again."""
_ELSEWHERE: Final = "why is shown to inspectors"
NO_PODS: Final = "this controller has no Kubernetes API to ask, and knows no pods"

FromPods = Callable[[str, str], Awaitable[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where everything comes from; asked again for each answer."""

    facts: Callable[[], FleetFacts]
    policy: Callable[[], Policy]
    shown: Callable[[str], Shown]
    """Enrollment, quarantine and candidate of a node."""
    status: Callable[[], StatusView]
    pods: Callable[[], Iterable[SeenPod]] | None
    """Managed pods, and others that hold GPUs; None without a Kubernetes API, as the next two."""
    trace: FromPods[AllocationTrace | Refusal] | None
    verdicts: FromPods[FitReport | Refusal] | None
    audit: Path
    """Folder of the log."""
    published: Callable[[], Published | None]
    witnesses: Callable[[], Sequence[Witness]]
    alarms: Callable[[], Mapping[str, tuple[str, ...]]]
    clock: Clock


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for something to read."""

    viewer: Viewer
    query: Query
    page: PageRequest

    def get(self, name: str) -> str:
        """A parameter; empty where it was not given."""
        return self.query.get(name, "")


_Read = Callable[[Asked], Awaitable[msgspec.Struct]]
_RowKey = tuple[object, ...]
"""Compared by identity: snapshots share what has not changed."""


class Reading:
    """Used from one event loop."""

    def __init__(self, sources: Sources, viewers: Viewers, *, at_once: int = 2) -> None:
        self._sources = sources
        self._viewers = viewers
        self._few = asyncio.Semaphore(at_once)
        self._rows: dict[bool, tuple[int, list[NodeRow]]] = {}
        """Of the whole fleet, with and without serials, and when they were made."""
        self._made: dict[tuple[bool, str], tuple[_RowKey, NodeRow]] = {}
        """Each of them, and what it was made from: most nodes do not change within a second."""
        self._reads: dict[Operation, _Read] = {
            Operation.V1_STATUS: self._status,
            Operation.V1_FLEET: self._fleet,
            Operation.V1_NODES: self._nodes,
            Operation.V1_NODE: self._node,
            Operation.V1_GPUS: self._gpus,
            Operation.V1_GPU: self._gpu,
            Operation.V1_PODS: self._pods,
            Operation.V1_POD: self._pod,
            Operation.V1_VERDICTS: self._verdicts,
            Operation.V1_RESERVATIONS: self._reservations,
            Operation.V1_CLASSES: self._classes,
            Operation.V1_AUDIT: self._audit,
            Operation.V1_CHECKPOINT: self._checkpoint,
            Operation.V1_PROOF: self._proof,
        }

    async def answer(self, operation: Operation, asked: Asked) -> Any:  # noqa: ANN401 -- the type that the operation's spec names
        """What was asked for; raises ProblemError."""
        return await self._reads[operation](asked)

    def facts(self) -> FleetFacts:
        """The snapshots of now."""
        return self._sources.facts()

    async def _on_thread(self, make: Callable[[], T]) -> T:
        async with self._few:
            return await asyncio.to_thread(make)

    # --- fleet

    async def _status(self, asked: Asked) -> StatusView:
        status = self._sources.status()
        if asked.viewer.reads:
            return status
        return msgspec.structs.replace(
            status,
            not_ready=_ELSEWHERE if status.not_ready else "",
            warnings=[],
            replicas=[],
            alarms={},
            spire="",
        )

    async def _fleet(self, asked: Asked) -> msgspec.Struct:
        facts, wanted = self._sources.facts(), _wanted(asked)
        by = Grouping(asked.get("group"))

        def make() -> msgspec.Struct:
            rows = self._all_rows(facts, has_serials=asked.viewer.has_serials)
            return fleet_map(wanted_nodes(rows, wanted), by)

        return await self._on_thread(make)

    def _all_rows(self, facts: FleetFacts, *, has_serials: bool) -> list[NodeRow]:
        made_ns, rows = self._rows.get(has_serials, (-_ROWS_NS, []))
        if facts.now_ns - made_ns >= _ROWS_NS or facts.now_ns < made_ns:
            nodes = facts.fleet.nodes
            rows = [self._row(facts, nodes[x], has_serials=has_serials) for x in sorted(nodes)]
            self._rows[has_serials] = (facts.now_ns, rows)
            for key in [x for x in tuple(self._made) if x[1] not in nodes]:
                self._made.pop(key, None)
        return rows

    def _row(self, facts: FleetFacts, node: NodeView, *, has_serials: bool) -> NodeRow:
        ledger, known = facts.ledger.entries, facts.directory.get(node.name)
        key = (node, node.state(facts.now_ns), ledger, known, facts.is_ledger_known)
        made = self._made.get((has_serials, node.name))
        if made is not None and all(x is y for x, y in zip(made[0], key, strict=True)):
            return made[1]
        row = node_row(facts, node, has_serials=has_serials)
        self._made[has_serials, node.name] = (key, row)
        return row

    async def _nodes(self, asked: Asked) -> NodePage:
        facts, wanted = self._sources.facts(), _wanted(asked)

        def make() -> NodePage:
            rows = node_rows(facts, has_serials=asked.viewer.has_serials, after=asked.page.after)
            found, following = page_of(
                ((x.name, x) for x in wanted_nodes(rows, wanted)), asked.page
            )
            return NodePage(following, found)

        return await self._on_thread(make)

    async def _node(self, asked: Asked) -> msgspec.Struct:
        facts, name = self._sources.facts(), asked.get("name")
        node = facts.fleet.nodes.get(name)
        if node is None:
            raise refused(Refusal(ReasonCode.NODE_UNKNOWN, f"no node {name!a}"))
        shown, alarms = self._sources.shown(name), self._sources.alarms().get(name, ())

        def make() -> msgspec.Struct:
            recent = about(self._sources.audit, f"node/{name}")
            has_serials = asked.viewer.has_serials
            return node_detail(facts, node, shown, recent, alarms, has_serials=has_serials)

        return await self._on_thread(make)

    async def _gpus(self, asked: Asked) -> GpuPage:
        facts, wanted = self._sources.facts(), _wanted(asked)

        def make() -> GpuPage:
            before = asked.page.after.partition(" ")[0]
            rows = node_rows(facts, has_serials=asked.viewer.has_serials, since=before)
            found, following = page_of(
                (_gpu_keyed(x) for x in wanted_gpus(rows, wanted)), asked.page
            )
            return GpuPage(following, found)

        return await self._on_thread(make)

    async def _gpu(self, asked: Asked) -> GpuDetail:
        facts, wanted = self._sources.facts(), asked.get("id")
        return await self._on_thread(
            partial(self._gpu_of, facts, wanted, has_serials=asked.viewer.has_serials)
        )

    def _gpu_of(self, facts: FleetFacts, wanted: str, *, has_serials: bool) -> GpuDetail:
        now, uuid, parts = None, wanted, frozenset[str]()
        for node in facts.fleet.nodes.values():
            for gpu in () if node.acceptance is None else node.acceptance.gpus:
                devices = frozenset(x.uuid for x in gpu.mig_devices)
                if wanted in {gpu.uuid, *devices} or (has_serials and wanted == gpu.serial):
                    row = node_row(facts, node, has_serials=has_serials)
                    now = next(x for x in row.gpus if x.uuid == gpu.uuid)
                    uuid, parts = gpu.uuid, devices
        if now is None and has_serials and not is_uuid(wanted):
            uuid = gpu_of_serial(self._sources.audit, wanted) or wanted
        found = history_of(self._sources.audit, uuid, parts)
        if now is None and not found.stays and not found.holds:
            text = "no node shows a GPU of this UUID or serial now, and this log names none"
            raise ProblemError(HTTPStatus.NOT_FOUND, text)
        return GpuDetail(uuid, now, history_rows(found))

    async def _classes(self, asked: Asked) -> ClassPage:
        facts, policy = self._sources.facts(), self._sources.policy()

        def make() -> ClassPage:
            rows = map(_class_row, list_classes(facts.fleet, policy, facts.now_ns))
            ordered = sorted((x.reference, x) for x in rows)
            found, following = page_of(ordered, asked.page)
            return ClassPage(following, found)

        return await self._on_thread(make)

    # --- pods

    async def _pods(self, asked: Asked) -> PodPage:
        ledger = await self._ledger_for(asked)
        seen = None if self._sources.pods is None else tuple(self._sources.pods())

        def make() -> PodPage:
            rows = (x for x in pod_rows(seen, ledger) if _is_wanted(x, asked))
            keyed = ((f"{x.namespace}/{x.name}/{x.uid}", x) for x in rows)
            found, following = page_of(sorted(keyed, key=lambda x: x[0]), asked.page)
            return PodPage(following, found)

        return await self._on_thread(make)

    async def _ledger_for(self, asked: Asked) -> LedgerSnapshot:
        """For a list that a viewer without a role sees of one namespace."""
        namespace = asked.get("namespace")
        if not asked.viewer.reads:
            if not namespace:
                raise refused(NO_NAMESPACE)
            await self._demand_pods(asked, namespace, "")
        facts = self._sources.facts()
        if not facts.is_ledger_known:
            text = "the ledger was not read, or too long ago"
            raise refused(Refusal(ReasonCode.LEDGER_UNAVAILABLE, text))
        return facts.ledger

    async def _demand_pods(self, asked: Asked, namespace: str, name: str) -> None:
        refusal = await self._viewers.about_pods(asked.viewer, namespace, name)
        if refusal is not None:
            raise refused(refusal)

    async def _pod(self, asked: Asked) -> msgspec.Struct:
        namespace, name = asked.get("namespace"), asked.get("name")
        await self._demand_pods(asked, namespace, name)
        if self._sources.trace is None:
            raise refused(Refusal(ReasonCode.POD_UNKNOWN, NO_PODS))
        async with self._few:
            found = await self._sources.trace(namespace, name)
        if isinstance(found, Refusal):
            raise refused(found)
        trace = trace_message(found, self._sources.clock.wall_ns())
        return pod_detail(trace if asked.viewer.has_serials else shown_trace(trace))

    async def _verdicts(self, asked: Asked) -> VerdictPage:
        if self._sources.verdicts is None:
            raise refused(Refusal(ReasonCode.POD_UNKNOWN, NO_PODS))
        async with self._few:
            found = await self._sources.verdicts(asked.get("namespace"), asked.get("name"))
        if isinstance(found, Refusal):
            raise refused(found)
        told = verdicts(found.fits, has_details=asked.viewer.has_serials)
        rows, following = page_of(((x.node, x) for x in told), asked.page)
        return VerdictPage(following, rows)

    async def _reservations(self, asked: Asked) -> ReservationPage:
        ledger = await self._ledger_for(asked)

        def make() -> ReservationPage:
            rows = (_reservation_row(ledger, x) for x in sorted(ledger.by_reservation))
            fitting = (
                (x.reservation_id, x)
                for x in rows
                if asked.get("namespace") in {"", x.namespace} and asked.get("node") in {"", x.node}
            )
            found, following = page_of(fitting, asked.page)
            return ReservationPage(following, found)

        return await self._on_thread(make)

    # --- audit log

    async def _audit(self, asked: Asked) -> AuditPage:
        if not asked.viewer.has_serials:
            text = "records name serial numbers: they are for inspectors and operators"
            raise refused(Refusal(ReasonCode.ROLE_DENIED, text))
        after = asked.page.after
        if after and not after.isdecimal():
            text = f"after: {after[:80]!a}, expected the number of a record"
            raise ProblemError(HTTPStatus.BAD_REQUEST, text)
        try:
            return await self._on_thread(
                partial(search, self._sources.audit, asked.query, asked.page)
            )
        except OSError as error:
            text = f"the log cannot be read: {error.strerror}"
            raise refused(Refusal(ReasonCode.AUDIT_UNAVAILABLE, text)) from None

    async def _checkpoint(self, _asked: Asked) -> CheckpointView:
        published = self._published()
        return CheckpointView(
            note=published.note,
            key=published.key,
            key_changes=list(published.key_changes),
            size=published.head.size,
            root=b64encode(published.head.root).decode(),
            witnesses=list(self._sources.witnesses()),
            alarms={x: list(codes) for x, codes in self._sources.alarms().items()},
        )

    async def _proof(self, asked: Asked) -> ProofView:
        numbers = {x: int(asked.get(x) or 0) for x in ("record", "from", "size")}
        last = self._published().head.size
        size = numbers["size"] or last
        if not numbers["record"] and not numbers["from"]:
            raise ProblemError(HTTPStatus.BAD_REQUEST, "expected record or from, or both")
        for name in ("record", "from", "size"):
            most = last if name == "size" else size
            if numbers[name] > most:
                text = f"{name}: {numbers[name]}, expected at most {most}"
                raise ProblemError(HTTPStatus.BAD_REQUEST, text)

        def make() -> ProofView:
            folder, record, old = self._sources.audit, numbers["record"], numbers["from"]
            inclusion = prove_inclusion(folder, record, size) if record else ()
            consistency = prove_consistency(folder, old, size) if old else ()
            return ProofView(size, _encoded(inclusion), _encoded(consistency))

        try:
            return await self._on_thread(make)
        except NoProofError as error:
            raise refused(Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))) from None

    def _published(self) -> Published:
        found = self._sources.published()
        if found is None:
            text = "no checkpoint is published yet"
            raise refused(Refusal(ReasonCode.AUDIT_UNAVAILABLE, text))
        return found


def _wanted(asked: Asked) -> Wanted:
    get = asked.get
    return Wanted(
        q=get("q"),
        node=get("node"),
        node_state=get("node-state"),
        state=get("state"),
        reason=get("reason"),
        attestation_hash=get("class"),
        model=get("model"),
        namespace=get("namespace"),
        zone=get("zone"),
        pool=get("pool"),
        mode=get("mode"),
    )


def _gpu_keyed(row: GpuRow) -> tuple[str, GpuRow]:
    """Keys come in the order of nodes: a space is before all that a node's name can go on with."""
    return f"{row.node} {row.index:04}", row


def _is_wanted(row: PodRow, asked: Asked) -> bool:
    get = asked.get
    return (
        get("namespace") in {"", row.namespace}
        and get("state") in {"", row.state}
        and get("node") in {"", row.node}
        and get("q") in row.name
    )


def _class_row(found: fleet_pb2.Class) -> ClassRow:
    return ClassRow(
        reference=found.attestation_hash or next(iter(found.names), ""),
        hashes=[found.attestation_hash] if found.attestation_hash else list(found.hashes),
        names=list(found.names),
        level=found.level,
        nodes=list(found.nodes),
        gpus=found.gpu_count,
        document=found.document,
    )


def _reservation_row(ledger: LedgerSnapshot, name: str) -> ReservationRow:
    parts: list[tuple[str, str, Holder]] = [
        (x.record.gpu, x.record.node, holder)
        for x in ledger.holding(name)
        if (holder := x.record.holder(name)) is not None
    ]
    _, node, first = parts[0]
    pod = first.pod
    return ReservationRow(
        name,
        pod.namespace,
        pod.name or "",
        pod.uid or "",
        node,
        {gpu: holder.state.value for gpu, _, holder in parts},
    )


def _encoded(proof: Iterable[bytes]) -> list[str]:
    return [b64encode(x).decode() for x in proof]
