"""For which pods the API server asks us outside enforced namespaces: a CEL expression. Pure.

Made from the keys that the parser reads, so that no key can make a pod guarded without a call.
Hints are not among them: they never block. Source: admissionregistration.k8s.io/v1,
`matchConditions`.
"""

from collections.abc import Iterable

from controller.scheduling.reserved_keys import reserved_keys
from controller.scheduling.wish_keys import HINT_ANNOTATIONS, WishRules


def asks_condition(rules: WishRules) -> str:
    """Whether a pod has an annotation or label that is ours and no hint."""
    keys = reserved_keys(rules)
    ours = " || ".join(
        (
            *(f"k.startsWith({_text(prefix)})" for prefix in keys.prefixes),
            f"k in {_list(keys.names)}",
        )
    )
    each = f"({ours}) && !(k in {_list(sorted(HINT_ANNOTATIONS))})"
    return " || ".join(
        f"object.metadata.?{field}.orValue({{}}).exists(k, {each})"
        for field in ("annotations", "labels")
    )


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _text(text: str) -> str:
    """A key has no quote and no backslash in it."""
    return f"'{text}'"
