"""A stored pod as the allocation trace reads it: times, conditions, assigned GPUs. Pure.

Source: core/v1 Pod. Times are the API server's and kubelet's clocks, as they are there. All text
was written by others and may be anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from controller.placement.keys import ASSIGNED_UUIDS
from controller.placement.pod import Metadata, Pod, PodDecodeError, PodStatus

_ENDED = frozenset({"Succeeded", "Failed"})
_MIRROR = "kubernetes.io/config.mirror"
"""What kubelet writes on the API server's copy of a static pod."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One of `status.conditions`."""

    holds: bool
    at: str
    """Since when; empty where it does not say."""
    text: str
    """Reason and message."""


@dataclass(frozen=True, slots=True)
class PodDocument:
    """A pod at its newest."""

    uid: str
    created_at: str
    deleted_at: str
    """When it has to be gone; empty while nobody has deleted it."""
    phase: str
    text: str
    """Reason and message of its status."""
    node: str
    """Empty until it is bound."""
    scheduled: Condition | None
    started_at: str
    """When the first of its containers started, by kubelet."""
    annotations: Mapping[str, str]

    @property
    def static_uid(self) -> str:
        """The UID that its node knows a static pod by; empty for other pods."""
        return self.annotations.get(_MIRROR, "")

    @property
    def has_ended(self) -> bool:
        """Succeeded or Failed."""
        return self.phase in _ENDED

    @property
    def assigned(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that its annotation assigns to it."""
        return tuple(filter(None, self.annotations.get(ASSIGNED_UUIDS, "").split(",")))


class _Condition(msgspec.Struct, frozen=True, rename="camel", gc=False):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Begun(msgspec.Struct, frozen=True, rename="camel", gc=False):
    started_at: str | None = None


class _ContainerState(msgspec.Struct, frozen=True, gc=False):
    running: _Begun | None = None
    terminated: _Begun | None = None


class _ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    state: _ContainerState = _ContainerState()


class _Status(PodStatus, frozen=True, gc=False):
    reason: str | None = None
    message: str | None = None
    conditions: tuple[_Condition, ...] | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None


class _Metadata(Metadata, frozen=True, gc=False):
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class _Pod(Pod, frozen=True, gc=False):
    """What placement reads of a pod, and what its status says to people."""

    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


_DECODER = msgspec.json.Decoder(_Pod)


def read_pod(body: bytes) -> PodDocument:
    """Read a pod as the API server gives it; raises PodDecodeError."""
    try:
        pod = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodDecodeError(f"not a Pod: {error}") from None
    metadata, status = pod.metadata, pod.status
    return PodDocument(
        uid=metadata.uid or "",
        created_at=metadata.creation_timestamp or "",
        deleted_at=metadata.deletion_timestamp or "",
        phase=status.phase,
        text=_text(status.reason, status.message),
        node=pod.spec.node_name or "",
        scheduled=_scheduled(status.conditions or ()),
        started_at=min(_starts(status.container_statuses or ()), default=""),
        annotations=pod.annotations,
    )


def _scheduled(conditions: Iterable[_Condition]) -> Condition | None:
    for one in conditions:
        if one.type == "PodScheduled":
            text = _text(one.reason, one.message)
            return Condition(one.status == "True", one.last_transition_time or "", text)
    return None


def _starts(containers: Iterable[_ContainerStatus]) -> Iterable[str]:
    for one in containers:
        for state in (one.state.running, one.state.terminated):
            if state is not None and state.started_at:
                yield state.started_at


def _text(reason: str | None, message: str | None) -> str:
    return ": ".join(x for x in (reason, message) if x)
