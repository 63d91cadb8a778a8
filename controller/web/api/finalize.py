"""`POST /finalize`: reads the request, decides, and writes the confirmation.

The record is read first and the pod after it, both past any cache; the write replaces exactly
that record. So a call that is answered twice, or beside the watch, changes nothing twice.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from controller.access import FoundPod
from controller.binding.records import ReservationChange
from controller.binding.request import PodsUnavailableError
from controller.ledger.attempt import Confirmed, finalize_on
from controller.ledger.record import GpuRecord, HolderState, PodRef, key_of
from controller.ledger.reservation_id import ReservationIds, ReservationSubject
from controller.ledger.restore import LivePod
from controller.ledger.store import LedgerStore, LedgerUnavailableError, Written, change_record
from controller.web.api.documents import FinalizeRequest
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode, Refusal

# --- the request

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


# --- the decision


class PodReads(Protocol):
    """The pods of the cluster; what asks the API server is beside this layer."""

    async def find(self, pod: PodRef) -> FoundPod:
        """Read the pod of that UID, past any cache; raises PodsUnavailableError."""


class FinalizeUnavailableError(Exception):
    """Undecided: ledger or API server did not answer (LEDGER_UNAVAILABLE); says which."""


class Finalizer:
    """Used from one event loop; `changed` takes note of each confirmation."""

    def __init__(
        self,
        store: LedgerStore,
        pods: PodReads,
        ids: ReservationIds | None,
        changed: Callable[[ReservationChange], None],
    ) -> None:
        self._store = store
        self._pods = pods
        self._ids = ids
        self._changed = changed

    async def finalize(self, request: FinalizeRequest, cause: str) -> Confirmed | Refusal:
        """Confirm one GPU of a reservation; raises FinalizeUnavailableError.

        `cause` is what the record in the audit log gives as the reason of the change.
        """
        pod = _pod_of(request)

        async def decide(record: GpuRecord | None) -> GpuRecord | Confirmed | Refusal:
            return self._decide(request, record, await self._pods.find(pod))

        try:
            await self._store.read(request.gpu_uuid)
            found: Written | Confirmed | Refusal = await change_record(
                self._store, request.gpu_uuid, decide
            )
        except LedgerUnavailableError as error:
            raise FinalizeUnavailableError(f"the ledger: {error}") from None
        except PodsUnavailableError as error:
            raise FinalizeUnavailableError(f"the pod: {error}") from None
        if isinstance(found, Written):
            self._changed(_change(request, found.record, cause))
            return Confirmed()
        if isinstance(found, Refusal) and found.code is ReasonCode.LEDGER_CONFLICT:
            raise FinalizeUnavailableError(f"the ledger: {found.detail}")
        return found

    def _decide(
        self, request: FinalizeRequest, record: GpuRecord | None, found: FoundPod
    ) -> GpuRecord | Confirmed | Refusal:
        others = self._store.snapshot().holding(request.reservation_id)
        gpus = {
            key_of(gpu)
            for entry in others
            for holder in entry.record.holders
            if holder.reservation == request.reservation_id
            for gpu in holder.gpus
        }
        return decide_finalize(request, record, found, frozenset(gpus), self._ids)


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
    if holder is not None and not _is_named(holder.pod, request):
        pod = f"{request.namespace}/{request.name}"
        return Refusal(ReasonCode.RESERVATION_UNKNOWN, f"pod {pod} has no such reservation")
    if holder is not None and holder.pod.uid != request.uid:
        return Refusal(ReasonCode.RESERVATION_CONFLICT, "the reservation is another pod's")
    authentic = held is not None and named and _is_authentic(held, ids)
    return finalize_on(
        record, request.reservation_id, found.sight, request.uid, authentic=authentic
    )


def _is_named(pod: PodRef, request: FinalizeRequest) -> bool:
    """Whether the request means the holder; an early one may not know its name yet."""
    return pod.namespace == request.namespace and pod.name in {None, request.name}


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
