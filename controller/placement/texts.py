"""Texts.

Holds: finding, quantity, requirement keys, hash list, guarantee, levels, refusal texts, micro time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from controller.policy import Level, NodeMode
from gpuwarden.finding import Finding
from gpuwarden.reasons import ReasonCode, Refusal

# --- finding
# What is wrong with a text that a person wrote: key, the text, what was expected.
#
# Text from outside is cut and escaped here, once, so that it can stand in events,
# logs and terminals. Pure.

_SHOWN_CHARS = 80


def shown(text: str) -> str:
    """`text` on one printable line of bounded length."""
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return ascii(cut) if not cut.isprintable() or not cut or " " in cut else cut


class RequirementTextError(ValueError):
    """One requirement's text is malformed; the message completes "expected …"."""


# --- quantity
# Kubernetes quantities and dotted version numbers, exactly. Pure.
#
# Source: k8s.io/apimachinery/pkg/api/resource (Quantity): a decimal number with a
# binary (Ki..Ei), decimal (n, u, m, k..E) or exponent suffix.

_MAX_CHARS_QUANTITY = 32
_MAX_EXPONENT = 24
_QUANTITY = re.compile(
    r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?"
)
_SUFFIX = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
_DOTTED = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}")


def parse_quantity(text: str) -> Fraction:
    """Read a quantity such as `40Gi`, `1500M`, `2e3`; raises RequirementTextError."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARS_QUANTITY else None
    if match is None:
        raise RequirementTextError("a quantity such as 40Gi")
    sign, number, suffix, exponent = match.groups()
    value = Fraction(number + "0" if number.endswith(".") else number)
    if exponent is not None:
        if abs(int(exponent)) > _MAX_EXPONENT:
            raise RequirementTextError("a quantity such as 40Gi")
        value *= Fraction(10) ** int(exponent)
    elif suffix is not None:
        value *= _SUFFIX[suffix]
    return -value if sign == "-" else value


def parse_count(text: str) -> int:
    """Read a quantity of whole devices, 0 or more; raises RequirementTextError."""
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_CHARS_QUANTITY:
        return int(text)  # nearly always
    value = parse_quantity(text)
    if value.denominator != 1 or value < 0:
        raise RequirementTextError("a whole number of devices, 0 or more")
    return int(value)


def parse_dotted(text: str) -> tuple[int, ...]:
    """Read `570.86.10` for comparison; trailing zeros do not count; raises RequirementTextError."""
    if not _DOTTED.fullmatch(text):
        raise RequirementTextError("a dotted number such as 570.86.10")
    parts = [int(part) for part in text.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


# --- requirement keys
# Every annotation and label that a pod can use, in one place (placement design, section 1).
#
# The extender, the webhooks and the policies take the configured keys from one
# `RequirementRules` value, so that they cannot disagree about what is a requirement.

PREFIX: Final = "gpuwarden.dev/"

REQUIRED_HASH: Final = "gpuwarden.dev/required-hash"
SEED_REQUIRED_HASH: Final = "attestation-hash.my-company.com/required-hash"
ATTESTATION_CLASS: Final = "gpuwarden.dev/attestation-class"
MIN_LEVEL: Final = "gpuwarden.dev/min-level"
GPU_UUIDS: Final = "gpuwarden.dev/gpu-uuids"
GPU_SELECTOR: Final = "gpuwarden.dev/gpu-selector"
GPU_COUNT: Final = "gpuwarden.dev/gpu-count"
GUARANTEE: Final = "gpuwarden.dev/guarantee"
RESERVE: Final = "gpuwarden.dev/reserve"
ORDINAL: Final = "gpuwarden.dev/ordinal"
"""The explicit ordinal: which line of the map is this pod's, before anything else."""
MAP: Final = "gpu-scheduling-map"
HINT_LABEL_PREFIX: Final = "gpuwarden.node-restriction.kubernetes.io/"
"""Labels of nodes that tell schedulers without the extender where pods may fit."""
MAP_NAME: Final = "gpu-node-name"
"""A label of nodes: how a map may call a node besides its name."""

SEED_LABEL_PREFIX: Final = "fudo.org/gpu."
LABEL_PREFIXES: Final = ("gpuwarden.dev/gpu.", SEED_LABEL_PREFIX)
ASSIGN: Final = "assign"
"""`<prefix>assign` asks for some GPU and names no property."""
SEED_ASSIGN: Final = SEED_LABEL_PREFIX + ASSIGN

REQUIREMENT_ANNOTATIONS: Final = frozenset(
    {
        ATTESTATION_CLASS,
        MIN_LEVEL,
        GPU_UUIDS,
        GPU_SELECTOR,
        GPU_COUNT,
        GUARANTEE,
        RESERVE,
        ORDINAL,
        MAP,
    }
)
"""Annotations that make a pod managed, besides the configured hash keys."""

HINT_ANNOTATIONS: Final = frozenset(
    {
        "gpuwarden.dev/job-type",
        "gpuwarden.dev/tenant",
        "gpuwarden.dev/gpu-memory",
        "gpuwarden.dev/batch-size",
    }
)
"""Never guard, never block, never decide here."""

ASSIGNED_UUIDS: Final = "gpuwarden.dev/gpu-uuids-assigned"
"""What variables inside containers refer to."""
RESERVATION_ID: Final = "gpuwarden.dev/reservation-id"
GIVEN_NODE: Final = "gpuwarden.dev/node"
ATTESTATION_HASH: Final = "gpuwarden.dev/attestation-hash"
GIVEN_GUARANTEE: Final = "gpuwarden.dev/guarantee-given"
GUARANTEE_LIMIT: Final = "gpuwarden.dev/guarantee-limit"
"""Why no more than the given guarantee."""
RESULT_ANNOTATIONS: Final = frozenset(
    {
        ASSIGNED_UUIDS,
        RESERVATION_ID,
        GIVEN_NODE,
        ATTESTATION_HASH,
        GIVEN_GUARANTEE,
        GUARANTEE_LIMIT,
    }
)
"""Written by the controller. Keeping others from writing them is admission's business."""

SEED_UUID: Final = "fudo.org/gpu.uuid"
SEED_RESERVATION_ID: Final = "fudo.org/gpu.reservation-id"
SEED_NODE: Final = "fudo.org/gpu.node"
SEED_RESULT_ANNOTATIONS: Final = frozenset({SEED_UUID, SEED_RESERVATION_ID, SEED_NODE})
"""Twins of results, written where a pod used that spelling."""
RESULT_ALIASES: Final = {
    SEED_UUID: ASSIGNED_UUIDS,
    SEED_RESERVATION_ID: RESERVATION_ID,
    SEED_NODE: GIVEN_NODE,
}
"""Which result each of them repeats."""

CDI_ASSIGNMENT: Final = "cdi.k8s.io/gpu-assignment"
"""An annotation that container runtimes read (CDI); written where a pod has `SEED_ASSIGN`."""
CDI_KIND: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class RequirementRules:
    """What the installation configures about requirements."""

    hash_keys: tuple[str, ...] = (REQUIRED_HASH, SEED_REQUIRED_HASH)
    """Annotations that hold a hash list (`requiredHashKeys`, `BGS_REQUIRED_ANNOTATION`)."""
    managed_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    """Extended resources that count as GPUs."""
    opaque_hashes: bool = False
    """Whether any ASCII string may be a hash: only with `--insecure-static-hashes`."""


# --- hash list
# Hash lists: `v1:sha256:…[,v1:sha256:…]` (formats design, section 5). Pure.

_MAX_HASHES = 16
_MAX_CHARS_HASH_LIST = 8192
_MAX_OPAQUE_CHARS = 253
_HASH = re.compile(r"v1:sha256:[0-9a-f]{64}")
_BLANKS = " \t\r\n"


def is_attestation_hash(text: str) -> bool:
    """Whether `text` is a class hash that evidence can have."""
    return _HASH.fullmatch(text) is not None


def is_opaque_hash(text: str) -> bool:
    """Whether `text` can be a seed-style hash: printable ASCII, no comma, no blank at its ends."""
    return (
        0 < len(text) <= _MAX_OPAQUE_CHARS
        and text.isascii()
        and text.isprintable()
        and "," not in text
        and text == text.strip()
    )


def split_list(key: str, text: str, most: int) -> tuple[str, ...] | Finding:
    """The elements of a comma list, blanks trimmed, duplicates folded, none empty."""
    if len(text) > _MAX_CHARS_HASH_LIST:
        return Finding(key, shown(text), f"at most {_MAX_CHARS_HASH_LIST} characters")
    elements = tuple(dict.fromkeys(part.strip(_BLANKS) for part in text.split(",")))
    if not all(elements):
        return Finding(key, shown(text), "values separated by commas, none of them empty")
    if len(elements) > most:
        return Finding(key, shown(text), f"at most {most} values")
    return elements


def read_hashes(
    annotations: Mapping[str, str], rules: RequirementRules, findings: list[Finding]
) -> frozenset[str] | None:
    """The hashes that every given list allows, or None where no list is given.

    A key that is present and empty is a fault, not an absent requirement.
    """
    keys = [key for key in rules.hash_keys if key in annotations]
    if not keys:
        return None
    lists = [_hashes(key, annotations[key], rules, findings) for key in keys]
    common = frozenset.intersection(*lists)
    if not common and all(lists):
        expected = "at least one hash that stands in each of them"
        findings.append(Finding(" and ".join(keys), "no hash in common", expected))
    return common


def _hashes(
    key: str, text: str, rules: RequirementRules, findings: list[Finding]
) -> frozenset[str]:
    elements = split_list(key, text, _MAX_HASHES)
    if isinstance(elements, Finding):
        findings.append(elements)
        return frozenset()
    findings.extend(
        Finding(key, shown(element), "v1:sha256: and 64 lower-case hex digits")
        for element in elements
        if not is_attestation_hash(element)
        and not (rules.opaque_hashes and is_opaque_hash(element))
    )
    return frozenset(elements)


# --- guarantee
# How exactly a pod gets the GPUs that were meant (placement design, section 6). Pure.


class Guarantee(StrEnum):
    """What is promised of the devices in a container."""

    EXACT = "exact"
    """The runtime can give only these devices."""
    SET = "set"
    """Whatever kubelet chooses on the node is equally attested."""
    NODE = "node"
    """Only the node is guaranteed."""


class Limit(StrEnum):
    """Why no more is promised, for people."""

    PROTECTION_OFF = "protection is off"
    NO_TAINT = "the node lacks the taint gpuwarden.dev/managed:NoExecute"
    TAINTS_UNKNOWN = "what is known of the node's taints is too old"
    RUNTIME = "the policy does not say that the node's container runtime honours the variable"
    KUBELET = "kubelet chooses the GPU"
    MODE = "nodes of this mode give no GPUs yet"
    ACCEPTED = "the pod accepts less"


# --- levels
# The order of evidence levels. Pure.

RANK: dict[Level, int] = {level: rank for rank, level in enumerate(Level)}
"""`none` is 0, then L0 to L3."""


def highest(*levels: Level) -> Level:
    """The strictest of some demanded levels."""
    return max(levels, key=RANK.__getitem__)


# --- refusal texts
# The short text of each placement code. Constant per cause, so that events group. Pure.

_TEXTS: dict[ReasonCode, str] = {
    ReasonCode.NODE_NO_EVIDENCE: "no attestation hash",
    ReasonCode.NODE_STALE: "attestation is stale",
    ReasonCode.NODE_QUARANTINED: "node is quarantined until an operator acts",
    ReasonCode.HASH_MISMATCH: "attestation mismatch",
    ReasonCode.CLASS_UNKNOWN: "attestation class is not in the policy",
    ReasonCode.CLASS_NOT_ALLOWED: "the cluster does not accept the node's attestation hash",
    ReasonCode.LEVEL_TOO_LOW: "evidence level is too low",
    ReasonCode.NODE_MODE: "the node gives GPUs in another way than the pod asks for them",
    ReasonCode.EXACT_UNAVAILABLE: "kubelet chooses the GPU on this node",
    ReasonCode.MAP_ELSEWHERE: "the scheduling map names another node",
    ReasonCode.GPU_NO_MATCH: "too few GPUs are as the pod asks",
    ReasonCode.GPU_LOST: "a GPU that the pod needs is lost or unhealthy",
    ReasonCode.GPU_BUSY: "too few matching GPUs are free",
    ReasonCode.GATE_DENIED_RECENTLY: "the binding was denied a moment ago",
}

REFUSALS: dict[ReasonCode, Refusal] = {code: Refusal(code, text) for code, text in _TEXTS.items()}

STILL_CLAIMED = Refusal(
    ReasonCode.NODE_MODE,
    "pods still have GPUs of the node by claims from before its mode was changed",
)
WITHOUT_RECORD = Refusal(
    ReasonCode.GPU_BUSY,
    "kubelet gave matching GPUs to pods, or pods use them, without a reservation",
)
"""Else enough of them would be free."""
NO_MODE_YET: dict[NodeMode, Refusal] = {
    mode: Refusal(ReasonCode.NODE_MODE, f"nodes of mode {mode} give no GPUs yet")
    for mode in (NodeMode.PER_GPU, NodeMode.DRA)
}
"""Of the modes that are not available: managed pods pass none of their nodes."""


def refused_node(code: ReasonCode) -> Refusal:
    """NODE_REFUSED with the code of the refusal of the node's evidence."""
    return Refusal(ReasonCode.NODE_REFUSED, f"evidence refused ({code})")


def message(refusal: Refusal) -> str:
    """The text of extender answers: `gpuwarden: CODE short text`."""
    return f"gpuwarden: {refusal.code} {refusal.detail}"
