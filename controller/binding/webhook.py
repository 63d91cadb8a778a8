"""The binding webhook and the reservations at a pod's creation: claim, record, answer in time.

`decision` decides. Here the pod is found, GPUs are claimed, the audit record is made durable, and
what cannot be answered in time is taken back.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from controller.admission.early_reservation import (
    DRY_RUN_ID,
    granted_early,
)
from controller.admission.review import AdmissionRequest, Verdict, reported
from controller.binding.decision import (
    BindingView,
    Decision,
    GrantRefusal,
    InFlight,
    Placed,
    Refused,
    Reserve,
    Untouched,
    decide_binding,
    forged,
)
from controller.binding.records import (
    BindDecision,
    ReservationChange,
    ReservationSink,
    reservation_record,
)
from controller.binding.request import (
    BindingDecodeError,
    BindingRequest,
    PodsUnavailableError,
    StoredPod,
    StoredPods,
    binding_patch,
    read_binding,
    same_pod_patch,
    stale_binding,
)
from controller.binding.turns import RecentDenials
from controller.ledger.claim import (
    Claim,
    Claimant,
    held_early,
)
from controller.ledger.record import (
    HolderState,
    Origin,
    PodRef,
)
from controller.ledger.store import LedgerStore, LedgerUnavailableError
from controller.placement.keys import RESERVATION_ID, SEED_RESERVATION_ID
from controller.record import AuditLog, AuditUnavailableError
from gpuwarden.reasons import ReasonCode, Refusal

# --- claim and audit record
# Shared by the binding webhook and the reservations at a pod's creation. A claim is taken back
# where its record could not be made durable, its answer came too late, or a rollback of the
# ledger was detected meanwhile. Must not choose anything.


@dataclass(eq=False, kw_only=True)
class Granting:
    """One per process; used from one event loop."""

    claims: Claimant
    audit: AuditLog
    grant_refusal: GrantRefusal
    """At the moment of the answer."""
    sink: ReservationSink
    wake: Callable[[Iterable[str]], None]
    """Have pods tried again that these nodes may take now."""
    draw_call: Callable[[], str]
    """Hex digits, unlike any other's."""
    gpus: dict[str, InFlight] = field(init=False, default_factory=dict)
    """GPUs that claims are about now, and for whom."""
    tasks: set[asyncio.Task[Refusal | None]] = field(init=False, default_factory=set)
    """Kept until they end, also when nobody waits for them any more."""

    async def reserve(self, reserve: Reserve, node: str, origin: Origin) -> Refusal | None:
        """Claim what was decided; a caller that is cancelled gets nothing, and nothing stays."""
        claim = Claim(
            reserve.reservation,
            reserve.pod,
            node,
            reserve.gpus,
            origin,
            self.draw_call(),
            reserve.share,
        )
        self.gpus |= dict.fromkeys(reserve.gpus, InFlight(reserve.pod, reserve.share))
        task = self._keep(asyncio.create_task(self._claim(claim, reserve.evidence)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._keep(asyncio.create_task(self._withdraw(task, claim)))
            raise

    async def _claim(self, claim: Claim, evidence: str) -> Refusal | None:
        change = _change(claim, claim.gpus, HolderState.PROPOSED, _CAUSES[claim.origin])
        reserved = replace(change, evidence=evidence)
        try:
            found = await self.claims.claim(claim)
            if isinstance(found, Refusal):
                return found
            try:
                await self.audit.grant(reservation_record(reserved))
            except AuditUnavailableError as error:
                await self.claims.withdraw(claim)
                return Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
            refusal = self.grant_refusal(claim.node, ())
            if refusal is not None:
                await self._revoke(claim, "what is known became uncertain before the answer")
            return refusal
        finally:
            for gpu in claim.gpus:
                self.gpus.pop(gpu, None)

    async def _withdraw(self, task: "asyncio.Task[Refusal | None]", claim: Claim) -> None:
        """The answer was not given after all."""
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None and task.result() is None:
            await self._revoke(claim, "its answer came too late")

    async def _revoke(self, claim: Claim, cause: str) -> None:
        """Take back a claim that is in the audit log."""
        gpus = await self.claims.withdraw(claim)
        if gpus:
            self.sink.changed(_change(claim, gpus, HolderState.REVOKED, cause))
            self.wake((claim.node,))

    def _keep(self, task: "asyncio.Task[Refusal | None]") -> "asyncio.Task[Refusal | None]":
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


_CAUSES = {Origin.BINDING_WEBHOOK: "bind", Origin.ADMISSION: "admission"}


def _change(
    claim: Claim, gpus: tuple[str, ...], state: HolderState, cause: str
) -> ReservationChange:
    return ReservationChange(claim.pod, claim.reservation, claim.node, gpus, state, cause)


# --- the webhook on Bindings
# The network is used twice: one quorum read where the cache of the pods cannot know, and the
# claim in the ledger. A retry for the same pod and node finds its own claim.

BINDING_WEBHOOK: Final = "/mutate/bindings"
MOST_CHOICES_BINDING: Final = 4
"""Times that another replica may be faster at the GPUs that were chosen."""
_UNTOUCHED: Final = Verdict()


@dataclass(eq=False, kw_only=True)
class BindingWebhook:
    """Implements AdmissionHandler; used from one event loop."""

    pods: StoredPods
    view: Callable[[], BindingView]
    """This moment's snapshots."""
    granting: Granting
    store: LedgerStore
    is_enforced: Callable[[str], bool]
    denials: RecentDenials
    sink: ReservationSink
    boottime_ns: Callable[[], int]
    marked: bool = False
    """The API server itself has seen that the namespace is enforced."""

    async def decide(self, request: AdmissionRequest) -> Verdict:
        """Decide about a Binding."""
        try:
            asked = read_binding(request)
        except BindingDecodeError as error:
            refusal = Refusal(ReasonCode.REQ_INVALID, str(error))
            if self.view().report:
                return reported((refusal,))
            return Verdict((refusal,), result="refused")
        enforced = self.marked or self.is_enforced(asked.namespace)
        stored, decision = await self._decide(asked, enforced=enforced)
        return self._answer(asked, stored, decision)

    async def _decide(
        self, asked: BindingRequest, *, enforced: bool
    ) -> tuple[StoredPod | None, Decision]:
        refused = forged(asked, self._view())
        if refused is not None:
            return None, refused
        try:
            stored = await self._find(asked)
            await self._catch_up(asked, stored)
        except PodsUnavailableError as error:
            return None, Refused((Refusal(ReasonCode.POD_UNKNOWN, str(error)),))
        except LedgerUnavailableError as error:
            return None, Refused((Refusal(ReasonCode.LEDGER_UNAVAILABLE, str(error)),))
        decision: Decision = Refused(())
        for _ in range(MOST_CHOICES_BINDING):
            view = self._view()
            decision = decide_binding(asked, stored, view, enforced=enforced)
            if not isinstance(decision, Reserve) or asked.dry_run or view.report:
                break
            refusal = await self.granting.reserve(decision, asked.node, Origin.BINDING_WEBHOOK)
            if refusal is None:
                break
            decision = Refused((refusal,), managed=True)
            if refusal.code is not ReasonCode.LEDGER_CONFLICT:
                break
        return stored, decision

    def _view(self) -> BindingView:
        return replace(self.view(), claiming=self.granting.gpus)

    async def _find(self, asked: BindingRequest) -> StoredPod | None:
        """From the cache, unless it cannot be right or has been wrong before.

        An open attempt means that a Binding for this version of the pod came to nothing.
        """
        pods, ledger = self.pods, self.view().ledger
        known = pods.known(asked.namespace, asked.pod)
        fits = known is not None and stale_binding(asked, known) is None
        if known is not None and fits and not ledger.by_pod.get(known.uid):
            return known
        return await pods.read(asked.namespace, asked.pod)

    async def _catch_up(self, asked: BindingRequest, stored: StoredPod | None) -> None:
        """Read what was reserved at the pod's creation, where the ledger's snapshot lacks it."""
        if stored is None or stored.pod is None:
            return
        view = self.view()
        granted = granted_early(stored.pod, asked.namespace, view.ids)
        if granted is None or held_early(view.ledger, granted.reservation, stored.uid) is not None:
            return
        for gpu in granted.gpus:
            await self.store.read(gpu)

    def _answer(
        self, asked: BindingRequest, stored: StoredPod | None, decision: Decision
    ) -> Verdict:
        report = self.view().report
        if isinstance(decision, Untouched):
            if stored is None or asked.uid is not None or report:
                return _UNTOUCHED
            # It would bind whatever pod has taken this one's name meanwhile, too.
            return Verdict(patch=same_pod_patch(stored))
        refusals = decision.refusals if isinstance(decision, Refused) else ()
        if not asked.dry_run:
            self._note(asked, stored, decision, refusals, report=report)
        if report:
            return reported(refusals)
        if isinstance(decision, Refused) or stored is None:
            return Verdict(refusals, result="refused")
        annotations = dict(decision.annotations)
        if asked.dry_run and isinstance(decision, Reserve):
            places = {RESERVATION_ID, SEED_RESERVATION_ID} & annotations.keys()
            annotations |= dict.fromkeys(places, DRY_RUN_ID)
        return Verdict(patch=binding_patch(asked, stored, annotations), result="patched")

    def _note(
        self,
        asked: BindingRequest,
        stored: StoredPod | None,
        decision: Refused | Placed | Reserve,
        refusals: tuple[Refusal, ...],
        *,
        report: bool,
    ) -> None:
        uid = "" if stored is None else stored.uid
        if isinstance(decision, Refused) and decision.managed and not report:
            pod = PodRef(asked.namespace, asked.pod, uid)
            self.denials.add(pod, asked.node, decision.refusals[0], self.boottime_ns())
        reserve = decision if isinstance(decision, Reserve) and not report else None
        self.sink.bound(
            BindDecision(
                namespace=asked.namespace,
                pod=asked.pod,
                uid=uid,
                node=asked.node,
                user=asked.user,
                refusals=refusals,
                reported=report,
                reservation="" if reserve is None else reserve.reservation,
                gpus=() if reserve is None else reserve.gpus,
                evidence="" if isinstance(decision, Refused) else decision.evidence,
            )
        )
