"""Security mutations of the support bundle: what may leave in it."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import FROM_OUTSIDE, TOLD

ENTRIES: Final = (
    one(
        "bundle-settings",
        "gpuwarden/support/disclosure.py",
        "    return key.spec.kind.closed or source == _DEFAULT",
        "    return True",
        TOLD,
        FROM_OUTSIDE,
    ),
    one(
        "bundle-texts",
        "gpuwarden/support/disclosure.py",
        "    return sorted(found)[:_MAX_WORDS]",
        "    return [*sorted(found)[:_MAX_WORDS], text]",
        TOLD,
        FROM_OUTSIDE,
    ),
    one(
        "bundle-metrics",
        "gpuwarden/support/disclosure.py",
        "        if _is_declared(line):",
        "        if line:",
        TOLD,
        FROM_OUTSIDE,
    ),
    one(
        "bundle-nodes",
        "controller/explain/node.py",
        "    return text if text is not None and _VERSION.fullmatch(text) else None",
        "    return text",
        TOLD,
    ),
    one(
        "bundle-answers",
        "gpuwarden/support/disclosure.py",
        "    return text if isinstance(text, str) and text in known else None",
        "    return text if isinstance(text, str) else None",
        FROM_OUTSIDE,
    ),
)
