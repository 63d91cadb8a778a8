"""What the scorer is told of a run that has ended: on which attested GPU type, with what driver.

The GPUs are those that the ledger has for the pod, or any of a node whose GPUs are all of one
model; what they are, accepted evidence says. Labels of nodes say nothing here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.fleet.view import Acceptance, NodeState, NodeView
from controller.ledger.record import key_of
from controller.placement.gpu_type import type_of
from controller.runs.pod_run import PodRun, RunEnd, Unreported
from controller.scoring.learned import Observation

_MIG: Final = key_of("MIG-")


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A pod whose end was seen."""

    namespace: str
    name: str
    uid: str
    node: str
    run: PodRun
    beside: tuple[str, ...] = ()
    """Job types, and owners, that ran on its node for half of its time or longer."""


def observation(
    ended: EndedRun, gpus: tuple[str, ...], node: NodeView | None, now_ns: int
) -> Observation | Unreported:
    """What to report; `gpus` are the UUIDs that the ledger has for the pod, none of them too."""
    run = ended.run
    if not isinstance(run.end, RunEnd):
        return run.end or Unreported.UNMEASURED
    if not (gpus or run.by_kubelet):
        return Unreported.NO_GPUS
    if node is None or node.acceptance is None or node.state(now_ns) is not NodeState.ELIGIBLE:
        return Unreported.NOT_ATTESTED
    found = _gpu_type(gpus, node.acceptance)
    if isinstance(found, Unreported):
        return found
    succeeded = run.end is RunEnd.SUCCEEDED
    return Observation(
        job_type=run.job_type,
        gpu_type=found,
        runtime_s=run.seconds if succeeded else 0.0,
        colocated=ended.beside if succeeded else (),
        succeeded=succeeded,
        driver=node.acceptance.host.driver or "",
        image=run.image,
        run_id=ended.uid,
    )


def _gpu_type(gpus: Iterable[str], acceptance: Acceptance) -> str | Unreported:
    keys = {key_of(x) for x in gpus}
    mine = [x for x in acceptance.gpus if not keys or key_of(x.uuid) in keys]
    if any(x.startswith(_MIG) for x in keys) or (not keys and any(x.mig_devices for x in mine)):
        return Unreported.MIG
    if keys and len(mine) < len(keys):
        return Unreported.UNKNOWN_TYPE
    return type_of(mine) or Unreported.UNKNOWN_TYPE


class _Answer(msgspec.Struct, frozen=True, gc=False):
    saved: bool = True


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def is_saved(answer: bytes) -> bool:
    """Whether a scorer that took a run need not be told of it again: unless it says `saved: false`.

    Others than gpuwarden's own say nothing of it.
    """
    try:
        return _ANSWER.decode(answer).saved
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True


def observation_body(seen: Observation) -> bytes:
    """The body of `POST /v1/observe`.

    A run that failed has no time: a scorer that does not know `status` then refuses it, instead of
    taking a crash for a fast run.
    """
    time = {"measured_runtime_s": seen.runtime_s} if seen.succeeded else {}
    return msgspec.json.encode(
        {
            "job_type": seen.job_type,
            "gpu_type": seen.gpu_type,
            **time,
            "colocated_job_types": seen.colocated,
            "status": (RunEnd.SUCCEEDED if seen.succeeded else RunEnd.FAILED).value,
            "driver": seen.driver,
            "image": seen.image,
            "run_id": seen.run_id,
        }
    )
