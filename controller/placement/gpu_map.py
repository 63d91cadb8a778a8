"""The `gpu-scheduling-map`: one `ordinal=node:devices` per line, and which line is the pod's.

One wrong line makes the whole map wrong: a map that is half read would send pods elsewhere than its
author meant. Every wrong line is reported, with its number.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.placement.keys import COMPLETION_INDEX, MAP, ORDINAL, POD_INDEX
from controller.placement.pod import Pod
from gpuwarden.finding import Finding
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.policy.texts import RequirementTextError, shown

_MAX_CHARS = 64 * 1024
_MAX_LINES = 4096
_MAX_DEVICES = 64
_ORDINAL = re.compile(r"[0-9]{1,18}")
_INDEX = re.compile(r"[0-9]{1,3}")
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
    return len(devices) > 1 and any(str(x).startswith("MIG-") for x in devices)


def parse_ordinal(text: str) -> int:
    """Read an ordinal; leading zeros do not count; raises RequirementTextError."""
    if not _ORDINAL.fullmatch(text):
        raise RequirementTextError("a whole number, 0 or more")
    return int(text)


def parse_gpu_map(text: str) -> Mapping[int, Place] | tuple[Finding, ...]:
    """The places by ordinal, or every fault."""
    if len(text) > _MAX_CHARS:
        return (Finding(MAP, f"{len(text)} characters", f"at most {_MAX_CHARS}"),)
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        return (Finding(MAP, f"{len(lines)} lines", f"at most {_MAX_LINES}"),)
    places: dict[int, Place] = {}
    findings: list[Finding] = []
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
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
    return tuple(findings) or places


def _line(line: str) -> tuple[int, Place]:
    left, equals, right = line.partition("=")
    node, colon, devices = (part.strip() for part in right.partition(":"))
    if not equals or not colon:
        raise RequirementTextError("ordinal=node:devices, such as 0=node1:0,1")
    ordinal = parse_ordinal(left.strip())
    if not is_node_name(node):
        raise RequirementTextError(f"a node name (RFC 1123 subdomain), not {shown(node)}")
    return ordinal, Place(node, _devices(devices))


def _devices(text: str) -> tuple[int | str, ...]:
    devices = tuple(_device(part.strip()) for part in text.split(","))
    if len(devices) > _MAX_DEVICES:
        raise RequirementTextError(f"at most {_MAX_DEVICES} devices")
    if len(set(devices)) != len(devices):
        raise RequirementTextError("each device once")
    if is_too_much(devices):
        raise RequirementTextError(MIG_ALONE)
    return devices


def _device(text: str) -> int | str:
    if _INDEX.fullmatch(text):
        return int(text)
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
    places, ordinal = parse_gpu_map(text), pod_ordinal(pod)
    if isinstance(ordinal, Finding):
        findings.append(ordinal)
    if isinstance(places, tuple):
        findings.extend(places)
        return None, False
    if isinstance(ordinal, int) and ordinal not in places:
        findings.append(Finding(MAP, f"ordinal {ordinal}", "a line for this pod's ordinal"))
    if ordinal is None and _has_no_ordinal_ever(pod):
        name = pod.metadata.name or f"{pod.metadata.generate_name}*"
        expected = f"a pod with an ordinal: of a StatefulSet or Indexed Job, or with {ORDINAL}"
        findings.append(Finding(MAP, shown(name), expected))
    place = places.get(ordinal) if isinstance(ordinal, int) else None
    return place, place is not None and list(places.values()).count(place) > 1
