"""How exactly a pod gets the GPUs that were meant (placement design, section 6). Pure."""

from enum import StrEnum

from controller.fleet.view import NodeMode


class Guarantee(StrEnum):
    """What is promised of the devices in a container."""

    EXACT = "exact"
    """The runtime can give only these devices."""
    SET = "set"
    """Whatever kubelet chooses on the node is equally attested."""
    NODE = "node"
    """Only the node is guaranteed."""


def guarantee_given(mode: NodeMode, *, protected: bool) -> Guarantee:
    """What a node of this mode can promise.

    `protected` says that nothing can get round admission on the node; without that,
    and on `env` nodes whose container toolkit is not known to honour the variable,
    no more than `node` is true.
    """
    if protected and mode is NodeMode.PLUGIN:
        return Guarantee.SET
    return Guarantee.NODE
