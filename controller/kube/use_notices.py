"""What people are told in Events when a node's GPUs and the ledger do not agree. Pure.

About the pod where the pod has what it should not have, or lacks what it needs. About the node
where a GPU is used off the books: such a pod may be anybody's, and has done nothing wrong.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from controller.binding.use_faults import UseFault, UseFaultKind
from controller.fleet.directory import DirectorySnapshot
from controller.kube.event_series import Notice, Regarding, Severity

MISMATCH: Final = "GpuMismatch"
UNRESERVED: Final = "GpuUnreserved"
OFF_BOOK: Final = "GpuOffBook"
_ACTION: Final = "Compare"
_TEXTS: Final = {
    UseFaultKind.OTHER_GPU: "the pod has {gpu}, which is not the GPU of its reservation",
    UseFaultKind.UNFIT_GPU: "kubelet gave the pod {gpu}, which is not what it has asked for",
    UseFaultKind.TAKEN_GPU: "kubelet gave the pod {gpu}, which is reserved for another pod",
    UseFaultKind.UNRESERVED: "the pod was bound without a reservation and sees no GPU",
    UseFaultKind.OFF_BOOK: "{gpu} is used by {user}, and no reservation explains it",
}


def use_notices(faults: Iterable[UseFault], nodes: DirectorySnapshot) -> Iterator[Notice]:
    """What is to be said about disagreements that began."""
    for fault in faults:
        about = _about(fault, nodes)
        if about is not None:
            yield Notice(about, _reason(fault), _ACTION, Severity.WARNING, note=text_of(fault))


def text_of(fault: UseFault) -> str:
    """One line for people."""
    return _TEXTS[fault.kind].format(gpu=fault.gpu, user=_user(fault))


def _user(fault: UseFault) -> str:
    if fault.pod is not None:
        return f"pod {fault.pod.namespace}/{fault.pod.name}"
    return f"a pod with UID {fault.owner}" if fault.owner else "a process of no pod"


def _about(fault: UseFault, nodes: DirectorySnapshot) -> Regarding | None:
    pod = fault.pod
    if fault.kind is UseFaultKind.OFF_BOOK:
        node = nodes.nodes.get(fault.node)
        return None if node is None else Regarding("Node", fault.node, node.uid or "")
    if pod is None:
        return None
    return Regarding("Pod", pod.name or "", pod.uid or "", pod.namespace)


def _reason(fault: UseFault) -> str:
    match fault.kind:
        case UseFaultKind.OFF_BOOK:
            return OFF_BOOK
        case UseFaultKind.UNRESERVED:
            return UNRESERVED
        case _:
            return MISMATCH
