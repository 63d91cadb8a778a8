"""NodeEnrollment, the custom resource of one node's pins, denial and instances. Pure.

The schema stands in deploy/; what the API server could not have stored by it is refused
here, not repaired. The record is the `spec`; there is no status, and nothing in the
object makes a node eligible. Its finalizer holds an object that somebody deletes, so that
denials and pins are not shed by one `kubectl delete`.
"""

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from controller.fleet.enrollment import Candidate, Denial, EnrollmentRecord, PinnedGpu
from controller.kube.objects import Kind, Metadata
from controller.kube.resources import ENROLLMENTS, GROUP

API_VERSION: Final = f"{GROUP}/{ENROLLMENTS.version}"
KIND: Final = "NodeEnrollment"
FINALIZER: Final = f"{GROUP}/enrollment"
_SECOND: Final = 1_000_000_000
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z")


class _Part(
    msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Parent of the structs below: what is not set is not there."""


class _Gpu(_Part):
    uuid: str
    serial: str | None = None
    identity_key: str | None = None
    pci_bus_id: str | None = None
    enrolled: bool = False
    incomplete: bool = False


class _Candidate(_Part):
    code: str
    evidence_digest: str
    node_uid: str | None = None
    spire_agent: str | None = None
    gpus: list[_Gpu] = []


class _Denial(_Part):
    code: str
    reason: str
    actor: str
    time: str
    candidate: _Candidate | None = None


class _Spec(_Part):
    node_uid: str | None = None
    spire_agent: str | None = None
    gpus: list[_Gpu] = []
    instance: str | None = None
    superseded: list[str] = []
    denial: _Denial | None = None
    lifted: str | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_DECODER: Final = msgspec.json.Decoder(_Object)


def enrollment_object(record: EnrollmentRecord) -> dict[str, Any]:
    """The whole object, to be created."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": record.node,
            "finalizers": [FINALIZER],
            "labels": {"app.kubernetes.io/managed-by": "gpuwarden"},
        },
        "spec": enrollment_spec(record),
    }


def enrollment_spec(record: EnrollmentRecord) -> dict[str, Any]:
    """The spec of a record."""
    spec: dict[str, Any] = msgspec.to_builtins(
        _Spec(
            record.node_uid,
            record.spire_agent,
            [_gpu(x) for x in record.gpus],
            record.instance,
            list(record.superseded),
            None if record.denial is None else _denial(record.denial),
            None if record.lifted_ns is None else _time(record.lifted_ns),
        )
    )
    return spec


def read_enrollment(body: bytes) -> tuple[Metadata, EnrollmentRecord]:
    """Metadata and record of an object; raises msgspec.MsgspecError or ValueError."""
    found = _DECODER.decode(body)
    spec = found.spec
    return found.metadata, EnrollmentRecord(
        found.metadata.name,
        node_uid=spec.node_uid,
        spire_agent=spec.spire_agent,
        gpus=tuple(_pin(x) for x in spec.gpus),
        instance=spec.instance,
        superseded=tuple(spec.superseded),
        denial=None if spec.denial is None else _read_denial(spec.denial),
        lifted_ns=None if spec.lifted is None else _wall_ns(spec.lifted),
    )


ENROLLMENT_KIND: Final = Kind(ENROLLMENTS, read_enrollment)


def _gpu(pin: PinnedGpu) -> _Gpu:
    return _Gpu(
        pin.uuid,
        pin.serial,
        pin.identity_key,
        pin.pci_bus_id,
        enrolled=pin.enrolled,
        incomplete=not pin.complete,
    )


def _pin(gpu: _Gpu) -> PinnedGpu:
    return PinnedGpu(
        gpu.uuid,
        gpu.serial,
        gpu.identity_key,
        gpu.pci_bus_id,
        enrolled=gpu.enrolled,
        complete=not gpu.incomplete,
    )


def _denial(denial: Denial) -> _Denial:
    shown = denial.candidate
    return _Denial(
        denial.code,
        denial.reason,
        denial.actor,
        _time(denial.wall_ns),
        None
        if shown is None
        else _Candidate(
            shown.code,
            shown.evidence_digest,
            shown.node_uid,
            shown.spire_agent,
            [_gpu(x) for x in shown.gpus],
        ),
    )


def _read_denial(denial: _Denial) -> Denial:
    shown = denial.candidate
    return Denial(
        denial.code,
        denial.reason,
        denial.actor,
        _wall_ns(denial.time),
        None
        if shown is None
        else Candidate(
            shown.code,
            shown.node_uid,
            shown.spire_agent,
            tuple(_pin(x) for x in shown.gpus),
            shown.evidence_digest,
        ),
    )


def _time(wall_ns: int) -> str:
    """RFC 3339 in UTC with nine digits, so that it comes back as it was."""
    seconds, rest = divmod(wall_ns, _SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _wall_ns(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("a time is not RFC 3339 in UTC with nine digits")
    seconds = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    return int(seconds) * _SECOND + int(found[2])
