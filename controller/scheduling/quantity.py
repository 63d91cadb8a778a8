"""Kubernetes quantities and dotted version numbers, exactly. Pure.

Source: k8s.io/apimachinery/pkg/api/resource (Quantity): a decimal number with a
binary (Ki..Ei), decimal (n, u, m, k..E) or exponent suffix.
"""

import re
from fractions import Fraction

from controller.scheduling.finding import WishTextError

_MAX_CHARS = 32
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
    """Read a quantity such as `40Gi`, `1500M`, `2e3`; raises WishTextError."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        raise WishTextError("a quantity such as 40Gi")
    sign, number, suffix, exponent = match.groups()
    value = Fraction(number + "0" if number.endswith(".") else number)
    if exponent is not None:
        if abs(int(exponent)) > _MAX_EXPONENT:
            raise WishTextError("a quantity such as 40Gi")
        value *= Fraction(10) ** int(exponent)
    elif suffix is not None:
        value *= _SUFFIX[suffix]
    return -value if sign == "-" else value


def parse_count(text: str) -> int:
    """Read a quantity of whole devices, 0 or more; raises WishTextError."""
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_CHARS:
        return int(text)  # nearly always
    value = parse_quantity(text)
    if value.denominator != 1 or value < 0:
        raise WishTextError("a whole number of devices, 0 or more")
    return int(value)


def parse_dotted(text: str) -> tuple[int, ...]:
    """Read `570.86.10` for comparison; trailing zeros do not count; raises WishTextError."""
    if not _DOTTED.fullmatch(text):
        raise WishTextError("a dotted number such as 570.86.10")
    parts = [int(part) for part in text.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
