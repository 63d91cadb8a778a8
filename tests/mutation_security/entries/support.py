"""Security mutations of the support bundle: what may leave in it."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import FROM_OUTSIDE, TOLD

ENTRIES: Final = (
    one(
        "bundle-settings",
        "gpuwarden/support/disclosed_settings.py",
        "    return key.spec.kind.closed or source == _DEFAULT",
        "    return True",
        TOLD,
        FROM_OUTSIDE,
    ),
    one(
        "bundle-texts",
        "gpuwarden/support/known_words.py",
        "    return sorted(found)[:_MOST]",
        "    return [*sorted(found)[:_MOST], text]",
        TOLD,
        FROM_OUTSIDE,
    ),
    one(
        "bundle-metrics",
        "gpuwarden/support/exposition.py",
        "        if _may_leave(line):",
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
        "gpuwarden/support/known_answers.py",
        "    return text if isinstance(text, str) and text in known else None",
        "    return text if isinstance(text, str) else None",
        FROM_OUTSIDE,
    ),
)
