"""Kubelet's allocations as they are signed: only GPUs, bounded, sorted. Pure.

Device ids stay as kubelet gives them; what hardware they name is for the reader of the evidence
(see `use_rules`). A claim's device has the driver for a resource and `pool/device` for an id.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import astuple

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.model import Allocation, FailedRead
from gpuwarden.evidence.use_rules import is_allocation
from gpuwarden.wire.kubelet import pod_resources_pb2 as pb


@dataclass(frozen=True, slots=True)
class AllocationReading:
    """One look at kubelet's allocations."""

    allocations: tuple[Allocation, ...] | None
    """Sorted; null where kubelet was not asked or gave no answer."""
    failed_reads: tuple[FailedRead, ...] = ()
    """At most one: why there is no answer, or that not all of it is here."""
    detail: str = ""
    """For people and the log: what failed, one line."""


NOT_ASKED: Final = AllocationReading(None)
"""This agent is not to ask kubelet."""


MAX_BYTES: Final = 64 * 1024
"""Of all allocations in their signed form: a quarter of what a payload may have.

Fewer than MAX_ALLOCATIONS of the shortest names fit."""
CALL: Final = "PodResourcesLister/List"
_WILDCARD: Final = "*"
_SEPARATORS: Final = 1


def allocations_in(answer: pb.ListPodResourcesResponse, wanted: Iterable[str]) -> AllocationReading:
    """The allocations in `answer` whose resource or driver `wanted` names or begins.

    What is malformed or beyond the bounds is left out and said to be.
    """
    names = tuple(wanted)
    found = {one for one in _all(answer) if _is_wanted(one.resource, names)}
    fine = sorted(filter(is_allocation, found), key=astuple)
    kept = tuple(_within_bounds(fine))
    if len(fine) < len(found):
        return _partly(kept, "MALFORMED", f"{len(found) - len(fine)} devices have no proper names")
    if len(kept) < len(fine):
        return _partly(kept, "TOO_MANY", f"{len(fine) - len(kept)} of {len(fine)} are left out")
    return AllocationReading(kept)


def unread(error: str, detail: str) -> AllocationReading:
    """Kubelet gave no answer that could be read."""
    failed = FailedRead(fact="allocations", gpu=None, call=CALL, error=error)
    return AllocationReading(None, (failed,), detail)


def _partly(kept: tuple[Allocation, ...], error: str, detail: str) -> AllocationReading:
    failed = FailedRead(fact="allocations", gpu=None, call=CALL, error=error)
    return AllocationReading(kept, (failed,), detail)


def _all(answer: pb.ListPodResourcesResponse) -> Iterator[Allocation]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for resource, device in _devices(container):
                yield Allocation(
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container.name,
                    resource=resource,
                    device=device,
                )


def _devices(container: pb.ContainerResources) -> Iterator[tuple[str, str]]:
    for devices in container.devices:
        for device in devices.device_ids:
            yield devices.resource_name, device
    for claim in container.dynamic_resources:
        for one in claim.claim_resources:
            yield one.driver_name, f"{one.pool_name}/{one.device_name}"


def _is_wanted(resource: str, wanted: tuple[str, ...]) -> bool:
    return any(
        resource.startswith(name.removesuffix(_WILDCARD))
        if name.endswith(_WILDCARD)
        else resource == name
        for name in wanted
    )


def _within_bounds(allocations: list[Allocation]) -> Iterator[Allocation]:
    left = MAX_BYTES
    for allocation in allocations:
        left -= len(canonical_json(allocation)) + _SEPARATORS
        if left < 0:
            return
        yield allocation
