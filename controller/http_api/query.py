"""Reads which page is asked for. Pure."""

from collections.abc import Iterable
from typing import Final

from controller.http_api.listing import Asked
from controller.http_api.operations import MOST_KEYS
from gpuwarden.evidence.strict_json import quote

_MOST_CHARS: Final = 253
_DIGITS: Final = len(str(MOST_KEYS))
_SHOWN: Final = 80


class QueryError(ValueError):
    """A parameter cannot be used; names it, the value and what was expected."""


def read_query(pairs: Iterable[tuple[str, str]]) -> Asked:
    """The page behind `limit` and `after`, each at most once; raises QueryError."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key not in {"limit", "after"}:
            raise QueryError(f"{quote(key, _SHOWN)}: no such parameter, expected limit or after")
        if key in found:
            raise QueryError(f"{key}: given twice, expected once")
        found[key] = value
    return Asked(_limit(found.get("limit", str(MOST_KEYS))), _after(found.get("after", "")))


def _limit(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not is_number or not 1 <= int(text) <= MOST_KEYS:
        raise QueryError(f"limit: {quote(text, _SHOWN)}, expected 1 to {MOST_KEYS}")
    return int(text)


def _after(text: str) -> str:
    if len(text) > _MOST_CHARS:
        raise QueryError(f"after: expected at most {_MOST_CHARS} characters")
    return text
