"""GPUReservation, the custom resource of one GPU's reservation record. Pure.

The schema stands in deploy/; what the API server could not have stored by it is refused
here, not repaired. The record is the `spec`; `status` is a summary for people that nothing
reads back. Its finalizer holds an object that somebody deletes, or whose definition goes:
a GPU in use is not freed by one `kubectl delete`. The final write of a record's life marks
its holders as ended and takes the finalizer off, so that an object that vanished otherwise
is known to have been removed by force.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controller.kube.objects import Kind, Metadata
from controller.kube.resources import GROUP, RESERVATIONS
from controller.ledger.record import GpuRecord, Holder, PodRef, ShareGroup, key_of
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import Entry

API_VERSION: Final = f"{GROUP}/{RESERVATIONS.version}"
KIND: Final = "GPUReservation"
FINALIZER: Final = f"{GROUP}/reservation"


@dataclass(frozen=True, slots=True)
class KeptReservation:
    """What is known of one object."""

    entry: Entry
    finalizers: tuple[str, ...]
    is_deleted: bool
    """Somebody has asked for its deletion; a finalizer holds it."""
    status: dict[str, Any] | None
    """As it is shown."""


class _Part(
    msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Parent of the structs below: what is not set is not there."""


class _Pod(_Part):
    namespace: str
    name: str | None = None
    uid: str | None = None
    owner: str | None = None


class _Holder(_Part):
    reservation: str
    pod: _Pod
    gpus: list[str]
    origin: Origin
    call: str
    state: HolderState
    answers: int
    adopted: bool = False


class _Share(_Part):
    namespace: str
    owner: str
    entry: str


class _Spec(_Part):
    gpu: str
    node: str
    version: int
    holders: list[_Holder]
    share: _Share | None = None


class _Metadata(Metadata, rename="camel", gc=False):
    creation_timestamp: str | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec
    status: dict[str, Any] | None = None


_DECODER: Final = msgspec.json.Decoder(_Object)


def reservation_object(record: GpuRecord) -> dict[str, Any]:
    """The whole object, to be created."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": record.key,
            "finalizers": [FINALIZER],
            "labels": {"app.kubernetes.io/managed-by": "gpuwarden"},
        },
        "spec": reservation_spec(record),
    }


def reservation_spec(record: GpuRecord) -> dict[str, Any]:
    """The spec of a record."""
    share = record.share
    spec: dict[str, Any] = msgspec.to_builtins(
        _Spec(
            record.gpu,
            record.node,
            record.version,
            [_holder(x) for x in record.holders],
            None if share is None else _Share(share.namespace, share.owner, share.entry),
        )
    )
    return spec


def reservation_status(record: GpuRecord) -> dict[str, Any]:
    """What `kubectl get` shows of a record: the least advanced holder first."""
    first = min(record.holders, key=lambda x: (_ORDER.index(x.state), x.reservation))
    return {
        "state": first.state.value,
        "holders": len(record.holders),
        "pod": f"{first.pod.namespace}/{first.pod.name or ''}",
        "observedVersion": record.version,
    }


def read_reservation(body: bytes) -> tuple[Metadata, KeptReservation]:
    """Metadata and record of an object; raises msgspec.MsgspecError or ValueError."""
    found = _DECODER.decode(body)
    meta, spec = found.metadata, found.spec
    record = GpuRecord(
        spec.gpu,
        spec.node,
        tuple(sorted((_read_holder(x) for x in spec.holders), key=lambda x: x.reservation)),
        None
        if spec.share is None
        else ShareGroup(spec.share.namespace, spec.share.owner, spec.share.entry),
        spec.version,
    )
    record.demand_valid()
    if meta.name != key_of(record.gpu):
        raise ValueError("spec.gpu is not what the object is named after")
    entry = Entry(record, f"{meta.uid}/{record.version}", meta.creation_timestamp or "")
    kept = KeptReservation(
        entry,
        tuple(meta.finalizers or ()),
        is_deleted=meta.deletion_timestamp is not None,
        status=found.status,
    )
    return meta, kept


def object_uid(entry: Entry) -> str:
    """UID of the object that an entry was read from."""
    return entry.revision.partition("/")[0]


RESERVATION_KIND: Final = Kind(RESERVATIONS, read_reservation)
_ORDER: Final = tuple(HolderState)


def _holder(holder: Holder) -> _Holder:
    pod = holder.pod
    return _Holder(
        holder.reservation,
        _Pod(pod.namespace, pod.name, pod.uid, pod.owner),
        list(holder.gpus),
        holder.origin,
        holder.call,
        holder.state,
        holder.answers,
        adopted=holder.adopted,
    )


def _read_holder(holder: _Holder) -> Holder:
    pod = holder.pod
    return Holder(
        holder.reservation,
        PodRef(pod.namespace, pod.name, pod.uid, pod.owner),
        tuple(holder.gpus),
        holder.origin,
        holder.call,
        holder.state,
        holder.answers,
        adopted=holder.adopted,
    )
