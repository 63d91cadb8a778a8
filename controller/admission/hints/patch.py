"""What hints add to a pod, or to the template of a Job.

Priority, preferred node affinity, one toleration, preferred anti-affinity, the label that it goes
by, and annotations that say what was decided. Nothing required, and nothing in the place of what
the pod has: a hint that meets the pod's own word is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.admission.hints.candidates import GPU_TAINT, tolerates_gpus
from controller.admission.hints.request import (
    JOB_TYPE_LABEL,
    TIMESTAMP,
    Workload,
    is_label_value,
)
from controller.admission.hints.score import Score
from controller.admission.review import END, Operation, Value, Verb, pointer
from controller.placement.gpu_type import chosen_text
from controller.placement.keys import CHOSEN_GPU, CHOSEN_GPUS

PRIORITY_SCORE: Final = "scheduler.radix.ai/priority-score"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_HOSTNAME: Final = "kubernetes.io/hostname"
_WEIGHT: Final = 100


class LeftOut(StrEnum):
    """Why one hint of several is not in the patch."""

    PRIORITY_KEPT = "priority_kept"
    """The pod names a priority class of its own."""
    PRIORITY_CLASS_MISSING = "priority_class_missing"
    """The cluster has no such class."""
    PREFERENCE_KEPT = "preference_kept"
    """The pod itself prefers nodes by such a label."""
    NO_LABEL = "no_label"
    """No node label of the chosen type agrees with the evidence."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of the cluster."""

    value: int
    preemption_policy: str = "PreemptLowerPriority"
    is_default: bool = False
    """What the API server gives to pods that name none."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """From which score on pods get a priority class."""

    least: float
    priority_class: str


def bucket_of(score: float, buckets: Sequence[Bucket]) -> str | None:
    """The class of the highest bucket that the score reaches; None for none."""
    reached = [x for x in buckets if score >= x.least]
    return max(reached, key=lambda x: x.least).priority_class if reached else None


@dataclass(frozen=True, slots=True)
class Decided:
    """What to say about a pod."""

    score: Score
    job_type: str
    labels: Mapping[str, tuple[str, tuple[str, ...]]]
    """The node label of a type, and its values; absent where none agrees with the evidence."""
    label_keys: tuple[str, ...]
    """All that tell types: a pod that prefers by one of them is not talked over."""
    priority_class: str | None
    epoch_s: int


@dataclass(frozen=True, slots=True)
class Hinting:
    """The patch, and what is not in it."""

    patch: tuple[Operation, ...]
    left_out: tuple[LeftOut, ...] = ()


def hinting(work: Workload, decided: Decided, classes: Mapping[str, PriorityClass]) -> Hinting:
    """The patch of the object; `classes` are those of the cluster."""
    priority = _priority(work, decided.priority_class, classes)
    preference = _preference(work, decided)
    left_out = tuple(x for x in (priority, preference) if isinstance(x, LeftOut))
    terms = None if isinstance(preference, LeftOut) else preference
    patch = (
        *(() if isinstance(priority, LeftOut) else priority),
        *_affinity(work, terms, [_away_from(x) for x in decided.score.avoided]),
        *_toleration(work),
        *_metadata(work, decided),
    )
    return Hinting(patch, left_out)


# --- priority


def _priority(
    work: Workload, name: str | None, classes: Mapping[str, PriorityClass]
) -> tuple[Operation, ...] | LeftOut:
    """Name, number and policy of a pod go together, or the API server refuses it.

    It has written those of its default class before a webhook sees a pod, and reads a template
    only when it makes pods of it.
    """
    if name is None:
        return ()
    given, found = work.pod.spec.priority_class_name, classes.get(name)
    default = next((x for x, each in classes.items() if each.is_default), None)
    is_own = bool(given) and (work.is_template or given != default)
    if is_own or (work.is_template and work.pod.spec.priority is not None):
        return LeftOut.PRIORITY_KEPT
    if found is None:
        return LeftOut.PRIORITY_CLASS_MISSING
    named = Operation(Verb.ADD, _in_spec(work, "priorityClassName"), name)
    if work.is_template:
        return (named,)
    return (
        named,
        Operation(Verb.ADD, _in_spec(work, "priority"), found.value),
        Operation(Verb.ADD, _in_spec(work, "preemptionPolicy"), found.preemption_policy),
    )


# --- affinity


def _preference(work: Workload, decided: Decided) -> list[Value] | LeftOut:
    affinity = work.pod.spec.affinity
    node = None if affinity is None else affinity.node_affinity
    for term in () if node is None else node.preferred or ():
        for each in term.preference.match_expressions or ():
            if each.key in decided.label_keys:
                return LeftOut.PREFERENCE_KEPT
    if decided.score.gpu_type not in decided.labels:
        return LeftOut.NO_LABEL
    return [
        _to_nodes(*decided.labels[name], weight)
        for name, weight in decided.score.weights
        if name in decided.labels
    ]


def _to_nodes(key: str, values: Sequence[str], weight: int) -> Value:
    wanted: Value = {"key": key, "operator": "In", "values": list(values)}
    return {"weight": weight, "preference": {"matchExpressions": [wanted]}}


def _away_from(job_type: str) -> Value:
    wanted: Value = {"key": JOB_TYPE_LABEL, "operator": "In", "values": [job_type]}
    term: Value = {"labelSelector": {"matchExpressions": [wanted]}, "topologyKey": _HOSTNAME}
    return {"weight": _WEIGHT, "podAffinityTerm": term}


def _affinity(
    work: Workload, to_nodes: list[Value] | None, from_pods: list[Value]
) -> Iterator[Operation]:
    found, at = work.pod.spec.affinity, _in_spec(work, "affinity")
    wanted = {"nodeAffinity": to_nodes or [], "podAntiAffinity": from_pods}
    there = {
        "nodeAffinity": None if found is None else found.node_affinity,
        "podAntiAffinity": None if found is None else found.pod_anti_affinity,
    }
    fresh: dict[str, Value] = {x: {_PREFERRED: terms} for x, terms in wanted.items() if terms}
    if found is None:
        if fresh:
            yield Operation(Verb.ADD, at, fresh)
        return
    for name, value in fresh.items():
        present = there[name]
        if present is None:
            yield Operation(Verb.ADD, at + pointer(name), value)
        else:
            yield from _appended(at + pointer(name, _PREFERRED), present.preferred, wanted[name])


def _appended(at: str, present: Sequence[object] | None, added: list[Value]) -> Iterator[Operation]:
    if not present:
        yield Operation(Verb.ADD, at, added)
    else:
        yield from (Operation(Verb.ADD, at + pointer(END), x) for x in added)


# --- toleration


def _toleration(work: Workload) -> Iterator[Operation]:
    """Of the common taint of GPU nodes alone, whatever the scorer says."""
    if tolerates_gpus(work.pod):
        return
    entry: Value = {"key": GPU_TAINT.key, "operator": "Exists", "effect": GPU_TAINT.effect}
    yield from _appended(_in_spec(work, "tolerations"), work.pod.spec.tolerations, [entry])


# --- what it is told by


def _metadata(work: Workload, decided: Decided) -> Iterator[Operation]:
    annotations: dict[str, Value] = {
        PRIORITY_SCORE: decided.score.shown,
        CHOSEN_GPU: decided.score.gpu_type,
        TIMESTAMP: str(decided.epoch_s),
    }
    if decided.score.others:
        annotations[CHOSEN_GPUS] = chosen_text(decided.score.weights)
    labels: dict[str, Value] = {}
    if JOB_TYPE_LABEL not in work.pod.labels and is_label_value(decided.job_type):
        labels[JOB_TYPE_LABEL] = decided.job_type
    at = pointer(*work.at, "metadata")
    if not work.has_metadata:
        yield Operation(Verb.ADD, at, {"annotations": annotations, "labels": labels})
        return
    yield from _entries(at + pointer("annotations"), work.pod.metadata.annotations, annotations)
    if labels:
        yield from _entries(at + pointer("labels"), work.pod.metadata.labels, labels)


def _entries(
    at: str, present: Mapping[str, str] | None, added: dict[str, Value]
) -> Iterator[Operation]:
    if present is not None:
        yield from (Operation(Verb.ADD, at + pointer(key), x) for key, x in added.items())
    else:
        yield Operation(Verb.ADD, at, added)


def _in_spec(work: Workload, field: str) -> str:
    return pointer(*work.at, "spec", field)
