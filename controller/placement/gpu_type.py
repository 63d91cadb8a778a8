"""The GPU type of a node: the model that its accepted evidence states.

Written as NVIDIA's GPU feature discovery writes it into the node label `nvidia.com/gpu.product`, so
that both can be compared. A type is for preferences alone: requirements name hashes and classes.
"""

import re
from collections.abc import Iterable
from typing import Final

from controller.fleet.view import Acceptance, GpuView

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
