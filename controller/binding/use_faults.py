"""Where a node's own account of its GPUs and the ledger do not agree. Pure.

Three accounts of one report are compared: what the ledger holds, what kubelet has given, and
whose processes the driver knows. What a pod was promised stands in the ledger; that a GPU is
given or used by somebody whom no reservation explains is no fault of that pod, and is said.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final

from controller.binding.bound_pod import BoundPod, BoundPods
from controller.fleet.view import Acceptance, NodeMode
from controller.ledger.record import Holder, PodRef
from controller.ledger.release import GivenDevice, UseReport, card_of
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import LedgerSnapshot
from controller.scheduling.requirements import RequirementsInvalid

_SLICE: Final = "::"


class UseFaultKind(StrEnum):
    """What does not agree; a metric's label."""

    OTHER_GPU = "other_gpu"
    """A pod was given or uses a GPU that is not the one of its reservation."""
    UNFIT_GPU = "unfit_gpu"
    """Kubelet gave a pod a GPU that is not what the pod has asked for."""
    TAKEN_GPU = "taken_gpu"
    """Kubelet gave a pod a GPU that the ledger holds for another that lives."""
    UNRESERVED = "unreserved"
    """A guarded pod runs on an `env` node without a reservation: it sees no GPU."""
    OFF_BOOK = "off_book"
    """A GPU is given or used, and no reservation explains it."""


EVICTED_FOR: Final = frozenset({UseFaultKind.OTHER_GPU, UseFaultKind.UNFIT_GPU})
"""What a pod is evicted for, where the policy says so: what it has, it must not have."""


@dataclass(frozen=True, slots=True)
class UseFault:
    """One disagreement; the same one in each report that shows it."""

    kind: UseFaultKind
    node: str
    gpu: str
    """Empty where none is meant."""
    pod: PodRef | None
    """None for a process of no pod, and where nothing but the process is known of its pod: then
    `owner` is its UID."""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class UseCase:
    """One node's report and what it is compared with."""

    node: str
    mode: NodeMode
    acceptance: Acceptance
    report: UseReport
    ledger: LedgerSnapshot
    pods: BoundPods
    fits: Callable[[BoundPod, str], bool]
    """Whether a GPU of the node is one that the pod has asked for."""


def use_faults(case: UseCase) -> frozenset[UseFault]:
    """All disagreements that the report shows."""
    return frozenset(chain(_given(case), _used(case), _unreserved(case)))


def _given(case: UseCase) -> Iterator[UseFault]:
    for device in case.report.given or ():
        gpu = card_of(device.device)
        if gpu is None:
            continue
        entry = case.ledger.get(gpu)
        holders = () if entry is None else entry.record.holders
        found = case.pods.named(device.namespace, device.pod)
        pod = found if found is not None and found.node == case.node else None
        named = [x for x in holders if _is_named(x, device)]
        if named:
            yield from _held(case, device, gpu, pod, holders)
        else:
            kind = _otherwise(pod is not None and _is_reserved(case, pod.pod))
            ref = PodRef(device.namespace, device.pod) if pod is None else pod.pod
            yield UseFault(kind, case.node, gpu, ref)


def _held(
    case: UseCase, device: GivenDevice, gpu: str, pod: BoundPod | None, holders: Iterable[Holder]
) -> Iterator[UseFault]:
    if pod is None:
        return
    if pod.needs is not None and not case.fits(pod, gpu):
        yield UseFault(UseFaultKind.UNFIT_GPU, case.node, gpu, pod.pod)
    others = [x for x in holders if not _is_named(x, device)]
    if _SLICE not in device.device and any(x.state is HolderState.CONFIRMED for x in others):
        yield UseFault(UseFaultKind.TAKEN_GPU, case.node, gpu, pod.pod)


def _used(case: UseCase) -> Iterator[UseFault]:
    for gpu, users in (case.report.users or {}).items():
        cards = case.acceptance.with_parts(gpu)
        for uid in users:
            if uid is None:
                yield UseFault(UseFaultKind.OFF_BOOK, case.node, gpu, None)
            elif not any(_holds(case, card, uid) for card in cards):
                yield from _user(case, gpu, cards, uid)


def _user(case: UseCase, gpu: str, cards: tuple[str, ...], uid: str) -> Iterator[UseFault]:
    if case.mode is NodeMode.PLUGIN and case.report.given is None:
        return  # kubelet may have given it
    pod = case.pods.with_uid(uid)
    if pod is None:
        yield UseFault(UseFaultKind.OFF_BOOK, case.node, gpu, None, uid)
    elif not _was_given(case, cards, pod.pod):  # else it was said there
        yield UseFault(_otherwise(bool(case.ledger.parts_of(uid))), case.node, gpu, pod.pod)


def _unreserved(case: UseCase) -> Iterator[UseFault]:
    if case.mode is not NodeMode.ENV:
        return
    for pod in case.pods.guarded(case.node):
        asks = isinstance(pod.needs, RequirementsInvalid) or (pod.needs and pod.needs.count)
        if asks and not case.ledger.parts_of(pod.pod.uid or ""):
            yield UseFault(UseFaultKind.UNRESERVED, case.node, "", pod.pod)


def _is_reserved(case: UseCase, pod: PodRef) -> bool:
    """Whether it was told its GPUs; what is settled follows what kubelet gives."""
    parts = case.ledger.parts_of(pod.uid or "")
    return any(x.origin is not Origin.SETTLEMENT for _, x in parts)


def _otherwise(has_others: bool) -> UseFaultKind:  # noqa: FBT001 - it is the question
    """What it is that a pod has a GPU which is not held for it, if others are or none is."""
    return UseFaultKind.OTHER_GPU if has_others else UseFaultKind.OFF_BOOK


def _holds(case: UseCase, gpu: str, uid: str) -> bool:
    entry = case.ledger.get(gpu)
    return entry is not None and entry.record.of_pod(uid) is not None


def _was_given(case: UseCase, cards: tuple[str, ...], pod: PodRef) -> bool:
    name = (pod.namespace, pod.name)
    return any(
        (x.namespace, x.pod) == name and card_of(x.device) in cards for x in case.report.given or ()
    )


def _is_named(holder: Holder, device: GivenDevice) -> bool:
    return (holder.pod.namespace, holder.pod.name) == (device.namespace, device.pod)
