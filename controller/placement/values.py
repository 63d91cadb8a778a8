"""Values of annotations: counts and lists of attestation hashes."""

from collections.abc import Mapping

from controller.placement.keys import RequirementRules
from gpuwarden.finding import Finding
from gpuwarden.policy.texts import (
    QUANTITY_CHARS,
    RequirementTextError,
    is_attestation_hash,
    is_opaque_hash,
    parse_quantity,
    shown,
)


def parse_count(text: str) -> int:
    """Read a quantity of whole devices, 0 or more; raises RequirementTextError."""
    if text.isascii() and text.isdecimal() and len(text) <= QUANTITY_CHARS:
        return int(text)  # nearly always
    value = parse_quantity(text)
    if value.denominator != 1 or value < 0:
        raise RequirementTextError("a whole number of devices, 0 or more")
    return int(value)


# --- hash lists: `v1:sha256:…[,v1:sha256:…]`

_MAX_HASHES = 16
_LIST_CHARS = 8192
_BLANKS = " \t\r\n"


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
