"""The `gpu-scheduling-map`: one `ordinal=node:devices` per line, and which line is the pod's.

One wrong line makes the whole map wrong: a map that is half read would send pods elsewhere than its
author meant. Wrong lines are reported with their numbers, up to a bound.

A pod is read at each of its events, and its map can be long: what was read is kept, by its text.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from controller.placement.keys import COMPLETION_INDEX, MAP, ORDINAL, POD_INDEX
from controller.placement.pod import Pod
from gpuwarden.finding import Finding
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.policy.texts import RequirementTextError, shown

_MAX_CHARS = 64 * 1024
_MAX_LINES = 4096
_MAX_DEVICES = 64
_MAX_FAULTS = 16
"""Of one map: each is kept with the pod, and people read no more."""
_MAPS_KEPT = 8
"""Whole maps, each of a megabyte at most."""
_ANSWERS_KEPT = 1024
"""What maps say about single pods, each of some kilobytes at most."""
_ORDINAL = re.compile(r"[0-9]{1,18}")
_INDICES: Final = {f"{index:0{width}}": index for width in (1, 2, 3) for index in range(10**width)}
"""Every spelling."""
_UUID = re.compile(
    r"(?:GPU|MIG)-[0-9A-Za-z-]{1,64}|MIG-GPU-[0-9A-Za-z-]{1,64}/[0-9]{1,3}/[0-9]{1,3}"
)

MIG_ALONE: Final = "a MIG device alone: CUDA shows a process one of them and nothing else"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one ordinal goes. A device is an index (position in PCI bus order) or a UUID."""

    node: str
    devices: tuple[int | str, ...]


def is_device_uuid(text: str) -> bool:
    """Whether `text` is spelled like the UUID of a GPU or MIG device (legacy form included)."""
    return _UUID.fullmatch(text) is not None


def is_too_much(devices: Sequence[int | str]) -> bool:
    """Whether a container would be given more than CUDA shows it: a MIG device and another."""
    return len(devices) > 1 and any(isinstance(x, str) and x.startswith("MIG-") for x in devices)


def parse_ordinal(text: str) -> int:
    """Read an ordinal; leading zeros do not count; raises RequirementTextError."""
    if not _ORDINAL.fullmatch(text):
        raise RequirementTextError("a whole number, 0 or more")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Map:
    """A map without faults."""

    places: Mapping[int, Place]
    shared: frozenset[Place]
    """Places that more than one line names."""


def parse_gpu_map(text: str) -> Mapping[int, Place] | tuple[Finding, ...]:
    """The places by ordinal, or the first faults."""
    if len(text) > _MAX_CHARS:
        return _too_long(text)
    found = _parse_bounded(text)
    return found.places if isinstance(found, _Map) else found


def _too_long(text: str) -> tuple[Finding, ...]:
    return (Finding(MAP, f"{len(text)} characters", f"at most {_MAX_CHARS}"),)


@lru_cache(_MAPS_KEPT)
def _parse_bounded(text: str) -> _Map | tuple[Finding, ...]:
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        return (Finding(MAP, f"{len(lines)} lines", f"at most {_MAX_LINES}"),)
    places: dict[int, Place] = {}
    findings: list[Finding] = []
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(findings) == _MAX_FAULTS:
            break
        try:
            ordinal, place = _line(line)
        except RequirementTextError as error:
            findings.append(Finding(f"{MAP} line {number}", shown(line), str(error)))
            continue
        if ordinal in places:
            findings.append(Finding(f"{MAP} line {number}", shown(line), "each ordinal once"))
        places[ordinal] = place
    if not places and not findings:
        findings.append(Finding(MAP, shown(text), "at least one line ordinal=node:devices"))
    if findings:
        return tuple(findings)
    named = Counter([(x.node, x.devices) for x in places.values()])
    shared = frozenset(Place(*x) for x, times in named.items() if times > 1)
    return _Map(MappingProxyType(places), shared)


def _line(line: str) -> tuple[int, Place]:
    left, equals, right = line.partition("=")
    node, colon, devices = right.partition(":")
    node = node.strip()
    if not equals or not colon:
        raise RequirementTextError("ordinal=node:devices, such as 0=node1:0,1")
    ordinal = parse_ordinal(left.strip())
    if not is_node_name(node):
        raise RequirementTextError(f"a node name (RFC 1123 subdomain), not {shown(node)}")
    return ordinal, Place(node, _devices(devices))


def _devices(text: str) -> tuple[int | str, ...]:
    if text.count(",") >= _MAX_DEVICES:
        raise RequirementTextError(f"at most {_MAX_DEVICES} devices")
    devices = tuple([_device(part) for part in text.split(",")])
    if len(devices) > 1:
        if len(set(devices)) != len(devices):
            raise RequirementTextError("each device once")
        if is_too_much(devices):
            raise RequirementTextError(MIG_ALONE)
    return devices


def _device(text: str) -> int | str:
    text = text.strip()
    index = _INDICES.get(text)
    if index is not None:
        return index
    if is_device_uuid(text):
        return text
    raise RequirementTextError(f"devices as indices or GPU-/MIG- UUIDs, not {shown(text)}")


# --- ordinal

_TEMPLATE_HASH = "pod-template-hash"
_NAME = re.compile(r".+-([0-9]{1,18})")


def pod_ordinal(pod: Pod) -> int | Finding | None:
    """The ordinal, what is wrong with the one that is given, or None where there is none.

    A label or annotation of a controller's and a name that say two things are a fault; the explicit
    annotation is there to say another.
    """
    for key, texts in (
        (ORDINAL, pod.annotations),
        (POD_INDEX, pod.labels),
        (COMPLETION_INDEX, pod.labels),
        (COMPLETION_INDEX, pod.annotations),
    ):
        if key in texts:
            try:
                given = parse_ordinal(texts[key])
            except RequirementTextError as error:
                return Finding(key, shown(texts[key]), str(error))
            named = None if key == ORDINAL else _from_name(pod)
            if named in {None, given}:
                return given
            return Finding(key, shown(texts[key]), f"{named}, as the pod's name says")
    return _from_name(pod)


def _from_name(pod: Pod) -> int | None:
    """A random suffix is no ordinal, also where it has digits alone."""
    metadata = pod.metadata
    owners, name = metadata.owner_references or (), metadata.name or ""
    owner = next((owner for owner in owners if owner.controller), None)
    match = _NAME.fullmatch(name)
    if match is None or _TEMPLATE_HASH in pod.labels:
        return None
    ordinal = int(match[1])
    if owner is not None and owner.kind == "StatefulSet":
        return ordinal if name == f"{owner.name}-{ordinal}" else None
    return None if owners or metadata.generate_name else ordinal


def _has_no_ordinal_ever(pod: Pod) -> bool:
    """Whether a pod that has none now gets none: it is named, or its name ends at random."""
    return bool(pod.metadata.name or pod.metadata.generate_name)


# --- place


@dataclass(frozen=True, slots=True)
class _LineOf:
    """What a map says about one ordinal."""

    faults: tuple[Finding, ...] = ()
    """Of the map."""
    place: Place | None = None
    is_shared: bool = False


_ANSWERS: Final[dict[tuple[bytes, int | None], _LineOf]] = {}
"""By the map's SHA-256 and the ordinal. Forgotten all at once; threads may ask, too."""


def _line_of(text: str, ordinal: int | None) -> _LineOf:
    if len(text) > _MAX_CHARS:
        return _LineOf(_too_long(text))
    key = hashlib.sha256(text.encode(errors="surrogatepass")).digest(), ordinal
    found = _ANSWERS.get(key)
    if found is None:
        found = _look_up(_parse_bounded(text), ordinal)
        if len(_ANSWERS) >= _ANSWERS_KEPT:
            _ANSWERS.clear()
        _ANSWERS[key] = found
    return found


def _look_up(parsed: _Map | tuple[Finding, ...], ordinal: int | None) -> _LineOf:
    if isinstance(parsed, tuple):
        return _LineOf(parsed)
    place = None if ordinal is None else parsed.places.get(ordinal)
    return _LineOf((), place, place in parsed.shared)


def read_place(pod: Pod, findings: list[Finding]) -> tuple[Place | None, bool]:
    """The pod's place, and whether other lines of the map name the same place.

    None without a map, with a fault, or of a template, whose pods' names are not known. A pod that
    will have no ordinal, or an ordinal without a line, is a fault.
    """
    text = pod.annotations.get(MAP)
    if text is None:
        if ORDINAL in pod.annotations:
            findings.append(Finding(ORDINAL, shown(pod.annotations[ORDINAL]), f"{MAP} beside it"))
        return None, False
    ordinal = pod_ordinal(pod)
    if isinstance(ordinal, Finding):
        findings.append(ordinal)
    found = _line_of(text, ordinal if isinstance(ordinal, int) else None)
    if found.faults:
        findings.extend(found.faults)
        return None, False
    if isinstance(ordinal, int) and found.place is None:
        findings.append(Finding(MAP, f"ordinal {ordinal}", "a line for this pod's ordinal"))
    if ordinal is None and _has_no_ordinal_ever(pod):
        name = pod.metadata.name or f"{pod.metadata.generate_name}*"
        expected = f"a pod with an ordinal: of a StatefulSet or Indexed Job, or with {ORDINAL}"
        findings.append(Finding(MAP, shown(name), expected))
    return found.place, found.is_shared
