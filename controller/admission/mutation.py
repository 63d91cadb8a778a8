"""What the mutating webhook adds to a pod, as the smallest patch. Pure.

Idempotent: of a pod that has it all the patch is empty, so the same function says whether a
pod was injected. Nothing but variables, the scheduler's name or the node affinity, and one
toleration is touched.
"""

from collections.abc import Iterator
from typing import Final

from controller.admission.early import is_early
from controller.admission.hint import hint
from controller.admission.json_patch import END, Operation, Value, Verb, pointer
from controller.admission.node_affinity import demanding
from controller.admission.pod_view import AdmittedContainer, AdmittedPod, Toleration
from controller.admission.rules import DEFAULT_SCHEDULER, AdmissionRules
from controller.admission.supply import (
    ASSIGNED_PATH,
    VOID,
    Supply,
    is_ours,
    supply_of,
    supply_without_request,
    wanted_variables,
)
from controller.admission.visible_devices import opens_devices
from controller.scheduling.requirements import Requirements
from controller.scheduling.reserved_keys import MANAGED_EFFECT, MANAGED_TAINT

_EPHEMERAL: Final = "ephemeralContainers"
_MOST_REMOVED: Final = 64
"""Entries of one container: each removal moves all that follow, in the API server. Who has more is
refused for not being injected."""


def injection(
    pod: AdmittedPod, needs: Requirements, rules: AdmissionRules, *, enforced: bool
) -> tuple[Operation, ...]:
    """What is missing in a new pod."""
    found = [
        operation
        for field, containers in pod.lists().items()
        for index, container in enumerate(containers)
        for operation in _variables(
            ("spec", field, index, "env"),
            container,
            supply_of(container, needs, rules.resources, enforced=enforced),
        )
    ]
    if needs.guarded:
        found.extend(_placement(pod, needs, rules))
        if enforced:
            found.extend(_toleration(pod))
    return tuple(found)


def ephemeral_injection(
    pod: AdmittedPod, needs: Requirements, *, enforced: bool, known: frozenset[str]
) -> tuple[Operation, ...]:
    """What is missing in the ephemeral containers that are new: not in `known`, by name."""
    supply = supply_without_request(needs, enforced=enforced)
    return tuple(
        operation
        for index, container in enumerate(pod.spec.ephemeral_containers or ())
        if container.name not in known
        for operation in _variables(("spec", _EPHEMERAL, index, "env"), container, supply)
    )


def is_beyond_repair(
    pod: AdmittedPod, needs: Requirements, rules: AdmissionRules, *, enforced: bool
) -> bool:
    """Whether a new pod lacks something of ours even with the patch."""
    if ephemeral_injection(pod, needs, enforced=enforced, known=frozenset()):
        return True
    return any(
        len(_surplus(container, supply_of(container, needs, rules.resources, enforced=enforced)))
        > _MOST_REMOVED
        for container in pod.all_containers()
    )


def _surplus(container: AdmittedContainer, supply: Supply) -> list[int]:
    """Places of entries with a name of ours, but for the first of each name."""
    seen, found = set[str](), list[int]()
    wanted = wanted_variables(supply)
    for place, entry in enumerate(container.env or ()):
        if entry.name not in wanted:
            continue
        if entry.name in seen:
            found.append(place)
        seen.add(entry.name)
    return found


def _variables(
    at: tuple[str | int, ...], container: AdmittedContainer, supply: Supply
) -> Iterator[Operation]:
    """Replace in place what is wrong, append what is missing, then drop what is there twice."""
    entries = container.env or ()
    missing: list[Value] = []
    for name in wanted_variables(supply):
        places = [index for index, entry in enumerate(entries) if entry.name == name]
        if supply is Supply.NONE and any(opens_devices(entries[place]) for place in places):
            return  # a door: the validating webhook says so
        if not places:
            missing.append(_entry(name, supply))
            continue
        if not is_ours(entries[places[0]], supply):
            yield Operation(Verb.REPLACE, pointer(*at, places[0]), _entry(name, supply))
    for index in _surplus(container, supply)[::-1][:_MOST_REMOVED]:
        yield Operation(Verb.REMOVE, pointer(*at, index))
    if missing and not entries:
        yield Operation(Verb.ADD, pointer(*at), missing)
    elif missing:
        yield from (Operation(Verb.ADD, pointer(*at, END), entry) for entry in missing)


def _entry(name: str, supply: Supply) -> Value:
    if supply is Supply.NONE:
        return {"name": name, "value": VOID}
    reference: Value = {"apiVersion": "v1", "fieldPath": ASSIGNED_PATH}
    return {"name": name, "valueFrom": {"fieldRef": reference}}


def _placement(pod: AdmittedPod, needs: Requirements, rules: AdmissionRules) -> Iterator[Operation]:
    """Nodes or a scheduler: one of both has the pod go where it may.

    What is reserved early is pinned to its node by name.
    """
    if not rules.by_affinity:
        yield from _scheduler(pod, rules.scheduler_name)
    elif not is_early(pod, needs):
        yield from demanding(pod, hint(pod, rules.wishes))


def _scheduler(pod: AdmittedPod, name: str) -> Iterator[Operation]:
    """A scheduler that the pod names itself stays: it is a door."""
    present = pod.spec.scheduler_name
    if present != name and present in {None, "", DEFAULT_SCHEDULER}:
        yield Operation(Verb.ADD, pointer("spec", "schedulerName"), name)


def _toleration(pod: AdmittedPod) -> Iterator[Operation]:
    present = pod.spec.tolerations or ()
    if any(map(_tolerates, present)):
        return
    entry: Value = {"key": MANAGED_TAINT, "operator": "Exists", "effect": MANAGED_EFFECT}
    path = pointer("spec", "tolerations")
    if present:
        yield Operation(Verb.ADD, path + pointer(END), entry)
    else:
        yield Operation(Verb.ADD, path, [entry])


def _tolerates(toleration: Toleration) -> bool:
    return (
        toleration.operator == "Exists"
        and (toleration.key or MANAGED_TAINT) == MANAGED_TAINT
        and (toleration.effect or MANAGED_EFFECT) == MANAGED_EFFECT
        and toleration.toleration_seconds is None
    )
