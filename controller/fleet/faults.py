"""Faults of GPUs that a node has reported (XIDs): how long each takes its GPU away.

A fault is held in the node's enrollment, so that neither the end of a stream nor the restart of a
controller forgets it. It ends when accepted evidence shows the end that policy demands: another
boot, a GPU that was lost since and answers again, or the end of the processes that were on it.
An ended one is remembered until the next boot: the same failure, reported once more, is no new one.

Times are the node's own and are compared only with each other. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller.policy import Consequence
from gpuwarden.evidence.model import Evidence

MAX_FAULTS: Final = 256
"""Of one node; beyond, those that have ended go first, then the oldest, but of each GPU the latest
stays: it alone keeps the GPU from being given away."""

_PROCESSES: Final = "processes"
_WITHOUT_RESET_NO_RETURN: Final = frozenset({"GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"})
"""Errors of a lost GPU that nothing but a reset or a new start of the driver ends."""

Judge = Callable[[int], Consequence]
"""Policy: XID -> consequence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An XID of one GPU, the latest of its number."""

    gpu: str
    xid: int
    boot_id: str
    happened_ms: int
    """The node's CLOCK_BOOTTIME."""
    processes: tuple[int, ...] | None = None
    """PIDs that were on the GPU in the first evidence after it and still are, sorted; None before
    that evidence."""
    was_lost: bool = False
    """Evidence has shown the GPU since as lost in a way that only a reset ends."""
    ended: bool = False


def reported(
    faults: tuple[Fault, ...], gpu: str, xid: int, boot_id: str, happened_ms: int
) -> tuple[Fault, ...]:
    """The faults once this one is known, which may be for the second time."""
    before = next((x for x in faults if (x.gpu, x.xid) == (gpu, xid)), None)
    if before and before.boot_id == boot_id and happened_ms <= before.happened_ms:
        return faults
    others = tuple(x for x in faults if x is not before)
    return _bounded((*others, Fault(gpu, xid, boot_id, happened_ms)))


def after_evidence(
    faults: tuple[Fault, ...], evidence: Evidence, judge: Judge
) -> tuple[Fault, ...]:
    """What is left once this evidence is accepted; the same object where nothing has changed."""
    if not faults:
        return faults
    signed_ms, pids = int(evidence.boottime_ms), _pids(evidence)
    answering = frozenset(x.uuid for x in evidence.inventory.gpus)
    lost = frozenset(x.uuid for x in evidence.inventory.lost if x.error in _WITHOUT_RESET_NO_RETURN)
    after = []
    for fault in faults:
        if fault.boot_id != evidence.boot_id:
            continue
        if fault.ended or signed_ms <= fault.happened_ms:
            after.append(fault)
        elif fault.gpu in answering:
            after.append(_seen(fault, judge(fault.xid), pids.get(fault.gpu)))
        else:
            after.append(replace(fault, was_lost=fault.was_lost or fault.gpu in lost))
    return faults if tuple(after) == faults else tuple(after)


def in_force(faults: Iterable[Fault], judge: Judge) -> Mapping[str, str]:
    """GPU -> what people are shown, for each GPU that is not to be given away."""
    held: dict[str, list[Fault]] = {}
    for fault in faults:
        if not fault.ended and judge(fault.xid) is not Consequence.NONE:
            held.setdefault(fault.gpu, []).append(fault)
    return {gpu: "; ".join(_text(x, judge(x.xid)) for x in on_it) for gpu, on_it in held.items()}


def lifted(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """The faults after an operator's act, which ends all of them."""
    return tuple(replace(x, ended=True) for x in faults)


def _seen(fault: Fault, consequence: Consequence, pids: frozenset[int] | None) -> Fault:
    if fault.was_lost:
        return replace(fault, ended=True)
    if consequence is not Consequence.PROCESS or pids is None:
        return fault
    left = pids if fault.processes is None else pids.intersection(fault.processes)
    return replace(fault, processes=tuple(sorted(left)), ended=not left)


def _pids(evidence: Evidence) -> Mapping[str, frozenset[int]]:
    """GPU -> PIDs on it and on its MIG devices; without GPUs whose processes were not all read."""
    if evidence.processes is None:
        return {}
    unread = {x.gpu for x in evidence.failed_reads if x.fact == _PROCESSES}
    if None in unread:
        return {}
    return {
        gpu.uuid: frozenset(
            x.pid
            for x in evidence.processes
            if x.gpu == gpu.uuid or any(x.gpu == mig.uuid for mig in gpu.mig_devices)
        )
        for gpu in evidence.inventory.gpus
        if gpu.uuid not in unread
    }


def _text(fault: Fault, consequence: Consequence) -> str:
    end = _ENDS[consequence]
    return f"xid {fault.xid}, {end}"


_ENDS: Final = {
    Consequence.PROCESS: "until its processes end",
    Consequence.RESET: "until the GPU is reset",
}


def _bounded(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    surplus = len(faults) - MAX_FAULTS
    if surplus <= 0:
        return faults
    latest = {x.gpu: x for x in sorted(faults, key=lambda x: x.happened_ms) if not x.ended}
    first = sorted(faults, key=lambda x: (not x.ended, x is latest.get(x.gpu), x.happened_ms))[
        :surplus
    ]
    return tuple(x for x in faults if x not in first)
