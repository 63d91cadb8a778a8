"""Keys on pods that belong to gpuwarden, from the one value that configures them. Pure.

The policies in deploy/policy hold the same keys as the defaults here (tests compare them),
and the webhooks ask here. Must not judge pods: who may write a key, and when, is admission's
business.
"""

from dataclasses import dataclass
from typing import Final

from controller.scheduling.ordinal import ORDINAL_KEYS
from controller.scheduling.wish_keys import LABEL_PREFIXES, MAP, PREFIX, WishRules

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
    """Annotations and labels alike: a key of ours has no meaning as the other of both."""

    prefixes: tuple[str, ...]
    """Everything that begins so is ours."""
    names: tuple[str, ...]
    """Ours besides, whole."""
    ordinals: tuple[str, ...]
    """Others' keys that say which line of a map is the pod's, on pods with a map."""

    def is_ours(self, key: str) -> bool:
        """Whether nobody else gives `key` a meaning."""
        return key.startswith(self.prefixes) or key in self.names


def reserved_keys(rules: WishRules) -> ReservedKeys:
    """The keys of an installation."""
    prefixes = (PREFIX, *(x for x in LABEL_PREFIXES if not x.startswith(PREFIX)))
    names = (*rules.hash_keys, MAP)
    return ReservedKeys(
        prefixes,
        tuple(sorted({x for x in names if not x.startswith(prefixes)})),
        tuple(x for x in ORDINAL_KEYS if not x.startswith(prefixes)),
    )
