"""The webhooks for pods: from a request of the API server to the verdict about it.

Answers from memory and decides by the pod alone, but for pods whose GPUs are reserved at their
creation: those wait for the ledger. In report-only mode every decision is made and shown, and
nothing is patched, reserved or refused.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from controller.admission.decision import AdmissionDecision, DecisionSink, Owner
from controller.admission.early import (
    EarlyAsk,
    EarlyReservations,
    Given,
    Granted,
    early_patch,
    granted_early,
)
from controller.admission.judgement import (
    Judged,
    mutated,
    mutated_ephemeral,
    validated,
    validated_ephemeral,
)
from controller.admission.pod_view import AdmittedPod, decode_admitted
from controller.admission.review import NO_OBJECT, AdmissionHandler, AdmissionRequest, Verdict
from controller.admission.rules import AdmissionRules
from controller.fleet.view import NodeMode
from controller.ledger.record import PodRef
from controller.scheduling.finding import shown
from controller.scheduling.pod import PodDecodeError
from controller.scheduling.refusal_texts import message
from controller.scheduling.requirements import Requirements
from controller.scheduling.share_group import controlling_owner
from gpuwarden.reasons import ReasonCode, Refusal

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


def _any_mode() -> None:
    """For an installation that declares nothing."""


@dataclass(frozen=True, slots=True)
class PodPorts:
    """What the webhooks ask and tell."""

    rules: AdmissionRules
    is_enforced: Callable[[str], bool]
    """Whether every GPU pod in a namespace is guarded, from memory."""
    sink: DecisionSink
    early: EarlyReservations | None = None
    """None where there is no ledger."""
    report: bool = False
    """Report-only: nothing is patched or refused."""
    modes: Callable[[], Collection[NodeMode] | None] = _any_mode
    """The modes that nodes are declared to have; None where others may serve, too."""


def pod_handlers(ports: PodPorts) -> Mapping[str, AdmissionHandler]:
    """The handlers by path."""
    return {
        MUTATE: MutatePods(ports),
        _SEED_MUTATE: MutatePods(ports),
        MUTATE + ENFORCED: MutatePods(ports, marked=True),
        VALIDATE: ValidatePods(ports),
        VALIDATE + ENFORCED: ValidatePods(ports, marked=True),
    }


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request about a pod that is to be judged."""

    pod: AdmittedPod
    known: frozenset[str] | None
    """Ephemeral containers that were there; None for a new pod."""
    enforced: bool
    granted: Granted | None = None
    """The reservation that it brings, if that is ours."""


class MutatePods:
    """Adds what is missing. Only wishes that cannot be read, and our own keys, are refused.

    A pod that is to be reserved for is refused here for open doors too: first, nothing is
    claimed for it.
    """

    def __init__(self, ports: PodPorts, *, marked: bool = False) -> None:
        self._ports = ports
        self._marked = marked

    async def decide(self, request: AdmissionRequest) -> Verdict:
        """Decide."""
        ports = self._ports
        asked = _asked(request, ports, marked=self._marked)
        if not isinstance(asked, _Asked):
            return asked
        if ports.report:
            return _UNTOUCHED  # the validating webhook says what it would come to
        if asked.known is None:
            judged = mutated(asked.pod, ports.rules, enforced=asked.enforced, granted=asked.granted)
        else:
            judged = mutated_ephemeral(asked.pod, asked.known, ports.rules, enforced=asked.enforced)
        if judged.early is not None and not judged.refusals:
            given = await _reserved(ports, request, asked, judged.early)
            judged = _with(judged, asked.pod, given)
        if judged.refusals:
            _note(ports, request, "mutate", asked, judged.refusals)
            return Verdict(judged.refusals, result="refused")
        return Verdict(patch=judged.patch, result="patched") if judged.patch else _UNTOUCHED


class ValidatePods:
    """Refuses what has come through: open doors, and pods that were not patched."""

    def __init__(self, ports: PodPorts, *, marked: bool = False) -> None:
        self._ports = ports
        self._marked = marked

    async def decide(self, request: AdmissionRequest) -> Verdict:
        """Decide."""
        ports = self._ports
        asked = _asked(request, ports, marked=self._marked)
        if not isinstance(asked, _Asked):
            return asked
        judged = self._judged(asked)
        if not judged.concerned:
            return _UNTOUCHED
        refusals = judged.refusals
        if judged.early is not None and not refusals:
            found = await self._against_early(request, asked, judged.early)
            refusals = () if found is None else (found,)
        _note(ports, request, "validate", asked, refusals)
        if not refusals:
            return Verdict(result="admitted")
        return _reported(refusals) if ports.report else Verdict(refusals, (), (), "refused")

    async def _against_early(
        self, request: AdmissionRequest, asked: _Asked, needs: Requirements
    ) -> Refusal | None:
        """Give the pod what was reserved for it; it has its name and its UID now."""
        ports, granted, metadata = self._ports, asked.granted, asked.pod.metadata
        if ports.report:
            found = await _reserved(ports, request, asked, needs)
            return found if isinstance(found, Refusal) else None
        if granted is None or ports.early is None:
            return Refusal(ReasonCode.DOOR_UNINJECTED, "no GPU was reserved for it")
        if request.dry_run:
            return None
        if not (metadata.name and metadata.uid):
            return Refusal(ReasonCode.ADMISSION_FAILED, "the pod has no UID yet")
        owner = controlling_owner(asked.pod)
        pod = PodRef(request.namespace, metadata.name, metadata.uid, owner)
        return await ports.early.take(granted, pod)

    def _judged(self, asked: _Asked) -> Judged:
        rules, injected = self._ports.rules, not self._ports.report
        if asked.known is None:
            return validated(
                asked.pod,
                rules,
                enforced=asked.enforced,
                injected=injected,
                granted=asked.granted,
                modes=self._ports.modes(),
            )
        return validated_ephemeral(
            asked.pod, asked.known, rules, enforced=asked.enforced, injected=injected
        )


def _asked(request: AdmissionRequest, ports: PodPorts, *, marked: bool) -> _Asked | Verdict:
    """What is to be judged, or the verdict where nothing is."""
    if request.resource.resource != "pods":
        text = f"{shown(request.resource.resource)}, expected pods: correct the webhook's rules"
        return _unreadable(text, ports)
    kind = (request.operation, request.sub_resource)
    if kind not in {("CREATE", ""), ("UPDATE", _EPHEMERAL)}:
        return _UNTOUCHED
    try:
        pod = _decoded(request.object)
        known = None if request.operation == "CREATE" else _known(request)
    except PodDecodeError as error:
        return _unreadable(str(error), ports)
    if _is_mirror(pod, request):
        return _UNTOUCHED
    ids, dry_run = None if ports.early is None else ports.early.ids, bool(request.dry_run)
    granted = granted_early(pod, request.namespace, ids, dry_run=dry_run)
    return _Asked(pod, known, marked or ports.is_enforced(request.namespace), granted)


async def _reserved(
    ports: PodPorts, request: AdmissionRequest, asked: _Asked, needs: Requirements
) -> Given | Refusal:
    if ports.early is None:
        return Refusal(ReasonCode.LEDGER_UNAVAILABLE, "this controller keeps no ledger")
    return await ports.early.reserve(
        EarlyAsk(
            request=request.uid,
            namespace=request.namespace,
            pod=asked.pod,
            needs=needs,
            granted=asked.granted,
            enforced=asked.enforced,
            dry_run=bool(request.dry_run) or ports.report,
        )
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


def _unreadable(text: str, ports: PodPorts) -> Verdict:
    refusals = (Refusal(ReasonCode.REQ_INVALID, text),)
    return _reported(refusals) if ports.report else Verdict(refusals, result="refused")


def _reported(refusals: tuple[Refusal, ...]) -> Verdict:
    warnings = tuple(f"would be denied: {message(refusal)}" for refusal in refusals)
    return Verdict(warnings=warnings, result="reported")


def _note(
    ports: PodPorts,
    request: AdmissionRequest,
    step: str,
    asked: _Asked,
    refusals: tuple[Refusal, ...],
) -> None:
    """Nothing is left behind by a dry run."""
    if request.dry_run:
        return
    pod = asked.pod
    ports.sink.note(
        AdmissionDecision(
            step=step,
            namespace=request.namespace,
            pod=request.name or pod.shown_name,
            owner=_owner(pod),
            user=request.user_info.username,
            refusals=refusals,
            enforced=asked.enforced,
            reported=ports.report,
            reservation="" if asked.granted is None else asked.granted.reservation,
            gpus=() if asked.granted is None else asked.granted.gpus,
        )
    )


def _owner(pod: AdmittedPod) -> Owner | None:
    for each in pod.metadata.owner_references or ():
        if each.controller:
            return Owner(each.api_version, each.kind, each.name, each.uid)
    return None
