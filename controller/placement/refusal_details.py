"""A refusal with the facts of its node and pod: numbers, levels, classes. For people.

/filter answers kube-scheduler with texts that are constant per code, so that it counts equal ones
of all nodes together. `fit`, `explain` and Events about waiting pods show these. Nothing is decided
here.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controller.placement.devices import (
    ANY_DEVICE,
    DeviceNeeds,
    DevicePool,
    free_devices,
    is_held,
)
from controller.placement.node_verdict import Judge, Weighing
from controller.placement.refusals import REFUSALS
from controller.placement.selector import Device, holds
from controller.placement.snapshot import Scene
from controller.policy import NodeMode
from gpuwarden.counted import counted
from gpuwarden.moment import NS_PER_S
from gpuwarden.policy.selector import Term
from gpuwarden.reasons import ReasonCode, Refusal

_LISTED: Final = 4
_WANTS: Final = frozenset({">=", ">", "<=", "<"})
_GIB: Final = 1 << 30


def detailed(name: str, refusal: Refusal, judge: Judge, scene: Scene) -> Refusal:
    """The same refusal of the node with this name, with what it rests on."""
    facts = ", ".join(_facts(name, refusal, judge, scene))
    return Refusal(refusal.code, f"{refusal.detail}: {facts}") if facts else refusal


def _facts(name: str, refusal: Refusal, judge: Judge, scene: Scene) -> Iterator[str]:
    weighing = judge.weighed(name)
    match refusal.code:
        case ReasonCode.CLASS_UNKNOWN:
            yield str(judge.needs.attestation_class)
        case ReasonCode.MAP_ELSEWHERE:
            yield str(judge.place_node)
        case ReasonCode.HASH_MISMATCH:
            yield f"node has {_own_class(name, weighing, scene)}"
            yield f"required {_required_class(judge)}"
        case ReasonCode.CLASS_NOT_ALLOWED:
            yield f"node has {_own_class(name, weighing, scene)}"
        case ReasonCode.LEVEL_TOO_LOW:
            yield f"{judge.level} required"
            yield f"node has {'none' if weighing is None else weighing.acceptance.level}"
        case ReasonCode.NODE_STALE if weighing is not None:
            ended_ns = scene.now.boottime_ns - weighing.acceptance.fresh_until_ns
            yield f"its lease ended {ended_ns // NS_PER_S} s ago"
        case ReasonCode.NODE_MODE if weighing is not None and refusal == REFUSALS[refusal.code]:
            asks = "a GPU resource" if judge.needs.requests else "no GPU resource"
            yield f"node is in mode {weighing.mode}"
            yield f"pod requests {'a claim' if judge.needs.claims else asks}"
        case (
            ReasonCode.GPU_NO_MATCH
            | ReasonCode.GPU_LOST
            | ReasonCode.GPU_BUSY
            | ReasonCode.EXACT_UNAVAILABLE
        ) if weighing is not None:
            yield from _of_devices(weighing)
        case _:
            return


# --- attestation classes


def _own_class(name: str, weighing: Weighing | None, scene: Scene) -> str:
    own = scene.static.hashes[name] if weighing is None else weighing.acceptance.attestation_hash
    classes = scene.policy.policy.classes
    named = [x for x in sorted(classes) if own in {y.attestation_hash for y in classes[x].hashes}]
    return f"{own} (class {_listed(named)})" if named else own


def _required_class(judge: Judge) -> str:
    hashes = sorted(judge.accepted or ())
    text = _listed(hashes, most=1) if hashes else "a hash that pod and class both accept"
    named = judge.needs.attestation_class
    return text if named is None else f"{text} (class {named})"


def _listed(names: Sequence[str], most: int = _LISTED) -> str:
    more = f" or {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- devices


def _of_devices(weighing: Weighing) -> Iterator[str]:
    needs = weighing.ask.needs
    if needs.place is not None or needs.uuids:
        return _of_named(weighing)
    if weighing.mode is NodeMode.PLUGIN:
        return _of_choosable(weighing.pool, weighing.ask)
    return _of_free(weighing.pool, weighing.ask)


def _of_free(pool: DevicePool, ask: DeviceNeeds) -> Iterator[str]:
    count = ask.needs.count
    whole_only = count > 1
    devices = pool.matching(ANY_DEVICE, whole_only=whole_only).devices
    there = len(devices)
    asked = len(pool.matching(ask.requirement, whole_only=whole_only).devices)
    yield f"needs {_gpus(count)}"
    yield f"node has {there}"
    if asked != there:
        yield f"{asked} as asked"
        yield from _failed_terms(devices, ask)
    yield f"{len(free_devices(pool, ask))} free"
    if whole_only and pool.has_split:
        yield "GPUs that are split by MIG not counted"
    yield from _unusable(pool)


def _of_choosable(pool: DevicePool, ask: DeviceNeeds) -> Iterator[str]:
    for resource, count in ask.needs.requests:
        choosable = pool.choosable(resource)
        asked = sum(map(ask.requirement.admits, choosable))
        yield f"needs {count} {resource}"
        yield f"kubelet can choose among {len(choosable)}"
        if asked != len(choosable):
            yield f"{asked} as asked"
            yield from _failed_terms(choosable, ask)
    yield from _unusable(pool)


def _failed_terms(devices: Sequence[Device], ask: DeviceNeeds) -> Iterator[str]:
    """Each term that not all devices satisfy: how many do, and how near the others come."""
    terms = (term for selector in ask.requirement.selectors for term in selector.terms)
    for term in list(terms)[:_LISTED]:
        held = sum(term.holds(x.fact(term.key)) for x in devices)
        if held < len(devices):
            yield f"{term.text}: {held} of {len(devices)}{_nearest(term, devices)}"
    for label in ask.requirement.model_labels[:_LISTED]:
        held = sum(holds(label, device, {}) for device in devices)
        if held < len(devices):
            yield f"{label}: {held} of {len(devices)}"


def _nearest(term: Term, devices: Sequence[Device]) -> str:
    """The largest or smallest there is, where no device satisfies a comparison by size."""
    facts = [fact for x in devices if isinstance(fact := x.fact(term.key), int | tuple)]
    if term.operator not in _WANTS or not facts or any(map(term.holds, facts)):
        return ""
    if term.operator.startswith(">"):
        return f" (largest {_told(max(facts, key=_size))})"
    return f" (smallest {_told(min(facts, key=_size))})"


def _size(fact: int | tuple[int, ...]) -> tuple[int, ...]:
    return fact if isinstance(fact, tuple) else (fact,)


def _told(fact: int | tuple[int, ...]) -> str:
    """Memory with one decimal, rounded down, so that it does not look like enough; a version."""
    if isinstance(fact, tuple):
        return ".".join(map(str, fact if fact[1:] else (*fact, 0)))
    tenths = fact * 10 // _GIB
    return f"{tenths // 10}.{tenths % 10}Gi"


def _unusable(pool: DevicePool) -> Iterable[str]:
    return (f"{len(pool.unusable)} lost or unhealthy",) if pool.unusable else ()


def _gpus(count: int) -> str:
    return counted(count, "GPU")


def _of_named(weighing: Weighing) -> Iterator[str]:
    needs = weighing.ask.needs
    names = needs.uuids if needs.place is None else needs.place.devices
    said = [text for name in names if (text := _of_one(name, weighing))]
    yield from said[:_LISTED]
    if len(said) > _LISTED:
        yield f"and {len(said) - _LISTED} more"
    if not said and weighing.mode is NodeMode.PLUGIN:
        yield f"pod names {_gpus(len(names))}"


def _of_one(name: int | str, weighing: Weighing) -> str:
    """What is against a device that the pod names; empty for nothing."""
    pool, ask = weighing.pool, weighing.ask
    gpu = pool.gpus.get(name) if isinstance(name, int) else None
    uuid = name if isinstance(name, str) else None if gpu is None else gpu.uuid
    device = pool.by_uuid.get(uuid or "")
    if uuid is not None and pool.is_unusable(uuid):
        return f"{uuid} is lost or unhealthy"
    if device is None:
        return f"node has no {uuid or f'GPU {name}'}"
    if not ask.requirement.admits(device):
        return f"{device.uuid} is not as asked"
    if is_held(device, ask.busy) or device.uuid in ask.taken:
        return f"{device.uuid} is another pod's"
    if ask.processes_count and device.in_use and device.uuid not in ask.shared:
        return f"{device.uuid} is used by a process"
    return ""
