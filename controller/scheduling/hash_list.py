"""Hash lists: `v1:sha256:…[,v1:sha256:…]` (formats design, section 5). Pure."""

import re
from collections.abc import Mapping

from controller.scheduling.finding import Finding
from controller.scheduling.wish_keys import WishRules

_MAX_HASHES = 16
_MAX_CHARS = 8192
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
    if len(text) > _MAX_CHARS:
        return Finding(key, text, f"at most {_MAX_CHARS} characters")
    elements = tuple(dict.fromkeys(part.strip(_BLANKS) for part in text.split(",")))
    if not all(elements):
        return Finding(key, text, "values separated by commas, none of them empty")
    if len(elements) > most:
        return Finding(key, text, f"at most {most} values")
    return elements


def read_hashes(
    annotations: Mapping[str, str], rules: WishRules, findings: list[Finding]
) -> frozenset[str] | None:
    """The hashes that every given list allows, or None where no list is given.

    A key that is present and empty is a fault, not an absent wish.
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


def _hashes(key: str, text: str, rules: WishRules, findings: list[Finding]) -> frozenset[str]:
    elements = split_list(key, text, _MAX_HASHES)
    if isinstance(elements, Finding):
        findings.append(elements)
        return frozenset()
    findings.extend(
        Finding(key, element, "v1:sha256: and 64 lower-case hex digits")
        for element in elements
        if not is_attestation_hash(element)
        and not (rules.opaque_hashes and is_opaque_hash(element))
    )
    return frozenset(elements)
