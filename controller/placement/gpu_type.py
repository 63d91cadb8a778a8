"""The GPU type of a node: the model that its accepted evidence states; and which a pod prefers.

Written as NVIDIA's GPU feature discovery writes it into the node label `nvidia.com/gpu.product`, so
that both can be compared. A type is for preferences alone: requirements name hashes and classes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from controller.fleet.view import Acceptance, GpuView
from controller.placement.keys import CHOSEN_GPU, CHOSEN_GPUS

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._-]")
_MOST: Final = 63


def type_name(product: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `NVIDIA-H100-80GB-HBM3`: a text that a label can hold."""
    return _NOT_ALLOWED.sub("-", product.strip())[:_MOST].strip("._-")


def gpu_type(acceptance: Acceptance) -> str | None:
    """None where the GPUs have different models, or one that the evidence does not name."""
    return type_of(acceptance.gpus)


def type_of(gpus: Iterable[GpuView]) -> str | None:
    """The type of some GPUs, as `gpu_type` of all of a node."""
    products = {gpu.product for gpu in gpus}
    if len(products) != 1:
        return None
    (product,) = products
    return type_name(product or "") or None


# --- what a pod prefers

MOST_WEIGHT: Final = 100
"""Of the type that is chosen."""
MOST_CHOSEN: Final = 8
_CHOICE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})=([1-9][0-9]?|100)", re.ASCII)


def chosen_types(annotations: Mapping[str, str]) -> Mapping[str, int]:
    """Weights from 1 to 100 of the types that a pod's annotations name, whoever wrote them.

    A text that cannot be read names none: it is a hint.
    """
    parts = annotations.get(CHOSEN_GPUS, "").split(",", MOST_CHOSEN)
    matches = [_CHOICE.fullmatch(part) for part in parts]
    found = {match[1]: int(match[2]) for match in matches if match is not None}
    weights = found if len(found) == len(parts) <= MOST_CHOSEN else {}
    first = annotations.get(CHOSEN_GPU)
    return {**weights, first: MOST_WEIGHT} if first else weights


def chosen_text(weights: Iterable[tuple[str, int]]) -> str:
    """The annotation that says so."""
    return ",".join(f"{name}={weight}" for name, weight in weights)
