"""AttestationPolicy and AttestationClass as the API server has them, and what they are told. Pure.

What they may hold stands in `gpuwarden.policy.objects`. The status says what became of an object;
nothing is decided from it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from controller.kube.api.resources import (
    ATTESTATION_CLASSES,
    ATTESTATION_POLICIES,
    Entry,
    Kind,
    Metadata,
)
from controller.policies.file import policy_of
from controller.policy import Policy
from gpuwarden.finding import Finding
from gpuwarden.moment import rfc3339
from gpuwarden.policy.objects import CLASS, POLICY, ObjectKey, judge_objects

ACCEPTED: Final = "Accepted"
"""The condition's type."""
_MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class Said:
    """What an object's status says."""

    is_accepted: bool
    reason: str
    message: str
    generation: int
    """Of the spec that it is about."""
    digest: str = ""
    """Of the policy in force, on the AttestationPolicy."""
    since: str = ""
    """When `is_accepted` came to be so, as the API server writes times."""


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """One of the objects."""

    generation: int
    spec: bytes
    said: Said | None


@dataclass(frozen=True, slots=True)
class Edition:
    """One spec of one object: `generation` counts them up, a new object has a new `uid`."""

    uid: str
    generation: int


class _Metadata(Metadata):
    generation: int = 0


class _Condition(msgspec.Struct, rename="camel", gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class _Status(msgspec.Struct, rename="camel", gc=False):
    conditions: list[_Condition] = []
    policy_digest: str = ""


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: _Status = msgspec.field(default_factory=_Status)


_DECODER: Final = msgspec.json.Decoder(_Object)


def _read(body: bytes) -> tuple[Metadata, PolicyObject]:
    found = _DECODER.decode(body)
    said = next((_said(x, found.status) for x in found.status.conditions if _is_ours(x)), None)
    return found.metadata, PolicyObject(found.metadata.generation, bytes(found.spec), said)


def _is_ours(condition: _Condition) -> bool:
    return condition.type == ACCEPTED


def _said(condition: _Condition, status: _Status) -> Said:
    return Said(
        condition.status == "True",
        condition.reason,
        condition.message,
        condition.observed_generation,
        status.policy_digest,
        condition.last_transition_time,
    )


POLICY_KIND: Final = Kind(ATTESTATION_POLICIES, _read)
CLASS_KIND: Final = Kind(ATTESTATION_CLASSES, _read)


class PolicyObjects:
    """All objects at one moment."""

    def __init__(
        self,
        policies: Mapping[str, Entry[PolicyObject]],
        classes: Mapping[str, Entry[PolicyObject]],
    ) -> None:
        self._objects = {
            **{ObjectKey(POLICY, name): x for name, x in policies.items()},
            **{ObjectKey(CLASS, name): x for name, x in classes.items()},
        }

    def __iter__(self) -> Iterator[tuple[ObjectKey, Entry[PolicyObject]]]:
        return iter(self._objects.items())

    def editions(self) -> Mapping[ObjectKey, Edition]:
        """What the policy is made of."""
        return {key: Edition(x.uid, x.value.generation) for key, x in self._objects.items()}

    def policy(self, *, opaque_hashes: bool = False) -> Policy:
        """The one policy of all; raises PolicyInvalidError that names the objects."""
        specs = {key: _decoded(x.value.spec) for key, x in sorted(self._objects.items())}
        document, text = judge_objects(specs, opaque_hashes=opaque_hashes)
        return policy_of(document, hashlib.sha256(text).hexdigest())


def verdict(
    key: ObjectKey,
    edition: Edition,
    *,
    in_force: Mapping[ObjectKey, Edition],
    findings: Iterable[Finding],
    digest: str,
) -> Said:
    """What is to be said about an object: whether this edition of it is in force, or why not."""
    shown_digest = digest if key.kind == POLICY else ""
    is_accepted = in_force.get(key) == edition
    reason, message = (
        ("InForce", "in force") if is_accepted else ("Refused", _message(key, findings))
    )
    return Said(is_accepted, reason, message, edition.generation, shown_digest)


def _message(key: ObjectKey, findings: Iterable[Finding]) -> str:
    """What is wrong, with the object's own faults first: one of others is enough to refuse all."""
    texts = sorted(map(str, findings), key=lambda x: not x.startswith(f"{key}: "))
    message = "; ".join(texts)
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"


def status_patch(wanted: Said, before: Said | None, wall_ns: int) -> dict[str, Any] | None:
    """The merge patch of the status, or None where it says so already."""
    since = rfc3339(wall_ns, digits=0)
    if before is not None:
        if replace(before, since="") == wanted:
            return None
        if before.is_accepted is wanted.is_accepted:
            since = before.since
    condition = {
        "type": ACCEPTED,
        "status": "True" if wanted.is_accepted else "False",
        "reason": wanted.reason,
        "message": wanted.message,
        "observedGeneration": wanted.generation,
        "lastTransitionTime": since,
    }
    digest = {"policyDigest": wanted.digest} if wanted.digest else {}
    return {"status": {"conditions": [condition], **digest}}


def _decoded(spec: bytes) -> object:
    """None for what cannot be read, which is no mapping."""
    try:
        return msgspec.json.decode(spec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
