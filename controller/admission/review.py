"""Review.

Holds: review, decision, pods.
"""

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Protocol

import msgspec

from controller.admission.mutation import (
    EarlyAsk,
    EarlyReservations,
    Given,
    Granted,
    Operation,
    early_patch,
    encode_patch,
    granted_early,
)
from controller.admission.pod_view import AdmissionRules, AdmittedPod, decode_admitted
from controller.admission.validation import (
    Judged,
    mutated,
    mutated_ephemeral,
    validated,
    validated_ephemeral,
)
from controller.ledger.record import PodRef
from controller.placement.pod import PodDecodeError
from controller.placement.requirements import Requirements, controlling_owner
from controller.placement.texts import message, shown
from controller.policy import NodeMode
from controller.record import Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal

# --- review
# AdmissionReview on the wire (admission.k8s.io/v1, and v1beta1, which has the same shape). Pure.
#
# What is answered is well-formed whatever was decided, in the version that was asked, with the
# request's uid: the API server takes anything else for a failed call.

Body = bytes | bytearray | memoryview

_VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_KIND: Final = "AdmissionReview"
_MAX_WARNING_CHARS: Final = 256
"""The API server cuts longer ones, and drops what exceeds 4 KiB in all."""
_MAX_WARNINGS: Final = 8
_MAX_MESSAGE_CHARS: Final = 2048
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_FAILED: Final = 500
_UNAVAILABLE: Final = 503
NO_OBJECT: Final = msgspec.Raw(b"null")
_Name = Annotated[str, msgspec.Meta(max_length=1024)]


class ReviewError(ValueError):
    """The body is no AdmissionReview; the text quotes nothing of it but a version."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class Requester(_Object, frozen=True, gc=False):
    """Who made the request to the API server.

    Names as long as whoever authenticates makes them: they are cut where they are written.
    """

    username: str = ""
    groups: tuple[str, ...] | None = None


class ResourceName(_Object, frozen=True, gc=False):
    """GroupVersionResource."""

    group: _Name = ""
    version: _Name = ""
    resource: _Name = ""


class AdmissionRequest(_Object, frozen=True, gc=False):
    """What the API server asks about."""

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    resource: ResourceName = ResourceName()
    sub_resource: _Name = ""
    name: _Name = ""
    """Empty at the creation of an object whose name is generated."""
    namespace: _Name = ""
    operation: _Name = ""
    user_info: Requester = Requester()
    object: msgspec.Raw = NO_OBJECT
    """As it is to be stored; not decoded here."""
    old_object: msgspec.Raw = NO_OBJECT
    dry_run: bool | None = None


class _Review(_Object, frozen=True, gc=False):
    api_version: _Name = ""
    kind: _Name = ""
    request: AdmissionRequest | None = None


@dataclass(frozen=True, slots=True)
class Review:
    """A request with the version in which it wants to be answered."""

    api_version: str
    request: AdmissionRequest


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request; `refusals` refuse it, the first code first."""

    refusals: tuple[Refusal, ...] = ()
    patch: Sequence[Operation] = ()
    """Of a request that is let in."""
    warnings: tuple[str, ...] = ()
    """Shown to whoever made the request."""
    result: str = "untouched"
    """A word for metrics: untouched, patched, admitted, refused, reported or failed."""


class AdmissionHandler(Protocol):
    """Decides about one kind of request."""

    async def decide(self, request: AdmissionRequest) -> Verdict:
        """Decide, within the deadline of the webhook: after it the call is cancelled.

        An exception refuses the request and stands in the log; it is told to nobody.
        """


_REVIEW = msgspec.json.Decoder(_Review)


def decode_review(body: Body) -> Review:
    """Decode an AdmissionReview; raises ReviewError."""
    try:
        review = _REVIEW.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        place = error if isinstance(error, msgspec.ValidationError) else "no JSON"
        raise ReviewError(f"not an AdmissionReview: {place}") from None
    if review.kind != _KIND or review.api_version not in _VERSIONS:
        version = shown(f"{review.api_version}/{review.kind}")
        expected = f"{_VERSIONS[0]}/{_KIND}"
        raise ReviewError(f"not an AdmissionReview: {version}, expected {expected}")
    if review.request is None:
        raise ReviewError("not an AdmissionReview: no request")
    return Review(review.api_version, review.request)


def encode_answer(review: Review, verdict: Verdict) -> bytes:
    """The AdmissionReview that answers it."""
    response: dict[str, object] = {
        "uid": review.request.uid,
        "allowed": not verdict.refusals,
    }
    if verdict.refusals:
        response["status"] = _status(verdict.refusals)
        response["auditAnnotations"] = {"codes": ",".join(codes_of(verdict.refusals))}
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(encode_patch(verdict.patch)).decode()
    if verdict.warnings:
        cut = [text[:_MAX_WARNING_CHARS] for text in verdict.warnings[:_MAX_WARNINGS]]
        response["warnings"] = cut
    answer = {"apiVersion": review.api_version, "kind": _KIND, "response": response}
    return msgspec.json.encode(answer)


def codes_of(refusals: Sequence[Refusal]) -> tuple[str, ...]:
    """Each code once, in order."""
    return tuple(dict.fromkeys(refusal.code.value for refusal in refusals))


_CODES: Final = {
    ReasonCode.REQ_INVALID: _BAD_REQUEST,
    ReasonCode.ADMISSION_FAILED: _FAILED,
    ReasonCode.GPU_BUSY: _TOO_MANY,
    ReasonCode.GPU_LOST: _TOO_MANY,
    ReasonCode.LEDGER_CONFLICT: _TOO_MANY,
    ReasonCode.RESERVATION_PENDING: _TOO_MANY,
    ReasonCode.CONTROLLER_NOT_READY: _UNAVAILABLE,
    ReasonCode.LEDGER_UNAVAILABLE: _UNAVAILABLE,
    ReasonCode.AUDIT_UNAVAILABLE: _UNAVAILABLE,
}
"""HTTP statuses that say more than that it is forbidden. Without a number of seconds: a client
would wait for those and try again by itself, in the middle of what it was doing."""
_REASONS: Final = {
    _BAD_REQUEST: "BadRequest",
    _FORBIDDEN: "Forbidden",
    _TOO_MANY: "TooManyRequests",
    _FAILED: "InternalError",
    _UNAVAILABLE: "ServiceUnavailable",
}


def _status(refusals: Sequence[Refusal]) -> dict[str, object]:
    code = _CODES.get(refusals[0].code, _FORBIDDEN)
    text = "; ".join(map(message, refusals))
    if len(text) > _MAX_MESSAGE_CHARS:
        text = text[: _MAX_MESSAGE_CHARS - 1] + "…"
    return {"status": "Failure", "code": code, "reason": _REASONS[code], "message": text}


# --- decision
# What one answer of pod admission leaves behind: an audit record, counts, an Event. Pure.

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


class DecisionSink(Protocol):
    """Takes decisions."""

    def note(self, decision: AdmissionDecision) -> None:
        """Record the decision; never waits, never raises."""


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


# --- pods
# The webhooks for pods: from a request of the API server to the verdict about it.
#
# Answers from memory and decides by the pod alone, but for pods whose GPUs are reserved at their
# creation: those wait for the ledger. In report-only mode every decision is made and shown, and
# nothing is patched, reserved or refused.

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
    """Whether every GPU pod in a namespace is managed, from memory."""
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
    """Adds what is missing. Only requirements that cannot be read, and our own keys, are refused.

    A pod that is to be reserved for is refused here for open bypass checks too: first, nothing is
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
    """Refuses what has come through: open bypass checks, and pods that were not patched."""

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
            return Refusal(ReasonCode.BYPASS_UNINJECTED, "no GPU was reserved for it")
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
