"""The webhooks for pods: from a request of the API server to the verdict about it.

A pod is decided by itself, from memory, but for pods whose GPUs are reserved at their creation:
those wait for the ledger. In report-only mode every decision is made and shown, and nothing is
patched, reserved or refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from controller.admission.early_reservation import (
    EarlyAsk,
    EarlyReservations,
    Given,
    Granted,
    early_patch,
    granted_early,
)
from controller.admission.mutation import scheduling
from controller.admission.pod import AdmittedPod, decode_admitted
from controller.admission.review import (
    NO_OBJECT,
    AdmissionHandler,
    AdmissionRequest,
    Verdict,
    codes_of,
    reported,
)
from controller.admission.rules import AdmissionRules
from controller.admission.validation import (
    Judged,
    mutated,
    mutated_ephemeral,
    rehearsed,
    validated,
    validated_ephemeral,
)
from controller.ledger.record import PodRef
from controller.placement.cures import is_passing
from controller.placement.pod import PodDecodeError
from controller.placement.requirements import Requirements, controlling_owner
from controller.policy import Policy
from controller.record import Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.policy.texts import shown
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Refusal

_SHOWN_CHARS = 253


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that made the pod; people look there when a pod does not come."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """One decision about a pod that is our business; never of a dry run."""

    step: str
    """`mutate` or `validate`."""
    namespace: str
    pod: str
    owner: Owner | None
    user: str
    refusals: tuple[Refusal, ...]
    enforced: bool
    """Whether the namespace is."""
    reported: bool
    """Whether nothing is refused: report-only mode."""
    reservation: str = ""
    """That was made for it at its creation, where one was."""
    gpus: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The decision in one word."""
        if not self.refusals:
            return "admitted"
        return "reported" if self.reported else "refused"


def admission_record(decision: AdmissionDecision) -> Record:
    """The `admission.decision` record."""
    owner = decision.owner
    early: Mapping[str, Json] = {}
    if decision.reservation:
        early = {"reservation": decision.reservation, "gpus": list(decision.gpus)}
    return Record(
        kind=RecordKind.ADMISSION_DECISION,
        actor=_cut(decision.user) or "unknown",
        subject=f"pod/{_cut(decision.namespace)}/{_cut(decision.pod)}",
        decision=decision.word,
        codes=codes_of(decision.refusals),
        refs={
            "step": decision.step,
            "enforced": decision.enforced,
            "owner": None if owner is None else f"{_cut(owner.kind)}/{_cut(owner.name)}",
            "reasons": [refusal.detail for refusal in decision.refusals],
            **early,
        },
    )


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARS]


MUTATE: Final = "/mutate/pods"
VALIDATE: Final = "/validate/pods"
ENFORCED: Final = "/enforced"
"""Follows a path where the API server itself has seen that the namespace is enforced: our own
copy of the namespaces can lag behind."""
_SEED_MUTATE: Final = "/mutate"
_EPHEMERAL: Final = "ephemeralcontainers"
_MIRROR: Final = "kubernetes.io/config.mirror"
_NODES: Final = "system:nodes"
_UNTOUCHED: Final = Verdict()
_NO_LEDGER: Final = Refusal(ReasonCode.LEDGER_UNAVAILABLE, "this controller keeps no ledger")
_REHEARSAL: Final = "rehearsal"
"""In the place of a request's UID: no reservation is ever made under it."""


def _no_policy() -> None:
    """For an installation that declares nothing."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request about a pod that is to be judged."""

    pod: AdmittedPod
    known: frozenset[str] | None
    """Ephemeral containers that were there; None for a new pod."""
    enforced: bool
    granted: Granted | None = None
    """The reservation that it brings, if it is authentic."""


class PodWebhooks:
    """The mutating and the validating webhook for pods; one for the process.

    Mutation adds what is missing. It refuses requirements that cannot be read, reserved keys, and
    violations of a pod that is to be reserved for, before anything is claimed for it. Validation
    refuses violations, and pods that were not patched.
    """

    def __init__(
        self,
        rules: AdmissionRules,
        *,
        is_enforced: Callable[[str], bool],
        note: Callable[[AdmissionDecision], None],
        early: EarlyReservations | None = None,
        report: bool = False,
        policy: Callable[[], Policy | None] = _no_policy,
    ) -> None:
        """`is_enforced`: whether every GPU pod in a namespace is managed, from memory.

        `note` records a decision; it never waits and never raises. `early` is None where there is
        no ledger. `report`: nothing is patched or refused. `policy`: None where it is not known,
        or where nodes that it says nothing of may serve, too.
        """
        self._rules = rules
        self._is_enforced = is_enforced
        self._note = note
        self._early = early
        self._report = report
        self._policy = policy

    def handlers(self) -> Mapping[str, AdmissionHandler]:
        """The handlers by path."""
        return {
            MUTATE: self.mutate,
            _SEED_MUTATE: self.mutate,
            MUTATE + ENFORCED: partial(self.mutate, marked=True),
            VALIDATE: self.validate,
            VALIDATE + ENFORCED: partial(self.validate, marked=True),
        }

    async def mutate(self, request: AdmissionRequest, *, marked: bool = False) -> Verdict:
        """Patch a pod; `marked`: the API server has seen that its namespace is enforced."""
        asked = self._read(request, marked=marked)
        if not isinstance(asked, _Asked):
            return asked
        if self._report:
            return _UNTOUCHED  # the validating webhook says what it would come to
        if asked.known is None:
            judged = mutated(
                asked.pod,
                self._rules,
                enforced=asked.enforced,
                granted=asked.granted,
                policy=self._policy(),
            )
        else:
            judged = mutated_ephemeral(asked.pod, asked.known, self._rules, enforced=asked.enforced)
        if judged.early is not None and not judged.refusals:
            given = await self._reserve(request, asked, judged.early)
            if isinstance(given, Refusal) and self._may_wait(asked.pod, asked.granted, given):
                return self._kept(asked.pod, judged, given)
            judged = _with(judged, asked.pod, given)
        if judged.refusals:
            self._record(request, "mutate", asked, judged.refusals)
            return Verdict(judged.refusals, result="refused")
        if not judged.patch:
            return _UNTOUCHED
        return Verdict(patch=judged.patch, warnings=judged.warnings, result="patched")

    def _may_wait(self, pod: AdmittedPod, granted: Granted | None, refusal: Refusal) -> bool:
        """Whether the pod is created although nothing can be reserved for it now.

        Its owner would try again after ever longer times. One that names its node would run at
        once, and where there is no ledger no binding webhook reserves either.
        """
        if self._early is None or granted is not None or pod.spec.node_name:
            return False
        return is_passing(refusal.code)

    def _kept(self, pod: AdmittedPod, judged: Judged, refusal: Refusal) -> Verdict:
        """The pod waits and is reserved for when it is bound, as one that did not ask for more."""
        lacking = (x for x in scheduling(pod, self._rules) if x not in judged.patch)
        warnings = (*judged.warnings, _waits(refusal))
        return Verdict(patch=(*judged.patch, *lacking), warnings=warnings, result="patched")

    async def validate(self, request: AdmissionRequest, *, marked: bool = False) -> Verdict:
        """Refuse or admit a pod; `marked` as in `mutate`."""
        asked = self._read(request, marked=marked)
        if not isinstance(asked, _Asked):
            return asked
        judged = self._judged(asked)
        if not judged.concerned:
            return _UNTOUCHED
        refusals = judged.refusals
        if judged.early is not None and not refusals:
            found = await self._take_reserved(request, asked, judged.early)
            refusals = () if found is None else (found,)
        self._record(request, "validate", asked, refusals)
        if not refusals:
            return Verdict(warnings=judged.warnings, result="admitted")
        return reported(refusals) if self._report else Verdict(refusals, result="refused")

    async def rehearse(self, pod: AdmittedPod, namespace: str) -> Judged:
        """What both webhooks would say to a new pod; nothing is recorded, and nothing stays."""
        enforced, ids = (
            self._is_enforced(namespace),
            None if self._early is None else self._early.ids,
        )
        granted = granted_early(pod, namespace, ids, dry_run=True)
        judged = rehearsed(
            pod, self._rules, enforced=enforced, granted=granted, policy=self._policy()
        )
        if judged.early is None or judged.refusals:
            return judged
        if self._early is None:
            return replace(judged, refusals=(_NO_LEDGER,))
        given = await self._early.reserve(
            EarlyAsk(
                request=_REHEARSAL,
                namespace=namespace,
                pod=pod,
                needs=judged.early,
                granted=granted,
                enforced=enforced,
                dry_run=True,
            )
        )
        if isinstance(given, Refusal) and self._may_wait(pod, granted, given):
            return replace(judged, warnings=(*judged.warnings, _waits(given)))
        return _with(judged, pod, given)

    def _read(self, request: AdmissionRequest, *, marked: bool) -> _Asked | Verdict:
        """What is to be judged, or the verdict where nothing is."""
        if request.resource.resource != "pods":
            text = f"{shown(request.resource.resource)}, expected pods: correct the webhook's rules"
            return self._unreadable(text)
        kind = (request.operation, request.sub_resource)
        if kind not in {("CREATE", ""), ("UPDATE", _EPHEMERAL)}:
            return _UNTOUCHED
        try:
            pod = _decoded(request.object)
            known = None if request.operation == "CREATE" else _known(request)
        except PodDecodeError as error:
            return self._unreadable(str(error))
        if _is_mirror(pod, request):
            return _UNTOUCHED
        ids = None if self._early is None else self._early.ids
        granted = granted_early(pod, request.namespace, ids, dry_run=bool(request.dry_run))
        return _Asked(pod, known, marked or self._is_enforced(request.namespace), granted)

    def _judged(self, asked: _Asked) -> Judged:
        rules, injected = self._rules, not self._report
        if asked.known is None:
            return validated(
                asked.pod,
                rules,
                enforced=asked.enforced,
                injected=injected,
                granted=asked.granted,
                policy=self._policy(),
            )
        return validated_ephemeral(
            asked.pod, asked.known, rules, enforced=asked.enforced, injected=injected
        )

    async def _reserve(
        self, request: AdmissionRequest, asked: _Asked, needs: Requirements
    ) -> Given | Refusal:
        if self._early is None:
            return _NO_LEDGER
        return await self._early.reserve(
            EarlyAsk(
                request=request.uid,
                namespace=request.namespace,
                pod=asked.pod,
                needs=needs,
                granted=asked.granted,
                enforced=asked.enforced,
                dry_run=bool(request.dry_run) or self._report,
            )
        )

    async def _take_reserved(
        self, request: AdmissionRequest, asked: _Asked, needs: Requirements
    ) -> Refusal | None:
        """Give the pod what was reserved for it; it has its name and its UID now."""
        granted, metadata = asked.granted, asked.pod.metadata
        if self._report:
            found = await self._reserve(request, asked, needs)
            if isinstance(found, Refusal) and not self._may_wait(asked.pod, granted, found):
                return found
            return None
        if granted is None or self._early is None:
            return self._without_reservation()
        if request.dry_run:
            return None
        if not (metadata.name and metadata.uid):
            return Refusal(ReasonCode.ADMISSION_FAILED, "the pod has no UID yet")
        owner = controlling_owner(asked.pod)
        pod = PodRef(request.namespace, metadata.name, metadata.uid, owner)
        return await self._early.take(granted, pod)

    def _without_reservation(self) -> Refusal | None:
        """What is against a pod that nothing was reserved for: none, if the binding webhook can."""
        if self._early is not None:
            return None
        return Refusal(ReasonCode.BYPASS_UNINJECTED, "no GPU was reserved for it")

    def _unreadable(self, text: str) -> Verdict:
        refusals = (Refusal(ReasonCode.REQ_INVALID, text),)
        return reported(refusals) if self._report else Verdict(refusals, result="refused")

    def _record(
        self,
        request: AdmissionRequest,
        step: str,
        asked: _Asked,
        refusals: tuple[Refusal, ...],
    ) -> None:
        """Record the decision, unless it is about a dry run."""
        if request.dry_run:
            return
        pod, granted = asked.pod, asked.granted
        self._note(
            AdmissionDecision(
                step=step,
                namespace=request.namespace,
                pod=request.name or pod.shown_name,
                owner=_owner(pod),
                user=request.user_info.username,
                refusals=refusals,
                enforced=asked.enforced,
                reported=self._report,
                reservation="" if granted is None else granted.reservation,
                gpus=() if granted is None else granted.gpus,
            )
        )


def _waits(refusal: Refusal) -> str:
    """For whoever creates a pod that is reserved for when it is bound.

    Whoever may create pods may be a tenant, who is told the cause and nothing of others' GPUs. What
    counts against the quota of its namespace is its own.
    """
    is_own = refusal.code is ReasonCode.QUOTA_EXCEEDED
    cause = refusal.detail if is_own else EXPLANATIONS[refusal.code].cause.rstrip(".")
    return (
        f"gpuwarden: {refusal.code} {cause}: no GPU is reserved for the pod yet;"
        " it waits, and gets its GPUs when it is bound"
    )


def _with(judged: Judged, pod: AdmittedPod, given: Given | Refusal) -> Judged:
    if isinstance(given, Refusal):
        return replace(judged, refusals=(given,))
    return replace(judged, patch=(*judged.patch, *early_patch(pod, given)))


def _decoded(raw: msgspec.Raw) -> AdmittedPod:
    if raw == NO_OBJECT:
        raise PodDecodeError("not a Pod: there is none in the request")
    return decode_admitted(raw)


def _known(request: AdmissionRequest) -> frozenset[str]:
    before = _decoded(request.old_object).spec.ephemeral_containers
    return frozenset(container.name for container in before or ())


def _is_mirror(pod: AdmittedPod, request: AdmissionRequest) -> bool:
    """Of a static pod: it runs on its node whatever is said here."""
    return _MIRROR in pod.annotations and _NODES in (request.user_info.groups or ())


def _owner(pod: AdmittedPod) -> Owner | None:
    for each in pod.metadata.owner_references or ():
        if each.controller:
            return Owner(each.api_version, each.kind, each.name, each.uid)
    return None
