"""The annotations, labels and taint of gpuwarden, and those of container runtimes.

One `RequirementRules` value configures extender, webhooks and policies, so that they cannot
disagree about what is a requirement. The policies in deploy/policy hold the same keys as the
defaults here (tests compare them). Must not judge pods: who may write a key, and when, is
admission's business.
"""

from dataclasses import dataclass
from typing import Final

from gpuwarden.policy.selector import ASSIGN

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
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
ORDINAL_KEYS: Final = (ORDINAL, POD_INDEX, COMPLETION_INDEX)
"""Keys that can hold an ordinal, first of all first."""
MAP: Final = "gpu-scheduling-map"
HINT_LABEL_PREFIX: Final = "gpuwarden.node-restriction.kubernetes.io/"
"""Labels of nodes that tell schedulers without the extender where pods may fit."""
MAP_NAME: Final = "gpu-node-name"
"""A label of nodes: how a map may call a node besides its name."""

SEED_LABEL_PREFIX: Final = "fudo.org/gpu."
LABEL_PREFIXES: Final = ("gpuwarden.dev/gpu.", SEED_LABEL_PREFIX)
SEED_ASSIGN: Final = SEED_LABEL_PREFIX + ASSIGN
"""It asks for some GPU and names no property."""

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
        "gpuwarden.dev/chosen-gpus",
    }
)
"""Never guard, never block, never decide here."""

CHOSEN_GPU: Final = "scheduler.radix.ai/chosen-gpu"
"""The GPU type that a hint chose for the pod. Anybody may write it: it moves nodes that pass."""
CHOSEN_GPUS: Final = "gpuwarden.dev/chosen-gpus"
"""The next best ones too, with weights: `A=100,B=73`. Trusted as little."""

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


# --- reserved keys

MANAGED_TAINT: Final = "gpuwarden.dev/managed"
"""Key of the taint of managed nodes, where the installation protects them."""
MANAGED_EFFECT: Final = "NoExecute"
"""Its effect: the only one whose toleration admission injects."""

RUNTIME_DEVICE_PREFIXES: Final = (
    "cdi.k8s.io/",
    "nvidia.cdi.k8s.io",
    "cdi-devices.nri.io",
    "cdi-devices.noderesource.dev",
    "cdi.nri.io",
    "devices.nri.io",
    "devices.noderesource.dev",
    "devices.gke.io",
    "mounts.nri.io",
    "mounts.noderesource.dev",
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
    "io.kubernetes.cri-o.PlatformRuntimePath",
    "platform-runtime-path.crio.io",
    "org.systemd.property.",
)
"""Annotations by which container runtimes and their NRI plugins give a container devices.

Read when a container is created, so long after admission: CDI (containerd, CRI-O), NVIDIA's
toolkit and NRI's device injector under its old and new names, GKE's, CRI-O's own under its old and
new names, and systemd's properties of the container's unit (`DeviceAllow`), which runc and crun set
from annotations. CRI-O also keeps in one of them which program the runtime is.
"""


@dataclass(frozen=True, slots=True)
class ReservedKeys:
    """Annotations and labels alike: a key that is one of them has no meaning as the other."""

    prefixes: tuple[str, ...]
    """Every key that begins so is reserved."""
    names: tuple[str, ...]
    """Reserved besides, whole."""
    ordinals: tuple[str, ...]
    """Others' keys that say which line of a map is the pod's, on pods with a map."""

    def is_ours(self, key: str) -> bool:
        """Whether nobody else gives `key` a meaning."""
        return key.startswith(self.prefixes) or key in self.names


def reserved_keys(rules: RequirementRules) -> ReservedKeys:
    """The keys of an installation."""
    prefixes = (PREFIX, *(x for x in LABEL_PREFIXES if not x.startswith(PREFIX)))
    names = (*rules.hash_keys, MAP)
    return ReservedKeys(
        prefixes,
        tuple(sorted({x for x in names if not x.startswith(prefixes)})),
        tuple(x for x in ORDINAL_KEYS if not x.startswith(prefixes)),
    )
