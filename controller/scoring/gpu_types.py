"""What is known of GPU types by their names: memory, and how fast they read it.

A name is a label value, such as `A100-80GB` or `NVIDIA-H100-80GB-HBM3`. Figures that the caller
gives (from attested facts) win over names. A type without a figure is never excluded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_SIZE: Final = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}) ?gi?b(?![A-Za-z0-9])", re.IGNORECASE)
_MIG: Final = re.compile(r"\d+g\.(\d{1,4})gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Model:
    """GiB of memory, and GB/s from it."""

    memory: float
    bandwidth: float


_MODELS: Final = {
    "GB300": _Model(288, 8000),
    "B300": _Model(288, 8000),
    "GB200": _Model(186, 8000),
    "B200": _Model(180, 8000),
    "GH200": _Model(96, 4000),
    "H200": _Model(141, 4800),
    "H100": _Model(80, 3350),
    "A100": _Model(40, 1940),
    "L40S": _Model(48, 864),
    "L40": _Model(48, 864),
    "L4": _Model(24, 300),
    "A40": _Model(48, 696),
    "A30": _Model(24, 933),
    "A10G": _Model(24, 600),
    "A10": _Model(24, 600),
    "V100": _Model(16, 900),
    "T4": _Model(16, 320),
    "P100": _Model(16, 732),
}
"""The smallest memory that a model comes with: a larger one is in the name."""


def _model(name: str) -> _Model | None:
    words = re.split(r"[^A-Za-z0-9]+", name.upper())
    return next((_MODELS[word] for word in words if word in _MODELS), None)


def memory_of(name: str, given: Mapping[str, float]) -> float | None:
    """GiB of one GPU of this type; None where nobody knows."""
    if name in given:
        return given[name]
    found = _MIG.search(name) or _SIZE.search(name)
    if found:
        return float(found[1])
    model = _model(name)
    return None if model is None else model.memory


def relative_slowness(of: str, against: str) -> float:
    """How much longer a job may take on one type than on another, where no job ran on both.

    The square root of the ratio of their memory bandwidths; 1 where a model is not known.
    """
    one, other = _model(of), _model(against)
    if one is None or other is None:
        return 1.0
    return float((other.bandwidth / one.bandwidth) ** 0.5)
