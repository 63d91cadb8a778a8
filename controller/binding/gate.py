"""The gate as the API server asks it: finds the pod, decides, claims, and answers in time.

The network is used in two places: one quorum read where the copy of the pods cannot know,
and the claim in the ledger. An answer that comes too late, cannot be made durable in the
audit log, or stands on a ledger that was found to have gone backwards meanwhile, takes its
claim back. A retry for the same pod and node finds its own claim.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from controller.admission.early import DRY_RUN_ID, granted_early
from controller.admission.review import AdmissionRequest, Verdict
from controller.binding.decision import (
    Decision,
    Placed,
    Refused,
    Reserve,
    Untouched,
    decide_binding,
    forged,
)
from controller.binding.granting import Granting
from controller.binding.recent_denials import RecentDenials
from controller.binding.records import BindDecision
from controller.binding.request import BindingDecodeError, BindingRequest, read_binding
from controller.binding.results import binding_patch, same_pod_patch
from controller.binding.stored_pod import PodsUnavailableError, StoredPod, stale_binding
from controller.binding.view import GateView
from controller.ledger.early import held_early
from controller.ledger.states import Origin
from controller.ledger.store import Entry, LedgerUnavailableError
from controller.scheduling.refusal_texts import message
from controller.scheduling.wish_keys import RESERVATION_ID, SEED_RESERVATION_ID
from gpuwarden.reasons import ReasonCode, Refusal

GATE: Final = "/mutate/bindings"
MOST_CHOICES: Final = 4
"""Times that another replica may be faster at the GPUs that were chosen."""
_UNTOUCHED: Final = Verdict()


class Pods(Protocol):
    """The pods of the cluster."""

    def known(self, namespace: str, name: str) -> StoredPod | None:
        """From the copy; None where it does not know, or is too old to be relied on."""

    async def read(self, namespace: str, name: str) -> StoredPod | None:
        """At its newest, past the copy; raises PodsUnavailableError."""


class Records(Protocol):
    """The store of the ledger."""

    async def read(self, gpu: str) -> Entry | None:
        """The entry at its newest; the snapshot knows it then. Raises LedgerUnavailableError."""


class DecisionSink(Protocol):
    """Takes decisions."""

    def bound(self, decision: BindDecision) -> None:
        """Record the decision; never waits, never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePorts:
    """What the gate asks and tells."""

    pods: Pods
    view: Callable[[], GateView]
    """This moment's snapshots."""
    granting: Granting
    records: Records
    is_enforced: Callable[[str], bool]
    denials: RecentDenials
    sink: DecisionSink
    boottime_ns: Callable[[], int]


class BindingGate:
    """Implements AdmissionHandler; used from one event loop."""

    def __init__(self, ports: GatePorts, *, marked: bool = False) -> None:
        """`marked`: the API server itself has seen that the namespace is enforced."""
        self._ports = ports
        self._marked = marked

    async def decide(self, request: AdmissionRequest) -> Verdict:
        """Decide about a Binding."""
        try:
            asked = read_binding(request)
        except BindingDecodeError as error:
            refusal = Refusal(ReasonCode.REQ_INVALID, str(error))
            if self._ports.view().report:
                return _reported((refusal,))
            return Verdict((refusal,), result="refused")
        enforced = self._marked or self._ports.is_enforced(asked.namespace)
        stored, decision = await self._decided(asked, enforced=enforced)
        return self._answer(asked, stored, decision)

    async def _decided(
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
        for _ in range(MOST_CHOICES):
            view = self._view()
            decision = decide_binding(asked, stored, view, enforced=enforced)
            if not isinstance(decision, Reserve) or asked.dry_run or view.report:
                break
            refusal = await self._ports.granting.reserve(decision, asked.node, Origin.GATE)
            if refusal is None:
                break
            decision = Refused((refusal,), guarded=True)
            if refusal.code is not ReasonCode.LEDGER_CONFLICT:
                break
        return stored, decision

    def _view(self) -> GateView:
        return replace(self._ports.view(), claiming=self._ports.granting.gpus)

    async def _find(self, asked: BindingRequest) -> StoredPod | None:
        """From the copy, unless it cannot be right or has misled us before.

        An open attempt means that a Binding for this version of the pod came to nothing.
        """
        pods, ledger = self._ports.pods, self._ports.view().ledger
        known = pods.known(asked.namespace, asked.pod)
        fits = known is not None and stale_binding(asked, known) is None
        if known is not None and fits and not ledger.by_pod.get(known.uid):
            return known
        return await pods.read(asked.namespace, asked.pod)

    async def _catch_up(self, asked: BindingRequest, stored: StoredPod | None) -> None:
        """Read what was reserved at the pod's creation, where the copy of the ledger lacks it."""
        if stored is None or stored.pod is None:
            return
        view = self._ports.view()
        granted = granted_early(stored.pod, asked.namespace, view.ids)
        if granted is None or held_early(view.ledger, granted.reservation, stored.uid) is not None:
            return
        for gpu in granted.gpus:
            await self._ports.records.read(gpu)

    def _answer(
        self, asked: BindingRequest, stored: StoredPod | None, decision: Decision
    ) -> Verdict:
        report = self._ports.view().report
        if isinstance(decision, Untouched):
            if stored is None or asked.uid is not None or report:
                return _UNTOUCHED
            # It would bind whatever pod has taken this one's name meanwhile, too.
            return Verdict(patch=same_pod_patch(stored))
        refusals = decision.refusals if isinstance(decision, Refused) else ()
        if not asked.dry_run:
            self._note(asked, stored, decision, refusals, report=report)
        if report:
            return _reported(refusals)
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
        if isinstance(decision, Refused) and decision.guarded and not report:
            self._ports.denials.add(uid, asked.node, self._ports.boottime_ns())
        reserve = decision if isinstance(decision, Reserve) and not report else None
        self._ports.sink.bound(
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


def _reported(refusals: tuple[Refusal, ...]) -> Verdict:
    warnings = tuple(f"would be denied: {message(refusal)}" for refusal in refusals)
    return Verdict(warnings=warnings, result="reported")
