"""Texts that policies and pods have in common: quantities, versions and attestation hashes. Pure.

Text from outside is cut and escaped here, so that it can be shown in events, logs and terminals.
"""

import re
from fractions import Fraction
from typing import Final

_SHOWN_CHARS = 80


def shown(text: str) -> str:
    """`text` on one printable line of bounded length."""
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return ascii(cut) if not cut.isprintable() or not cut or " " in cut else cut


class RequirementTextError(ValueError):
    """One requirement's text is malformed; the message completes "expected …"."""


# --- quantities (k8s.io/apimachinery/pkg/api/resource) and dotted versions

QUANTITY_CHARS: Final = 32
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
    match = _QUANTITY.fullmatch(text) if len(text) <= QUANTITY_CHARS else None
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


def parse_dotted(text: str) -> tuple[int, ...]:
    """Read `570.86.10` for comparison; trailing zeros do not count; raises RequirementTextError."""
    if not _DOTTED.fullmatch(text):
        raise RequirementTextError("a dotted number such as 570.86.10")
    parts = [int(part) for part in text.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


# --- attestation hashes

_MAX_OPAQUE_CHARS = 253
_HASH = re.compile(r"v1:sha256:[0-9a-f]{64}")


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


# --- images: compared by digest, never by tag

_IMAGE = re.compile(r"(?:[!-?A-~]{1,255}@)?(sha256:[0-9a-f]{64})")


def image_digest(reference: str) -> str | None:
    """`sha256:<hex>` of a reference by digest; None where it names an image by tag."""
    match = _IMAGE.fullmatch(reference)
    return match[1] if match else None
