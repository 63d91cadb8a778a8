"""Reservation at a pod's creation: which pods get one, and what such a pod says of it.

A pod that asks for it, or that names its node itself and so never meets the binding webhook, has
its GPUs
before it exists. What the mutating webhook writes about them is known again by the reservation id:
every other pod that brings such keys is refused. Must not choose GPUs nor read the ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from controller.admission.gpu_supply import (
    is_env_pod,
)
from controller.admission.node_selection import demanding, on_node
from controller.admission.pod import (
    AdmittedPod,
)
from controller.admission.review import Operation, Value, Verb, pointer
from controller.ledger.record import PodRef, in_claiming_order
from controller.ledger.reservation_id import ReservationIds, ReservationSubject, is_early_id
from controller.placement.keys import (
    ASSIGNED_UUIDS,
    CDI_ASSIGNMENT,
    CDI_KIND,
    GIVEN_NODE,
    RESERVATION_ID,
    RESULT_ALIASES,
)
from controller.placement.requirements import Requirements
from gpuwarden.reasons import ReasonCode, Refusal

DRY_RUN_ID: Final = "dry-run"
"""In the place of a reservation id: a real id stands for a claim, and there is none."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a pod brings of a reservation that was made for it at its creation."""

    reservation: str
    namespace: str
    node: str
    gpus: tuple[str, ...]
    """In the order in which the container sees them."""


@dataclass(frozen=True, slots=True)
class EarlyAsk:
    """A pod that is to be reserved for; it may not have a name yet, and has no UID."""

    request: str
    """UID of the API server's request: the same again gets the same."""
    namespace: str
    pod: AdmittedPod
    needs: Requirements
    granted: Granted | None
    """Where the pod was here before (reinvocation)."""
    enforced: bool
    """Whether its namespace is: others get no toleration of managed nodes."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Given:
    """What is reserved, and the annotations that say so."""

    granted: Granted
    annotations: Mapping[str, str]


class EarlyReservations(Protocol):
    """Whoever keeps the ledger."""

    @property
    def ids(self) -> ReservationIds | None:
        """Knows our reservation ids; None where nothing can be reserved."""

    async def reserve(self, ask: EarlyAsk) -> Given | Refusal:
        """Reserve GPUs for a pod that is not there yet; of a dry run nothing stays."""

    async def take(self, granted: Granted, pod: PodRef) -> Refusal | None:
        """Make a reservation this very pod's, once and for all; the pod has its UID now."""


def is_early(pod: AdmittedPod, needs: Requirements) -> bool:
    """Whether the pod's GPUs are reserved at its creation: where only gpuwarden gives them."""
    return is_env_pod(needs) and (needs.reserve is not None or bool(pod.spec.node_name))


def unreservable(needs: Requirements) -> Refusal | None:
    """Against a pod that wants GPUs reserved early which kubelet or a driver chooses."""
    given_by_others = bool(needs.requests) or needs.claims
    if needs.reserve is None or needs.accepts is not None or not given_by_others:
        return None
    text = "whoever gives the GPUs that containers request chooses them later: nothing to reserve"
    return Refusal(ReasonCode.EXACT_UNAVAILABLE, text)


def granted_early(
    pod: AdmittedPod, namespace: str, ids: ReservationIds | None, *, dry_run: bool = False
) -> Granted | None:
    """What the pod says, if one of our keys made its id for just that; None for all else.

    `dry_run`: of the request; only then the stand-in for an id counts.
    """
    said = pod.annotations
    reservation, node = said.get(RESERVATION_ID, ""), said.get(GIVEN_NODE, "")
    gpus = tuple(said.get(ASSIGNED_UUIDS, "").split(","))
    found = Granted(reservation, namespace, node, gpus)
    if any(said.get(key, text) != text for key, text in _copies(found).items()):
        return None
    is_ours = dry_run and reservation == DRY_RUN_ID
    return found if is_ours or _is_authentic(found, ids) else None


def early_patch(pod: AdmittedPod, given: Given) -> tuple[Operation, ...]:
    """What is missing in the pod: annotations, and a demand for the node where it names none."""
    place = pointer("metadata", "annotations")
    lacking = {k: x for k, x in given.annotations.items() if pod.annotations.get(k) != x}
    found: list[Operation] = []
    if lacking and not pod.annotations:
        made: Value = dict(sorted(lacking.items()))
        found.append(Operation(Verb.ADD, place, made))
    else:
        found += (Operation(Verb.ADD, place + pointer(k), x) for k, x in sorted(lacking.items()))
    if not pod.spec.node_name:
        found += demanding(pod, on_node(given.granted.node))
    return tuple(found)


def cdi_names(gpus: tuple[str, ...]) -> str:
    """Qualified CDI names, as the annotation of a runtime has them (CDI specification)."""
    return ",".join(f"{CDI_KIND}={uuid}" for uuid in gpus)


def _copies(found: Granted) -> dict[str, str]:
    """What else must say the same, where it is there."""
    own = {
        ASSIGNED_UUIDS: ",".join(found.gpus),
        RESERVATION_ID: found.reservation,
        GIVEN_NODE: found.node,
    }
    twins = {twin: own[key] for twin, key in RESULT_ALIASES.items()}
    return {**twins, CDI_ASSIGNMENT: cdi_names(found.gpus)}


def _is_authentic(found: Granted, ids: ReservationIds | None) -> bool:
    if ids is None or not is_early_id(found.reservation):
        return False
    subject = ReservationSubject(found.namespace, found.node, in_claiming_order(found.gpus))
    return ids.is_authentic(found.reservation, subject)
