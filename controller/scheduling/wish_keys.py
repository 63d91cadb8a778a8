"""Every annotation and label that a pod can use, in one place (placement design, section 1).

The extender, the webhooks and the policies take the configured keys from one
`WishRules` value, so that they cannot disagree about what is a wish.
"""

from dataclasses import dataclass
from typing import Final

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

WISH_ANNOTATIONS: Final = frozenset(
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
"""Annotations that make a pod guarded, besides the configured hash keys."""

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
RESULT_TWINS: Final = {
    SEED_UUID: ASSIGNED_UUIDS,
    SEED_RESERVATION_ID: RESERVATION_ID,
    SEED_NODE: GIVEN_NODE,
}
"""Which result each of them repeats."""

CDI_ASSIGNMENT: Final = "cdi.k8s.io/gpu-assignment"
"""An annotation that container runtimes read (CDI); written where a pod has `SEED_ASSIGN`."""
CDI_KIND: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class WishRules:
    """What the installation configures about wishes."""

    hash_keys: tuple[str, ...] = (REQUIRED_HASH, SEED_REQUIRED_HASH)
    """Annotations that hold a hash list (`requiredHashKeys`, `BGS_REQUIRED_ANNOTATION`)."""
    managed_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    """Extended resources that count as GPUs."""
    opaque_hashes: bool = False
    """Whether any ASCII string may be a hash: only with `--insecure-static-hashes`."""
