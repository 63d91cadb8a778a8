"""What a pod asks for, parsed once into one value, for extender, webhooks and caches.

A pod that asks for something in a way that cannot be read gets `RequirementsInvalid` with every
fault, and then no node passes: a requirement that is not understood never widens anything.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from controller.ledger.record import ShareGroup
from controller.placement.gpu_map import MIG_ALONE, Place, is_device_uuid, is_too_much, read_place
from controller.placement.keys import (
    ATTESTATION_CLASS,
    GPU_COUNT,
    GPU_SELECTOR,
    GPU_UUIDS,
    GUARANTEE,
    HINT_ANNOTATIONS,
    LABEL_PREFIXES,
    MAP,
    MIN_LEVEL,
    PREFIX,
    REQUIREMENT_ANNOTATIONS,
    RESERVE,
    RESULT_ANNOTATIONS,
    SEED_RESULT_ANNOTATIONS,
    RequirementRules,
)
from controller.placement.pod import Pod, device_requests
from controller.placement.selector import read_labels
from controller.placement.values import parse_count, read_hashes, split_list
from controller.policy import Level
from gpuwarden.finding import Finding
from gpuwarden.policy.selector import Selector, parse_selector
from gpuwarden.policy.texts import RequirementTextError, shown


class Guarantee(StrEnum):
    """What is promised of the devices in a container."""

    EXACT = "exact"
    """The runtime can give only these devices."""
    SET = "set"
    """Whatever kubelet chooses on the node is equally attested."""
    NODE = "node"
    """Only the node is guaranteed."""


_MAX_UUIDS = 64
_MAX_DETAIL_CHARS = 400
_CLASS_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LEVELS = (Level.L0, Level.L1, Level.L2, Level.L3)
_LESSER = (Guarantee.SET, Guarantee.NODE)
_KNOWN = REQUIREMENT_ANNOTATIONS | HINT_ANNOTATIONS | RESULT_ANNOTATIONS | SEED_RESULT_ANNOTATIONS
_ABOUT_GPUS = frozenset({GPU_UUIDS, GPU_SELECTOR, GPU_COUNT, MAP})
_OURS = (PREFIX, *LABEL_PREFIXES)


class Reserve(StrEnum):
    """When the reservation is made, if not at the binding."""

    ADMISSION = "admission"


_RESERVES = tuple(Reserve)


@dataclass(frozen=True, slots=True)
class Requirements:
    """Everything that a pod demands of nodes and GPUs. The default demands nothing."""

    managed: bool = False
    hashes: frozenset[str] | None = None
    """Acceptable attestation hashes; None = any."""
    attestation_class: str | None = None
    min_level: Level = Level.NONE
    uuids: tuple[str, ...] = ()
    """Exactly these devices."""
    selector: Selector | None = None
    labels: frozenset[str] = frozenset()
    """Device labels that must hold; what they mean stands in the policy."""
    mapped: bool = False
    """Whether there is a map."""
    place: Place | None = None
    """This pod's line of the map; None with `mapped` while its name is not final."""
    shares_place: bool = False
    """Whether further lines of the map name the same devices of the same node."""
    accepts: Guarantee | None = None
    """The lesser guarantee that is fine; None = what the requirement needs."""
    reserve: Reserve | None = None
    count: int = 0
    """Devices needed on the node."""
    requests: tuple[tuple[str, int], ...] = ()
    """Managed resources requested from kubelet, with their counts."""
    claims: bool = False
    """Whether the pod refers to ResourceClaims."""


@dataclass(frozen=True, slots=True)
class RequirementsInvalid:
    """A pod whose requirements cannot be read; it is managed, and nothing passes."""

    findings: tuple[Finding, ...]

    def detail(self) -> str:
        """One bounded line for people."""
        text = "; ".join(map(str, self.findings))
        return text if len(text) <= _MAX_DETAIL_CHARS else text[:_MAX_DETAIL_CHARS] + "…"


UNMANAGED = Requirements()


@dataclass(frozen=True, slots=True)
class PodRequirements:
    """What a pod asks for, parsed once; what counts of it depends on its namespace."""

    asks: bool
    """The pod asks by itself, or its keys cannot be read: it counts in every namespace."""
    needs: Requirements | RequirementsInvalid
    """What counts in an enforced namespace."""

    @property
    def may_count(self) -> bool:
        """Whether the pod asks for something in an enforced namespace."""
        return isinstance(self.needs, RequirementsInvalid) or self.needs.managed

    def counting(self, *, enforced: bool) -> Requirements | RequirementsInvalid:
        """What counts in a namespace that is enforced, or is not."""
        return self.needs if enforced or self.asks else UNMANAGED


def read_requirements(pod: Pod, rules: RequirementRules) -> PodRequirements:
    """Parse every requirement of `pod`, for whichever namespace."""
    if _has_keys(pod, rules):
        return _read_keys(pod, rules)
    return PodRequirements(asks=False, needs=_read_requests(pod, rules))


def parse_requirements(
    pod: Pod, rules: RequirementRules, *, enforced: bool = False
) -> Requirements | RequirementsInvalid:
    """Parse every requirement of `pod`.

    `enforced` says that its namespace makes each GPU pod managed. A pod that asks for
    nothing is `UNMANAGED`, whatever else is in it.
    """
    if _has_keys(pod, rules):
        return _read_keys(pod, rules).counting(enforced=enforced)
    return _read_requests(pod, rules) if enforced else UNMANAGED


def _has_keys(pod: Pod, rules: RequirementRules) -> bool:
    return (
        any(key in REQUIREMENT_ANNOTATIONS or key in rules.hash_keys for key in pod.annotations)
        or any(key.startswith(LABEL_PREFIXES) for key in pod.labels)
        or next(_strange_keys(pod, rules), None) is not None
    )


def _strange_keys(pod: Pod, rules: RequirementRules) -> Iterator[Finding]:
    """Our keys in the wrong place or misspelled: ignoring them would grant what was not meant.

    Results are admission's business, as annotations and as labels.
    """
    for key, text in pod.annotations.items():
        if key.startswith(_OURS) and key not in _KNOWN and key not in rules.hash_keys:
            label = key.startswith(LABEL_PREFIXES)
            yield Finding(
                shown(key), shown(text), "a label, not an annotation" if label else "a known key"
            )
    for key, text in pod.labels.items():
        if key in REQUIREMENT_ANNOTATIONS or key in rules.hash_keys:
            yield Finding(shown(key), shown(text), "an annotation, not a label")
        elif key.startswith(PREFIX) and not key.startswith(LABEL_PREFIXES) and key not in _KNOWN:
            yield Finding(shown(key), shown(text), "a known key of a pod")


def _read_requests(pod: Pod, rules: RequirementRules) -> Requirements | RequirementsInvalid:
    """Of a pod without a reserved key: what it asks kubelet for."""
    findings: list[Finding] = []
    requests, claims = _requests(pod, rules, findings), bool(pod.spec.resource_claims)
    if findings:
        return RequirementsInvalid(tuple(findings))
    if not (requests or claims):
        return UNMANAGED
    count = sum(count for _, count in requests)
    return Requirements(managed=True, count=count, requests=requests, claims=claims)


def _read_keys(pod: Pod, rules: RequirementRules) -> PodRequirements:
    """Read every requirement; with one fault there is nothing but the faults."""
    findings = list(_strange_keys(pod, rules))
    annotations = pod.annotations
    labels, assign = read_labels(pod.labels, findings)
    place, shares_place = read_place(pod, findings)
    reserve = _choice(annotations, RESERVE, _RESERVES, findings)
    uuids = _uuids(annotations, findings)
    selector = _selector(annotations, findings)
    requests = _requests(pod, rules, findings)
    named = _named(place, uuids, findings)
    asks_gpus = bool(selector or labels or MAP in annotations or assign)
    _demand_gpus(pod, reserve, findings, asked=bool(labels or assign or requests))
    needs = Requirements(
        managed=True,
        hashes=read_hashes(annotations, rules, findings),
        attestation_class=_class_name(annotations, findings),
        min_level=_choice(annotations, MIN_LEVEL, _LEVELS, findings) or Level.NONE,
        uuids=uuids,
        selector=selector,
        labels=labels,
        mapped=MAP in annotations,
        place=place,
        shares_place=shares_place,
        accepts=_choice(annotations, GUARANTEE, _LESSER, findings),
        reserve=Reserve.ADMISSION if assign and not requests else reserve,
        count=_count(annotations, requests, named, findings, asks_gpus=asks_gpus),
        requests=requests,
        claims=bool(pod.spec.resource_claims),
    )
    if findings:
        return PodRequirements(asks=True, needs=RequirementsInvalid(tuple(findings)))
    asked = any(key in REQUIREMENT_ANNOTATIONS or key in rules.hash_keys for key in annotations)
    if asked or labels or assign:
        return PodRequirements(asks=True, needs=needs)
    return PodRequirements(asks=False, needs=needs if needs.count or needs.claims else UNMANAGED)


def _demand_gpus(
    pod: Pod, reserve: Reserve | None, findings: list[Finding], *, asked: bool
) -> None:
    """An early reservation is one of GPUs: who asks for none has forgotten to say which."""
    elsewhere = pod.spec.resource_claims or _ABOUT_GPUS & pod.annotations.keys()
    if reserve is not None and not (asked or elsewhere):
        expected = f"a ask for GPUs beside it, such as {GPU_COUNT}"
        findings.append(Finding(RESERVE, shown(pod.annotations[RESERVE]), expected))


def _named(place: Place | None, uuids: tuple[str, ...], findings: list[Finding]) -> int:
    """How many devices are named."""
    if place and uuids and len(place.devices) != len(uuids):
        expected = f"as many as the map's line names: {len(place.devices)}"
        findings.append(Finding(GPU_UUIDS, f"{len(uuids)} devices", expected))
    return len(place.devices) if place else len(uuids)


def _count(
    annotations: Mapping[str, str],
    requests: tuple[tuple[str, int], ...],
    named: int,
    findings: list[Finding],
    *,
    asks_gpus: bool,
) -> int:
    requested = sum(count for _, count in requests)
    given = read_count(annotations, findings)
    count = device_count(requested, named, given, asks_gpus=asks_gpus)
    if isinstance(count, Finding):
        findings.append(count)
        return 0
    return count


def _class_name(annotations: Mapping[str, str], findings: list[Finding]) -> str | None:
    text = annotations.get(ATTESTATION_CLASS)
    if text is not None and not _CLASS_NAME.fullmatch(text):
        findings.append(
            Finding(ATTESTATION_CLASS, shown(text), "the name of a class in the policy")
        )
    return text


def _uuids(annotations: Mapping[str, str], findings: list[Finding]) -> tuple[str, ...]:
    if GPU_UUIDS not in annotations:
        return ()
    uuids = split_list(GPU_UUIDS, annotations[GPU_UUIDS], _MAX_UUIDS)
    if isinstance(uuids, Finding):
        findings.append(uuids)
        return ()
    findings.extend(
        Finding(GPU_UUIDS, shown(uuid), "the UUID of a GPU or MIG device (GPU-… or MIG-…)")
        for uuid in uuids
        if not is_device_uuid(uuid)
    )
    if is_too_much(uuids):
        findings.append(Finding(GPU_UUIDS, shown(annotations[GPU_UUIDS]), MIG_ALONE))
    return uuids


def _selector(annotations: Mapping[str, str], findings: list[Finding]) -> Selector | None:
    text = annotations.get(GPU_SELECTOR)
    if text is None:
        return None
    try:
        return parse_selector(text)
    except RequirementTextError as error:
        findings.append(Finding(GPU_SELECTOR, shown(text), str(error)))
        return None


def _requests(
    pod: Pod, rules: RequirementRules, findings: list[Finding]
) -> tuple[tuple[str, int], ...]:
    try:
        return device_requests(pod, rules.managed_resources)
    except RequirementTextError as error:
        findings.append(Finding("resources", ", ".join(rules.managed_resources), str(error)))
        return ()


C = TypeVar("C", bound=StrEnum)


def _choice(
    annotations: Mapping[str, str], key: str, choices: tuple[C, ...], findings: list[Finding]
) -> C | None:
    text = annotations.get(key)
    if text is None:
        return None
    found = next((choice for choice in choices if choice.value == text), None)
    if found is None:
        findings.append(Finding(key, shown(text), " or ".join(choice.value for choice in choices)))
    return found


# --- device count

_MAX_COUNT = 1024


def device_count(
    requested: int, named: int, given: int | None, *, asks_gpus: bool
) -> int | Finding:
    """The count; `named` is 0 where no devices are named, `given` is the annotation's number."""
    count = requested or named or given or (1 if asks_gpus else 0)
    source = "the pod requests" if requested else "devices are named"
    if named and named != count:
        return Finding("named devices", str(named), f"as many as {source}: {count}")
    if given is not None and given != count:
        return Finding(GPU_COUNT, str(given), f"as many as {source}: {count}")
    return count


def read_count(annotations: Mapping[str, str], findings: list[Finding]) -> int | None:
    """The number in `gpuwarden.dev/gpu-count`, None where there is none or a wrong one."""
    text = annotations.get(GPU_COUNT)
    if text is None:
        return None
    try:
        count = parse_count(text)
    except RequirementTextError:
        count = 0
    if 1 <= count <= _MAX_COUNT:
        return count
    findings.append(Finding(GPU_COUNT, shown(text), f"a whole number from 1 to {_MAX_COUNT}"))
    return None


# --- description for people


def describe(needs: Requirements) -> tuple[str, ...]:
    """One line per requirement, in the order in which they are decided."""
    return tuple(_lines(needs)) if needs.managed else ()


def _lines(needs: Requirements) -> Iterator[str]:
    if needs.hashes is not None:
        yield f"attestation hash: {' or '.join(sorted(needs.hashes))}"
    if needs.attestation_class is not None:
        yield f"attestation class: {needs.attestation_class}"
    if needs.min_level is not Level.NONE:
        yield f"evidence level: {needs.min_level} or higher"
    if needs.place is not None:
        yield f"place: node {needs.place.node}, devices {', '.join(map(str, needs.place.devices))}"
    elif needs.mapped:
        yield "place: not known until the pod has its ordinal"
    if needs.uuids:
        yield f"GPUs: {', '.join(needs.uuids)}"
    if needs.selector is not None:
        yield f"GPU selector: {needs.selector.text}"
    if needs.labels:
        yield f"GPU labels: {', '.join(sorted(needs.labels))}"
    if needs.accepts is not None:
        yield f"accepted guarantee: {needs.accepts}"
    yield f"number of GPUs: {needs.count}"


# --- share groups


def share_group(pod: Pod, needs: Requirements | RequirementsInvalid) -> ShareGroup | None:
    """The group in which the pod may share its devices, or None."""
    if isinstance(needs, RequirementsInvalid) or needs.place is None or not needs.shares_place:
        return None
    namespace, owner = pod.metadata.namespace, controlling_owner(pod)
    if not namespace or owner is None:
        return None
    devices = ",".join(str(device) for device in needs.place.devices)
    return ShareGroup(namespace, owner, f"{needs.place.node}:{devices}")


def controlling_owner(pod: Pod) -> str | None:
    """UID of the object that made the pod."""
    owners = pod.metadata.owner_references or ()
    return next((each.uid for each in owners if each.controller and each.uid), None)
