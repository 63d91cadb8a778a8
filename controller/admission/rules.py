"""What an installation configures about admission, and for which pods the API server asks.

The CEL expression is made from the keys that the parser reads, so that no key can make a pod
managed without a call. Hints are not among them: they never block. Expressions over tens of
thousands of keys take the API server seconds, so it looks at the number first. Source:
admissionregistration.k8s.io/v1, `matchConditions`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.placement.keys import HINT_ANNOTATIONS, RequirementRules, reserved_keys

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""What the API server writes where a pod names none."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """One value for mutation, validation and the binding webhook, so that they cannot disagree."""

    requirements: RequirementRules = RequirementRules()  # noqa: RUF009 -- frozen
    scheduler_name: str = "gpuwarden"
    """The scheduler that asks our extender; pods that name none are sent to it."""
    runtime_classes: tuple[str, ...] = ("nvidia",)
    """Runtime classes that managed pods, and pods of enforced namespaces, may name."""
    by_affinity: bool = False
    """No scheduler asks the extender: pods are sent to nodes by a hint (`scheduling.mode`)."""
    host_paths: frozenset[str] = frozenset()
    """Host paths that such pods may mount, as they are written."""
    further_schedulers: tuple[str, ...] = ()
    """Others that ask it: a managed pod may name one (`scheduling.schedulerNames`)."""

    @property
    def only_enforced(self) -> bool:
        """Whether the binding webhook sees bindings in enforced namespaces alone.

        Elsewhere it is asked about those of our own scheduler, and there is none.
        """
        return self.by_affinity or self.scheduler_name == DEFAULT_SCHEDULER

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The schedulers that a managed pod may name."""
        return (self.scheduler_name, *self.further_schedulers)

    @property
    def resources(self) -> tuple[str, ...]:
        """The managed resources."""
        return self.requirements.managed_resources


# --- registration

MOST_KEYS: Final = 1000
"""Annotations and labels whose names the API server reads by itself."""
_FIELDS: Final = ("annotations", "labels")


def asks_condition(rules: RequirementRules) -> str:
    """Whether a pod has a reserved key that is no hint, or very many keys."""
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
