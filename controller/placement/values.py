"""Values of annotations and labels: quantities, versions and lists of attestation hashes.

Text from outside is cut and escaped here, so that it can be shown in events, logs and terminals.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from controller.placement.keys import RequirementRules
from gpuwarden.finding import Finding

_SHOWN_CHARS = 80


def shown(text: str) -> str:
    """`text` on one printable line of bounded length."""
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return ascii(cut) if not cut.isprintable() or not cut or " " in cut else cut


class RequirementTextError(ValueError):
    """One requirement's text is malformed; the message completes "expected …"."""


# --- quantities (k8s.io/apimachinery/pkg/api/resource) and dotted versions

_QUANTITY_CHARS = 32
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
    match = _QUANTITY.fullmatch(text) if len(text) <= _QUANTITY_CHARS else None
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


def parse_count(text: str) -> int:
    """Read a quantity of whole devices, 0 or more; raises RequirementTextError."""
    if text.isascii() and text.isdecimal() and len(text) <= _QUANTITY_CHARS:
        return int(text)  # nearly always
    value = parse_quantity(text)
    if value.denominator != 1 or value < 0:
        raise RequirementTextError("a whole number of devices, 0 or more")
    return int(value)


def parse_dotted(text: str) -> tuple[int, ...]:
    """Read `570.86.10` for comparison; trailing zeros do not count; raises RequirementTextError."""
    if not _DOTTED.fullmatch(text):
        raise RequirementTextError("a dotted number such as 570.86.10")
    parts = [int(part) for part in text.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


# --- hash lists: `v1:sha256:…[,v1:sha256:…]`

_MAX_HASHES = 16
_LIST_CHARS = 8192
_MAX_OPAQUE_CHARS = 253
_HASH = re.compile(r"v1:sha256:[0-9a-f]{64}")
_BLANKS = " \t\r\n"


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


def split_list(key: str, text: str, most: int) -> tuple[str, ...] | Finding:
    """The elements of a comma list, blanks trimmed, duplicates folded, none empty."""
    if len(text) > _LIST_CHARS:
        return Finding(key, shown(text), f"at most {_LIST_CHARS} characters")
    elements = tuple(dict.fromkeys(part.strip(_BLANKS) for part in text.split(",")))
    if not all(elements):
        return Finding(key, shown(text), "values separated by commas, none of them empty")
    if len(elements) > most:
        return Finding(key, shown(text), f"at most {most} values")
    return elements


def read_hashes(
    annotations: Mapping[str, str], rules: RequirementRules, findings: list[Finding]
) -> frozenset[str] | None:
    """The hashes that every given list allows, or None where no list is given.

    A key that is present and empty is a fault, not an absent requirement.
    """
    keys = [key for key in rules.hash_keys if key in annotations]
    if not keys:
        return None
    lists = [_hashes(key, annotations[key], rules, findings) for key in keys]
    common = frozenset.intersection(*lists)
    if not common and all(lists):
        expected = "at least one hash that stands in each of them"
        findings.append(Finding(" and ".join(keys), "no hash in common", expected))
    return common


def _hashes(
    key: str, text: str, rules: RequirementRules, findings: list[Finding]
) -> frozenset[str]:
    elements = split_list(key, text, _MAX_HASHES)
    if isinstance(elements, Finding):
        findings.append(elements)
        return frozenset()
    findings.extend(
        Finding(key, shown(element), "v1:sha256: and 64 lower-case hex digits")
        for element in elements
        if not is_attestation_hash(element)
        and not (rules.opaque_hashes and is_opaque_hash(element))
    )
    return frozenset(elements)
