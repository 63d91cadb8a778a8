"""For which pods the API server asks us outside enforced namespaces: a CEL expression. Pure.

Made from the keys that the parser reads, so that no key can make a pod guarded without a call.
Hints are not among them: they never block. Expressions over tens of thousands of keys take the API
server seconds, so it looks at the number first. Source: admissionregistration.k8s.io/v1,
`matchConditions`.
"""

from collections.abc import Iterable
from typing import Final

from controller.scheduling.reserved_keys import reserved_keys
from controller.scheduling.wish_keys import HINT_ANNOTATIONS, WishRules

MOST_KEYS: Final = 1000
"""Annotations and labels whose names the API server reads by itself."""
_FIELDS: Final = ("annotations", "labels")


def asks_condition(rules: WishRules) -> str:
    """Whether a pod has an annotation or label that is ours and no hint, or very many of them."""
    keys = reserved_keys(rules)
    ours = " || ".join(
        (
            *(f"k.startsWith({_text(prefix)})" for prefix in keys.prefixes),
            f"k in {_list(keys.names)}",
        )
    )
    each = f"({ours}) && !(k in {_list(sorted(HINT_ANNOTATIONS))})"
    found = (f"{_keys(field)}.exists(k, {each})" for field in _FIELDS)
    sizes = " + ".join(f"{_keys(field)}.size()" for field in _FIELDS)
    return " || ".join((f"{sizes} > {MOST_KEYS}", *found))


def _keys(field: str) -> str:
    return f"object.metadata.?{field}.orValue({{}})"


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _text(text: str) -> str:
    """A key has no quote and no backslash in it."""
    return f"'{text}'"
