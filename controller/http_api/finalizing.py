"""`POST /finalize`: reads what there is, decides, and writes the confirmation.

The record is read first and the pod after it, both past any copy; the write replaces exactly
that record. So a call that is answered twice, or beside the watch, changes nothing twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from controller.binding.records import ReservationChange
from controller.binding.stored_pod import PodsUnavailableError
from controller.http_api.documents import FinalizeRequest
from controller.ledger.adoption import LivePod
from controller.ledger.confirm import Confirmed, finalize_on
from controller.ledger.pods import PodGone, PodSeen
from controller.ledger.record import GpuRecord, PodRef, key_of
from controller.ledger.reservation_id import ReservationIds, ReservationSubject
from controller.ledger.states import HolderState
from controller.ledger.store import LedgerStore, LedgerUnavailableError
from gpuwarden.reasons import ReasonCode, Refusal

MOST_RACES: Final = 4
"""Times that another may be faster at the record."""


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod at its newest."""

    sight: PodSeen | PodGone
    held: LivePod | None
    """What it says that it holds; None where it is unbound, gone, or holds nothing."""


class PodReads(Protocol):
    """The pods of the cluster."""

    async def find(self, pod: PodRef) -> FoundPod:
        """The pod of that UID, past the copy; raises PodsUnavailableError."""


class FinalizeUnavailableError(Exception):
    """Undecided: ledger or API server did not answer (LEDGER_UNAVAILABLE); says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizePorts:
    """What is asked and told."""

    store: LedgerStore
    pods: PodReads
    ids: ReservationIds | None
    changed: Callable[[ReservationChange], None]


class Finalizer:
    """Used from one event loop."""

    def __init__(self, ports: FinalizePorts) -> None:
        self._ports = ports

    async def finalize(self, request: FinalizeRequest, cause: str) -> Confirmed | Refusal:
        """Confirm one GPU of a reservation; raises FinalizeUnavailableError.

        `cause` is what the record in the audit log gives as the reason of the change.
        """
        ports = self._ports
        try:
            for _ in range(MOST_RACES):
                entry = await ports.store.read(request.gpu_uuid)
                found = await ports.pods.find(_pod_of(request))
                record = None if entry is None else entry.record
                decided = self._decided(request, record, found)
                if not isinstance(decided, GpuRecord):
                    return decided
                if await ports.store.compare_and_set(entry, decided):
                    ports.changed(_change(request, decided, cause))
                    return Confirmed()
        except LedgerUnavailableError as error:
            raise FinalizeUnavailableError(f"the ledger: {error}") from None
        except PodsUnavailableError as error:
            raise FinalizeUnavailableError(f"the pod: {error}") from None
        raise FinalizeUnavailableError("too many others change the record")

    def _decided(
        self, request: FinalizeRequest, record: GpuRecord | None, found: FoundPod
    ) -> GpuRecord | Confirmed | Refusal:
        others = self._ports.store.snapshot().holding(request.reservation_id)
        gpus = {
            key_of(gpu)
            for entry in others
            for holder in entry.record.holders
            if holder.reservation == request.reservation_id
            for gpu in holder.gpus
        }
        return decide_finalize(request, record, found, frozenset(gpus), self._ports.ids)


def decide_finalize(
    request: FinalizeRequest,
    record: GpuRecord | None,
    found: FoundPod,
    elsewhere: frozenset[str],
    ids: ReservationIds | None,
) -> GpuRecord | Confirmed | Refusal:
    """The record to write, that nothing is left to do, or why not.

    `elsewhere`: keys of the GPUs that the ledger's records give the reservation. A GPU that is
    none of them, nor of those that the pod names, is another's.
    """
    held = found.held
    named = held is not None and held.reservation == request.reservation_id
    theirs = elsewhere or (frozenset(map(key_of, held.gpus)) if held and named else frozenset())
    if theirs and key_of(request.gpu_uuid) not in theirs:
        text = "the reservation is not of this GPU"
        return Refusal(ReasonCode.RESERVATION_CONFLICT, text)
    holder = None if record is None else record.holder(request.reservation_id)
    if holder is not None and holder.pod.uid != request.uid:
        return Refusal(ReasonCode.RESERVATION_CONFLICT, "the reservation is another pod's")
    authentic = held is not None and named and _is_authentic(held, ids)
    return finalize_on(
        record, request.reservation_id, found.sight, request.uid, authentic=authentic
    )


def _is_authentic(held: LivePod, ids: ReservationIds | None) -> bool:
    subject = ReservationSubject(held.pod.namespace, held.node, held.gpus, held.pod.uid)
    return ids is not None and ids.is_authentic(held.reservation, subject)


def _pod_of(request: FinalizeRequest) -> PodRef:
    return PodRef(request.namespace, request.name, request.uid)


def _change(request: FinalizeRequest, record: GpuRecord, cause: str) -> ReservationChange:
    return ReservationChange(
        _pod_of(request),
        request.reservation_id,
        record.node,
        (record.gpu,),
        HolderState.CONFIRMED,
        cause,
    )
