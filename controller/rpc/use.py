"""What nodes show of the use of GPUs, as a message. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from controller.binding.idle import IdleGpu
from controller.binding.use import UseFault
from controller.binding.use_reconciler import UseNow
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.wire.v1 import placement_pb2 as pb

MAX_LISTED: Final = 1000
"""Of each list; all are counted."""


def use_message(now: UseNow, namespace: str) -> pb.ListUseResponse:
    """What is about a namespace; about all where it is empty."""
    faults = [_fault(x) for x in now.faults]
    if namespace:
        faults = [x for x in faults if namespace in _namespaces(x)]
    idle = [_idle(x) for x in now.idle if namespace in {"", x.holding.pod.namespace}]
    return pb.ListUseResponse(
        faults=faults[:MAX_LISTED],
        fault_count=len(faults),
        idle=idle[:MAX_LISTED],
        idle_count=len(idle),
        namespaces=[x for x in _accounts(now) if namespace in {"", x.namespace}],
        since=now.since,
    )


def _fault(fault: UseFault) -> pb.UseFault:
    pod = fault.pod
    return pb.UseFault(
        kind=fault.kind.value,
        node=fault.node,
        gpu=fault.gpu,
        namespace="" if pod is None else pod.namespace,
        pod="" if pod is None else pod.name or "",
        uid=fault.owner if pod is None else pod.uid or "",
        since=rfc3339(fault.since_wall_ns),
        held_by=[f"{x.namespace}/{x.name}" for x in fault.victims],
    )


def _namespaces(fault: pb.UseFault) -> set[str]:
    return {fault.namespace, *(x.partition("/")[0] for x in fault.held_by)}


def _idle(idle: IdleGpu) -> pb.IdleGpu:
    holding = idle.holding
    return pb.IdleGpu(
        gpu=holding.gpu,
        node=holding.node,
        namespace=holding.pod.namespace,
        pod=holding.pod.name or "",
        uid=holding.pod.uid or "",
        reservation=holding.reservation,
        since=rfc3339(idle.since_wall_ns),
    )


def _accounts(now: UseNow) -> Iterator[pb.NamespaceUse]:
    counts = Counter(x.holding.pod.namespace for x in now.idle)
    for namespace in sorted(now.accounts.keys() | counts.keys()):
        account = now.accounts.get(namespace)
        yield pb.NamespaceUse(
            namespace=namespace,
            reserved_gpu_s=0 if account is None else account.reserved_ns // NS_PER_S,
            idle_gpu_s=0 if account is None else account.idle_ns // NS_PER_S,
            idle_gpus=counts[namespace],
        )
