"""Reserves GPUs for pods at their creation, and gives each reservation to one pod.

`decision.choose_early` judges pods and nodes. Must not judge them here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from controller.admission.early_reservation import (
    DRY_RUN_ID,
    EarlyAsk,
    Given,
    Granted,
)
from controller.binding.decision import (
    BindingView,
    EarlyPlace,
    choose_early,
    reference_of,
    taken_up,
)
from controller.binding.records import ReservationChange, ReservationSink, reservation_record
from controller.binding.request import (
    PodStates,
    PodsUnavailableError,
)
from controller.binding.webhook import Granting
from controller.fleet.directory import KnownNode
from controller.ledger.claim import (
    answered_before,
    bound_to_pod,
    held_early,
    open_proposals,
)
from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodRef,
    PodSeen,
    in_claiming_order,
)
from controller.ledger.reservation_id import ReservationIds, request_nonce
from controller.ledger.store import LedgerStore, LedgerUnavailableError, change_record
from controller.placement.keys import RESERVATION_ID, SEED_RESERVATION_ID
from controller.placement.snapshot import GpuUse
from controller.record import AuditLog, AuditUnavailableError
from gpuwarden.reasons import ReasonCode, Refusal

# --- reservations at a pod's creation
# The mutating webhook asks for a reservation before the pod has a name or a UID. The validating
# webhook reports which pod it became. A pod that is created again and again, because a later
# admission step refuses it, gets what was reserved for the one before, or waits.
# `decision.choose_early` judges pods and nodes.

MOST_CHOICES_EARLY: Final = 16
"""Times that another replica may be faster at the GPUs that were chosen: many pods are made at
once, and all of them are offered the same GPU first."""
_PENDING: Final = Refusal(
    ReasonCode.RESERVATION_PENDING,
    "GPUs are reserved for an earlier pod of this owner, which is not there yet",
)
_UNSURE: Final = frozenset({ReasonCode.CONTROLLER_NOT_READY, ReasonCode.LEDGER_UNAVAILABLE})
_NOT_THERE: Final = Refusal(
    ReasonCode.RESERVATION_EXPIRED, "what was reserved at its creation is not reserved any more"
)


@dataclass(eq=False, kw_only=True)
class EarlyReservations:
    """Implements `EarlyReservations`; used from one event loop."""

    view: Callable[[], BindingView]
    use: GpuUse
    nodes: Callable[[], Mapping[str, KnownNode]]
    """The cluster's."""
    pods: PodStates
    store: LedgerStore
    granting: Granting
    audit: AuditLog
    sink: ReservationSink
    ids: ReservationIds | None
    _turns: dict[PodRef | str, tuple[asyncio.Lock, int]] = field(init=False, default_factory=dict)
    """Of owners that are being reserved for, and how many of their pods wait."""

    async def reserve(self, ask: EarlyAsk) -> Given | Refusal:
        """Reserve GPUs for a pod that is not there yet; of a dry run nothing stays."""
        async with self._turn(self._key_of(ask)):
            try:
                found, is_new = await self._claim(ask)
            except (LedgerUnavailableError, PodsUnavailableError) as error:
                found, is_new = Refusal(ReasonCode.LEDGER_UNAVAILABLE, str(error)), False
        if not ask.dry_run:
            code = found.code if isinstance(found, Refusal) else ReasonCode.ACCEPTED
            self.sink.reserved_early(code, is_new=is_new)
        return found if isinstance(found, Refusal) else _given(ask, found)

    async def take(self, granted: Granted, pod: PodRef) -> Refusal | None:
        """Make a reservation this very pod's, once and for all; the pod has its UID now.

        It counts once its record with the UID is durable.
        """
        gpus = in_claiming_order(granted.gpus)
        try:
            for gpu in gpus:
                refusal = await self._take_one(granted.reservation, gpu, pod)
                if refusal is not None:
                    return refusal
            taken = ReservationChange(
                pod, granted.reservation, granted.node, gpus, HolderState.PROPOSED, "creation"
            )
            await self.audit.grant(reservation_record(taken))
        except LedgerUnavailableError as error:
            return Refusal(ReasonCode.LEDGER_UNAVAILABLE, str(error))
        except AuditUnavailableError as error:
            return Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
        return None

    async def _claim(self, ask: EarlyAsk) -> tuple[EarlyPlace | Refusal, bool]:
        """And whether GPUs were claimed that were not before."""
        found: EarlyPlace | Refusal = _PENDING
        for _ in range(MOST_CHOICES_EARLY):
            before = await self._find_before(ask)
            if isinstance(before, Refusal):
                return before, False
            found, is_new = self._choose(ask, before), before is None
            if isinstance(found, Refusal) or ask.dry_run:
                return found, False
            if before is not None and before.pod.uid is not None:
                return found, False
            refusal = await self.granting.reserve(found.reserve, found.node, Origin.ADMISSION)
            if refusal is None:
                return found, is_new
            found = refusal
            if refusal.code is not ReasonCode.LEDGER_CONFLICT:
                break
        return found, False

    def _choose(self, ask: EarlyAsk, before: Holder | None) -> EarlyPlace | Refusal:
        view = self._view()
        if before is None:
            return choose_early(ask, view, self.use, self.nodes())
        entry = view.ledger.get(before.gpus[0])
        if entry is None or entry.record.holder(before.reservation) is None:
            return _PENDING
        found = taken_up(ask, view, before, entry.record.node)
        is_unlike = isinstance(found, Refusal) and found.code not in _UNSURE
        return _PENDING if is_unlike else found

    async def _find_before(self, ask: EarlyAsk) -> Holder | Refusal | None:
        """What this pod gets because it was reserved for it, or for one like it, before.

        None: nothing was. Refused: what was reserved is for a pod that may still come.
        """
        ledger, granted = self.store.snapshot(), ask.granted
        if granted is not None and granted.reservation != DRY_RUN_ID:
            await self._catch_up(granted)
            found = held_early(self.store.snapshot(), granted.reservation, None)
            return _NOT_THERE if found is None else found
        again = answered_before(ledger, ask.namespace, request_nonce(ask.namespace, ask.request))
        if again is not None:
            return again
        for holder in open_proposals(ledger, reference_of(ask)):
            if holder.pod.uid is None:
                return holder
            if not await self._is_there(holder.pod):
                return _PENDING
        return None

    async def _is_there(self, pod: PodRef) -> bool:
        pods = self.pods
        return pods.sight(pod) is not None or isinstance(await pods.look(pod), PodSeen)

    async def _catch_up(self, granted: Granted) -> None:
        """Another replica may have reserved it just now."""
        if held_early(self.store.snapshot(), granted.reservation, None) is None:
            for gpu in granted.gpus:
                await self.store.read(gpu)

    async def _take_one(self, reservation: str, gpu: str, pod: PodRef) -> Refusal | None:
        store = self.store

        async def decide(record: GpuRecord | None) -> GpuRecord | Refusal:
            return _NOT_THERE if record is None else bound_to_pod(record, reservation, pod)

        entry = store.snapshot().get(gpu)
        if entry is None or entry.record.holder(reservation) is None:
            await store.read(gpu)
        found = await change_record(store, gpu, decide)
        return found if isinstance(found, Refusal) else None

    def _view(self) -> BindingView:
        return replace(self.view(), claiming=self.granting.gpus)

    @staticmethod
    def _key_of(ask: EarlyAsk) -> PodRef | str:
        """Who shares what is reserved: not pods without owner and name, which are all different."""
        pod = reference_of(ask)
        return ask.request if pod.owner is None and pod.name is None else pod

    @asynccontextmanager
    async def _turn(self, pod: PodRef | str) -> AsyncIterator[None]:
        """One after the other for pods that share what is reserved."""
        lock, waiting = self._turns.get(pod, (asyncio.Lock(), 0))
        self._turns[pod] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(pod)
            if waiting > 1:
                self._turns[pod] = lock, waiting - 1


def _given(ask: EarlyAsk, place: EarlyPlace) -> Given:
    reserve = place.reserve
    annotations = dict(reserve.annotations)
    if ask.dry_run:
        places = {RESERVATION_ID, SEED_RESERVATION_ID} & annotations.keys()
        annotations |= dict.fromkeys(places, DRY_RUN_ID)
    granted = Granted(
        DRY_RUN_ID if ask.dry_run else reserve.reservation,
        ask.namespace,
        place.node,
        reserve.gpus,
    )
    return Given(granted, annotations)
