"""The run of a pod as its status tells: when its containers with GPUs began and ended, and how.

Times are those of the node's kubelet, in whole seconds. Pulling images is no part of a run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from controller.admission.hints.request import digest_in, gpu_containers, name_of
from controller.admission.pod import AdmittedPod
from controller.placement.requirements import Requirements, RequirementsInvalid
from gpuwarden.moment import NS_PER_S, wall_ns


class RunEnd(StrEnum):
    """How a run ended, where the scorer is told of it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Unreported(StrEnum):
    """Why the scorer is not told of a run that ended."""

    DELETED = "deleted"
    """Its deletion was asked for first."""
    DISRUPTED = "disrupted"
    """It was evicted or preempted, or its node went."""
    RESTARTED = "restarted"
    """Its last attempt succeeded; how much of the work earlier ones did, nobody knows."""
    UNMEASURED = "unmeasured"
    """It never began, or kubelet lost its times, or it ended in the second in which it began."""
    NO_GPUS = "no_gpus"
    """It had none: nothing was reserved for it, and it asked kubelet for none."""
    NOT_ATTESTED = "not_attested"
    """Its node has no valid evidence at the end of the run."""
    UNKNOWN_TYPE = "unknown_type"
    """The evidence does not have its GPUs, or names no model, or several."""
    MIG = "mig"
    """It had parts of GPUs, which say nothing about whole ones."""


@dataclass(frozen=True, slots=True)
class PodRun:
    """Of a bound pod with a job type or an owner that has GPUs, or may have."""

    job_type: str
    """Or what stands for it, by the pod's owner."""
    by_kubelet: bool
    """Whether kubelet gives it its GPUs."""
    began_ns: int | None = None
    """Wall clock of the node; None before that."""
    ended_ns: int | None = None
    """None until all its containers with GPUs have ended, or where kubelet does not know."""
    end: RunEnd | Unreported | None = None
    """None until the pod has ended."""
    image: str = ""
    """Digest of what the first container with GPUs ran; empty where kubelet does not say."""

    @property
    def seconds(self) -> float:
        """How long it took; 0 where that is not known."""
        if self.began_ns is None or self.ended_ns is None:
            return 0.0
        return max(0, self.ended_ns - self.began_ns) / NS_PER_S


# --- the status


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class _Running(_Object, frozen=True, gc=False):
    started_at: datetime | None = None


class _Terminated(_Object, frozen=True, gc=False):
    started_at: datetime | None = None
    finished_at: datetime | None = None


class _State(_Object, frozen=True, gc=False):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _Container(_Object, frozen=True, gc=False):
    name: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    restart_count: int = 0
    state: _State = _State()


class _Condition(_Object, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _Status(_Object, frozen=True, gc=False):
    conditions: tuple[_Condition, ...] | None = None
    container_statuses: tuple[_Container, ...] | None = None


class _Ran(_Object, frozen=True, gc=False):
    status: _Status = _Status()


_RAN: Final = msgspec.json.Decoder(_Ran)
_DISRUPTED: Final = "DisruptionTarget"
_SUCCEEDED: Final = "Succeeded"


def run_of(
    pod: AdmittedPod,
    needs: Requirements | RequirementsInvalid,
    body: bytes,
    resources: tuple[str, ...],
) -> PodRun | None:
    """The run of a pod, whose JSON is `body`; `resources` are those by which kubelet gives GPUs.

    None for a pod that is not bound, has neither job type nor owner, or asks for no GPU.
    """
    job_type = name_of(pod)
    if not job_type or not pod.spec.node_name:
        return None
    if isinstance(needs, RequirementsInvalid) or not needs.count:
        return None
    status = _RAN.decode(body).status
    mine = _with_gpus(pod, status.container_statuses or (), resources)
    starts = [x for x in map(_start, mine) if x is not None]
    ends = [x for x in map(_end, mine) if x is not None]
    run = PodRun(
        job_type,
        by_kubelet=bool(needs.requests),
        began_ns=wall_ns(min(starts)) if starts else None,
        ended_ns=wall_ns(max(ends)) if starts and len(ends) == len(mine) else None,
        image=digest_in(mine[0].image_id) if mine else "",
    )
    if not pod.has_ended:
        return run
    return replace(run, end=_how(run, pod, status, restarts=any(x.restart_count for x in mine)))


def _with_gpus(
    pod: AdmittedPod, statuses: Iterable[_Container], resources: tuple[str, ...]
) -> list[_Container]:
    """Of the containers whose run counts."""
    by_name = {x.name: x for x in statuses}
    mine = gpu_containers(pod.spec.containers, resources)
    return [by_name[x.name] for x in mine if x.name in by_name]


def _start(container: _Container) -> datetime | None:
    state = container.state.running or container.state.terminated
    return None if state is None else state.started_at


def _end(container: _Container) -> datetime | None:
    state = container.state.terminated
    return None if state is None else state.finished_at


def _how(run: PodRun, pod: AdmittedPod, status: _Status, *, restarts: bool) -> RunEnd | Unreported:
    disrupted = (x for x in status.conditions or () if x.type == _DISRUPTED and x.status == "True")
    if pod.metadata.deletion_timestamp is not None:
        return Unreported.DELETED
    if next(disrupted, None) is not None:
        return Unreported.DISRUPTED
    if pod.status.phase != _SUCCEEDED:
        return Unreported.UNMEASURED if run.began_ns is None else RunEnd.FAILED
    if restarts:
        return Unreported.RESTARTED
    return RunEnd.SUCCEEDED if run.seconds else Unreported.UNMEASURED
