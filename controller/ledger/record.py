"""What the ledger stores of one GPU: states, holders, reservation IDs, and what is known of a pod.

Pure values. Must not contain moments: each replica measures time by its own clock.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

# --- states
# The states of a reservation and the only moves between them. Pure.
#
#     Proposed ─┬─> Confirmed ──> Releasing ──> Released
#               ├──────────────────^
#               ├─> Expired
#               └─> Revoked
#
# Proposed is an attempt: an answer was given, nothing is known to run. Confirmed: the pod is
# bound under this reservation. Releasing: the pod has ended, its processes may not have.
# Released, Expired and Revoked are ends: the GPU is free of this holder. A move that is not
# listed is refused; there is no way back into an earlier state. A record begins as Proposed, or
# as Confirmed where a pod runs on the GPU already: one whose record was lost
# (`restored_for_pod`), and one that kubelet gave the GPU to by itself (`allocation_recorded`).


class HolderState(StrEnum):
    """State of one reservation of one GPU."""

    PROPOSED = "Proposed"
    CONFIRMED = "Confirmed"
    RELEASING = "Releasing"
    RELEASED = "Released"
    """The node showed that nothing of the pod is left, or is gone for good."""
    EXPIRED = "Expired"
    """The attempt came to nothing, and can no longer come to anything."""
    REVOKED = "Revoked"
    """The attempt was withdrawn: rolled back, or its pod runs elsewhere."""

    @property
    def is_end(self) -> bool:
        """Whether the GPU is free of this holder."""
        return self in ENDS


class Origin(StrEnum):
    """Who made the reservation."""

    BINDING_WEBHOOK = "binding"
    """The webhook on bindings: the pod exists and is about to be bound."""
    ADMISSION = "admission"
    """The webhook on pods: the pod may not exist yet, and may never."""
    KUBELET = "kubelet"
    """Kubelet, which gave the GPU to a bound pod by its own choice."""


ENDS: Final = frozenset({HolderState.RELEASED, HolderState.EXPIRED, HolderState.REVOKED})

MOVES: Final = frozenset(
    {
        (HolderState.PROPOSED, HolderState.CONFIRMED),
        (HolderState.PROPOSED, HolderState.RELEASING),
        (HolderState.PROPOSED, HolderState.EXPIRED),
        (HolderState.PROPOSED, HolderState.REVOKED),
        (HolderState.CONFIRMED, HolderState.RELEASING),
        (HolderState.RELEASING, HolderState.RELEASED),
    }
)
"""Every move there is."""


class MoveRefusedError(ValueError):
    """A move that is not in `MOVES`: whoever asked for it decided on something old."""


def demand_move(state: HolderState, to: HolderState) -> None:
    """Raise MoveRefusedError unless a holder may go from `state` to `to`."""
    if (state, to) not in MOVES:
        raise MoveRefusedError(f"a reservation does not go from {state} to {to}")


# --- a record
# A record exists while the GPU has a holder; the last end closes it. Records are values: a change
# makes a new record with the next version, and it is written by compare-and-set.

MAX_GPUS: Final = 64
"""Of one reservation."""
MAX_HOLDERS: Final = 64
"""Of one GPU: a share group's pods."""
_GPU: Final = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9](?:[A-Za-z0-9.-]{0,246}[A-Za-z0-9])?")
_CALL: Final = re.compile(r"[0-9a-f]{8,64}")
_ID: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,190}[a-z0-9]")


class RecordInvalidError(ValueError):
    """The values make no record; says which and what was expected."""


def key_of(gpu: str) -> str:
    """The name of a GPU's record: its UUID in lower case, a DNS-1123 subdomain."""
    return gpu.lower()


def is_gpu(text: str) -> bool:
    """Whether a text has the form of a GPU's or MIG device's UUID."""
    return _GPU.fullmatch(text) is not None


def is_reservation(text: str) -> bool:
    """Whether a text has the form of a reservation's id."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod, as far as it is known when it is reserved for."""

    namespace: str
    name: str | None = None
    """None until the API server has made it from generateName."""
    uid: str | None = None
    """None while the pod is unborn."""
    owner: str | None = None
    """UID of the controlling owner."""


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """Pods that may hold one GPU together; equal groups share, nobody else does."""

    namespace: str
    owner: str
    """UID of the controlling owner: pods without one share with nobody."""
    entry: str
    """The map's line: the same text for each of them."""

    def includes(self, pod: PodRef) -> bool:
        """Whether the pod is one of them; of one without an owner nobody knows."""
        return (pod.namespace, pod.owner) == (self.namespace, self.owner)


@dataclass(frozen=True, slots=True)
class Holder:
    """One reservation's part in one GPU."""

    reservation: str
    pod: PodRef
    gpus: tuple[str, ...]
    """All GPUs of the reservation, this one included, in claiming order."""
    origin: Origin
    call: str
    """The claim that added it, unlike any other: it alone may take it back."""
    state: HolderState = HolderState.PROPOSED
    answers: int = 1
    """How many claims rely on it. A later claim that finds its own reservation counts itself in,
    so that neither a rollback nor an expiry that began before takes it away."""
    restored: bool = False
    """Written for a pod that runs, without a claim: it may be beside another holder."""

    @property
    def is_claim(self) -> bool:
        """Whether the pod has the GPU by a claim, of which kubelet knows nothing.

        What a log or a memory has brought back as an end that nobody saw is no claim.
        """
        if self.origin is Origin.KUBELET:
            return False
        return not (self.restored and self.state is HolderState.RELEASING)

    @property
    def was_lost(self) -> bool:
        """Whether the ledger once had it and lost it.

        Of a GPU that kubelet gave nobody knows: each record of one is written for a running pod.
        """
        return self.restored and self.origin is not Origin.KUBELET

    def without_owner(self) -> "Holder":
        """A copy that is of no share group, for the record of another group."""
        return replace(self, pod=replace(self.pod, owner=None))

    def demand_valid(self) -> None:
        """Raise RecordInvalidError for values that gpuwarden never makes."""
        if not is_reservation(self.reservation):
            raise RecordInvalidError("reservation: expected an id of ours")
        if not self.pod.namespace:
            raise RecordInvalidError("pod.namespace: expected a namespace")
        if not _CALL.fullmatch(self.call):
            raise RecordInvalidError("call: expected 8 to 64 hex digits")
        if self.answers < 1:
            raise RecordInvalidError(f"answers: {self.answers}, expected 1 or more")
        demand_gpus(self.gpus)


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """All holders of one GPU (a MIG device is a GPU of its own)."""

    gpu: str
    """UUID as the driver writes it."""
    node: str
    holders: tuple[Holder, ...]
    """Never empty; sorted by reservation. Ended ones are only in a closed record."""
    share: ShareGroup | None = None
    """The group that it was claimed for; None = for one holder. Others may be beside it
    nevertheless (`Holder.restored`): `is_shared_by` tells whether the group may join."""
    version: int = 1
    """Counts the changes since the record was made."""

    @property
    def key(self) -> str:
        """Its name."""
        return key_of(self.gpu)

    @property
    def is_claimed(self) -> bool:
        """Whether a pod has it by a claim: kubelet could give it away once more."""
        return any(x.is_claim for x in self.holders)

    @property
    def is_closed(self) -> bool:
        """Whether every holder has ended: the store removes the record, and the GPU is free."""
        return all(x.state.is_end for x in self.holders)

    def is_shared_by(self, share: ShareGroup | None) -> bool:
        """Whether the pods of a group have it together, and nobody else has a part in it."""
        if share is None or self.share != share:
            return False
        return all(share.includes(x.pod) and x.origin is not Origin.KUBELET for x in self.holders)

    def holder(self, reservation: str) -> Holder | None:
        """The part of one reservation."""
        return next((x for x in self.holders if x.reservation == reservation), None)

    def of_pod(self, uid: str) -> Holder | None:
        """The part of one pod."""
        return next((x for x in self.holders if x.pod.uid == uid), None)

    def with_holder(self, holder: Holder) -> "GpuRecord":
        """A copy in which `holder` is the part of its reservation."""
        others = [x for x in self.holders if x.reservation != holder.reservation]
        return self._changed([*others, holder])

    def moved(self, reservation: str, to: HolderState) -> "GpuRecord":
        """A copy in which the reservation is in state `to`; ended ones leave the others alone.

        Raises MoveRefusedError for a move that is not listed, KeyError for an unknown one.
        """
        holder = self.holder(reservation)
        if holder is None:
            raise KeyError(reservation)
        demand_move(holder.state, to)
        moved = replace(holder, state=to)
        others = [x for x in self.holders if x.reservation != reservation]
        return self._changed(others if others and to.is_end else [*others, moved])

    def demand_valid(self) -> None:
        """Raise RecordInvalidError for values that gpuwarden never makes."""
        demand_gpus((self.gpu,))
        if not self.node:
            raise RecordInvalidError("node: expected a node's name")
        if not 1 <= len(self.holders) <= MAX_HOLDERS:
            raise RecordInvalidError(f"holders: {len(self.holders)}, expected 1..{MAX_HOLDERS}")
        names = [x.reservation for x in self.holders]
        if names != sorted(set(names)):
            raise RecordInvalidError("holders: expected one per reservation, sorted")
        if self.version < 1:
            raise RecordInvalidError(f"version: {self.version}, expected 1 or more")
        if self.share is None and sum(not x.restored for x in self.holders) > 1:
            raise RecordInvalidError("holders: several without a share group")
        if any(x.state.is_end for x in self.holders) and not self.is_closed:
            raise RecordInvalidError("holders: an ended one beside others")
        for holder in self.holders:
            holder.demand_valid()
            if self.key not in {key_of(x) for x in holder.gpus}:
                raise RecordInvalidError(f"holders: one that does not name {self.gpu}")

    def _changed(self, holders: list[Holder]) -> "GpuRecord":
        ordered = tuple(sorted(holders, key=lambda x: x.reservation))
        return replace(self, holders=ordered, version=self.version + 1)


def demand_gpus(gpus: tuple[str, ...]) -> None:
    """Raise RecordInvalidError unless `gpus` are UUIDs in claiming order, each once."""
    if not 1 <= len(gpus) <= MAX_GPUS:
        raise RecordInvalidError(f"gpus: {len(gpus)}, expected 1..{MAX_GPUS}")
    if not all(map(is_gpu, gpus)):
        raise RecordInvalidError("gpus: expected UUIDs such as GPU-… or MIG-…")
    keys = [key_of(x) for x in gpus]
    if keys != sorted(set(keys)):
        raise RecordInvalidError("gpus: expected each once, sorted")


def in_claiming_order(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The one order in which everybody claims, so that two claims cannot take turns forever."""
    return tuple(sorted(gpus, key=key_of))


# --- what is known of a pod
# Bound and ended are final for a UID, so an old sight of either counts. That a pod is not bound,
# or does not exist, is true of one moment only.


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The pod as the API server had it."""

    uid: str
    node: str
    """Empty while it is not bound."""
    reservation: str | None
    """The reservation id in its annotations, as written."""
    has_ended: bool
    """Succeeded or Failed; its processes may still run."""


@dataclass(frozen=True, slots=True)
class PodGone:
    """Proven not to be there: its deletion was watched, or a quorum read found no such UID."""


PodSight = PodSeen | PodGone | None
"""None: nothing is known, which proves nothing."""


def is_over(pod: PodSight) -> bool:
    """Whether the pod has proven to be at its end, whatever still runs of it."""
    return isinstance(pod, PodGone) or (isinstance(pod, PodSeen) and pod.has_ended)
