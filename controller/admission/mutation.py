"""What the mutating webhook adds to a pod, as the smallest patch.

Idempotent: of a pod that has it all the patch is empty, so the same function says whether a pod
was injected. Must touch nothing but variables, the scheduler's name or the node affinity, and one
toleration.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from controller.admission.gpu_supply import (
    ASSIGNED_PATH,
    VOID,
    Supply,
    is_ours,
    is_replaced,
    opens_devices,
    supply_of,
    supply_without_request,
    wanted_variables,
)
from controller.admission.node_selection import NodeDemand, demanding
from controller.admission.pod import (
    AdmittedContainer,
    AdmittedPod,
    Toleration,
)
from controller.admission.review import END, Operation, Value, Verb, pointer
from controller.admission.rules import DEFAULT_SCHEDULER, AdmissionRules
from controller.placement.keys import (
    HINT_LABEL_PREFIX,
    LABEL_PREFIXES,
    MANAGED_EFFECT,
    MANAGED_TAINT,
    MAP,
    ORDINAL_KEYS,
    REQUIREMENT_ANNOTATIONS,
    RequirementRules,
)
from controller.placement.pod import device_requests
from controller.placement.requirements import Requirements
from gpuwarden.policy.texts import RequirementTextError, shown

# --- hint labels, for a scheduler that does not ask the extender
# Pods that ask for the same share a label; nodes have it while such a pod would pass there
# (`kube.node_hints`). Nothing trusts it: the binding webhook judges every Binding. It is below
# `node-restriction.kubernetes.io/`, which no kubelet may set on its own node.

FITS: Final = "fits"
_DIGITS: Final = 32


def hint(pod: AdmittedPod, rules: RequirementRules) -> NodeDemand:
    """What the pod's nodes must have.

    The same at each step of admission: a name that the API server has made, after the pod was
    patched, does not count. With a map that is the line's business: it is found by labels then.
    """
    annotations = {
        *REQUIREMENT_ANNOTATIONS,
        *rules.hash_keys,
        *(ORDINAL_KEYS if _is_mapped(pod) else ()),
    }
    document = (
        sorted((key, text) for key, text in pod.annotations.items() if key in annotations),
        sorted((key, text) for key, text in pod.labels.items() if _counts(key, pod)),
        device_requests(pod, rules.managed_resources),
        bool(pod.spec.resource_claims),
        pod.metadata.name if _is_mapped(pod) and not pod.metadata.generate_name else None,
    )
    digest = hashlib.sha256(msgspec.json.encode(document)).hexdigest()[:_DIGITS]
    return NodeDemand(f"{HINT_LABEL_PREFIX}requirement-{digest}", (FITS,))


def hinted(pod: AdmittedPod, rules: RequirementRules) -> str | None:
    """The label that a pod waits for; None of a pod that got none.

    It may name labels of other requirements, too: those are not for it to keep from their pods.
    """
    affinity = pod.spec.affinity
    node = None if affinity is None else affinity.node_affinity
    required = None if node is None else node.required
    for term in () if required is None else required.node_selector_terms or ():
        if any(each.key.startswith(HINT_LABEL_PREFIX) for each in term.match_expressions or ()):
            return _own(pod, rules)
    return None


def _own(pod: AdmittedPod, rules: RequirementRules) -> str | None:
    try:
        return hint(pod, rules).key
    except RequirementTextError:
        return None  # its requirements cannot be read: no node fits


def _counts(label: str, pod: AdmittedPod) -> bool:
    return label.startswith(LABEL_PREFIXES) or (_is_mapped(pod) and label in ORDINAL_KEYS)


def _is_mapped(pod: AdmittedPod) -> bool:
    return MAP in pod.annotations


# --- injection

_EPHEMERAL: Final = "ephemeralContainers"
_MOST_REMOVED: Final = 64
"""Entries of one container: each removal moves all that follow, in the API server. Who has more is
refused for not being injected."""


def injection(
    pod: AdmittedPod,
    needs: Requirements,
    rules: AdmissionRules,
    *,
    enforced: bool,
    reserved: bool,
) -> tuple[Operation, ...]:
    """What is missing in a new pod; `reserved`: its node is known since its creation."""
    found = [
        operation
        for field, containers in pod.lists().items()
        for index, container in enumerate(containers)
        for operation in _variables(
            ("spec", field, index, "env"),
            container,
            supply_of(container, needs, rules.resources),
        )
    ]
    if needs.managed:
        found.extend(_scheduling(pod, rules) if reserved else scheduling(pod, rules))
        if enforced:
            found.extend(_toleration(pod))
    return tuple(found)


def ephemeral_injection(
    pod: AdmittedPod, needs: Requirements, *, known: frozenset[str]
) -> tuple[Operation, ...]:
    """What is missing in the ephemeral containers that are new: not in `known`, by name."""
    supply = supply_without_request(needs)
    return tuple(
        operation
        for index, container in enumerate(pod.spec.ephemeral_containers or ())
        if container.name not in known
        for operation in _variables(("spec", _EPHEMERAL, index, "env"), container, supply)
    )


def replacements(patch: Iterable[Operation], pod: AdmittedPod) -> tuple[str, ...]:
    """For whoever creates the pod: the variables of its own that do not stay."""
    fields = {**pod.lists(), _EPHEMERAL: pod.spec.ephemeral_containers or ()}
    own = {
        pointer("spec", field, index, "env", place): (container.name, entry.name)
        for field, containers in fields.items()
        for index, container in enumerate(containers)
        for place, entry in enumerate(container.env or ())
    }
    lost = dict.fromkeys(own[x.path] for x in patch if x.path in own)
    return tuple(
        f"gpuwarden: container {shown(container)}: {name} is replaced by what the pod is given"
        for container, name in lost
    )


def is_beyond_repair(pod: AdmittedPod, needs: Requirements, rules: AdmissionRules) -> bool:
    """Whether a new pod lacks something even with the patch."""
    if ephemeral_injection(pod, needs, known=frozenset()):
        return True
    return any(
        len(_surplus(container, supply_of(container, needs, rules.resources))) > _MOST_REMOVED
        for container in pod.all_containers()
    )


def _surplus(container: AdmittedContainer, supply: Supply) -> list[int]:
    """Places of repeated entries: all but the first of each wanted name."""
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
        given = [entries[place] for place in places if not is_replaced(entries[place], supply)]
        if supply is Supply.NONE and any(map(opens_devices, given)):
            return  # a bypass: the validating webhook says so
        if not places:
            missing.append(_entry(name, supply))
            continue
        if not is_ours(entries[places[0]], supply):
            yield Operation(Verb.REPLACE, pointer(*at, places[0]), _entry(name, supply))
    for index in _surplus(container, supply)[::-1][:_MOST_REMOVED]:
        yield Operation(Verb.REMOVE, pointer(*at, index))
    if missing and not entries:
        yield Operation(Verb.ADD, pointer(*at), missing)
    else:
        yield from (Operation(Verb.ADD, pointer(*at, END), entry) for entry in missing)


def _entry(name: str, supply: Supply) -> Value:
    if supply is Supply.NONE:
        return {"name": name, "value": VOID}
    reference: Value = {"apiVersion": "v1", "fieldPath": ASSIGNED_PATH}
    return {"name": name, "valueFrom": {"fieldRef": reference}}


def scheduling(pod: AdmittedPod, rules: AdmissionRules) -> tuple[Operation, ...]:
    """Nodes or a scheduler: one of both has the pod go where it may."""
    if rules.by_affinity:
        return tuple(demanding(pod, hint(pod, rules.requirements)))
    return _scheduling(pod, rules)


def _scheduling(pod: AdmittedPod, rules: AdmissionRules) -> tuple[Operation, ...]:
    """What is reserved early is pinned to its node by name."""
    return () if rules.by_affinity else tuple(_scheduler(pod, rules.scheduler_name))


def _scheduler(pod: AdmittedPod, name: str) -> Iterator[Operation]:
    """A scheduler that the pod names itself stays: it is a bypass."""
    present = pod.spec.scheduler_name
    if present != name and present in {None, "", DEFAULT_SCHEDULER}:
        yield Operation(Verb.ADD, pointer("spec", "schedulerName"), name)


def _toleration(pod: AdmittedPod) -> Iterator[Operation]:
    present = pod.spec.tolerations or ()
    if any(map(_is_injected, present)):
        return
    entry: Value = {"key": MANAGED_TAINT, "operator": "Exists", "effect": MANAGED_EFFECT}
    path = pointer("spec", "tolerations")
    if present:
        yield Operation(Verb.ADD, path + pointer(END), entry)
    else:
        yield Operation(Verb.ADD, path, [entry])


def _is_injected(toleration: Toleration) -> bool:
    return (
        toleration.operator == "Exists"
        and (toleration.key or MANAGED_TAINT) == MANAGED_TAINT
        and (toleration.effect or MANAGED_EFFECT) == MANAGED_EFFECT
        and toleration.toleration_seconds is None
    )
