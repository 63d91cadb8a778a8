"""How exactly a pod gets the GPUs that were meant (placement design, section 6). Pure."""

from enum import StrEnum


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
