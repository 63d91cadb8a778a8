"""What is against a pod, and what it lacks: the whole of pod admission as values. Pure.

Two questions, asked by two webhooks and by the gate: `mutated` says what to add or why it
cannot be said, `validated` says what is against the pod as it will be stored.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from controller.admission.doors.annotations import results
from controller.admission.doors.case import Case
from controller.admission.doors.ephemeral import ephemeral
from controller.admission.doors.every import DOORS
from controller.admission.early import Granted, is_early, unreservable
from controller.admission.json_patch import Operation
from controller.admission.mutation import ephemeral_injection, injection, is_beyond_repair
from controller.admission.pod_view import AdmittedPod
from controller.admission.room import overfull
from controller.admission.rules import AdmissionRules
from controller.admission.size import MOST_PARTS, has_room, parts
from controller.admission.unservable import unservable
from controller.fleet.view import NodeMode
from controller.scheduling.requirements import (
    Requirements,
    RequirementsInvalid,
    parse_requirements,
)
from controller.scheduling.reserved_keys import reserved_keys
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer to a webhook. Nothing against a pod means that it is let in."""

    concerned: bool
    """Whether the pod is any business of ours; where not, it is not noted either."""
    refusals: tuple[Refusal, ...] = ()
    patch: tuple[Operation, ...] = ()
    early: Requirements | None = None
    """What is to be reserved at the pod's creation, where something is."""


UNCONCERNED = Judged(concerned=False)
MOST_OF_A_DOOR: Final = 8
"""Refusals for the same reason: each is told and recorded, and one pod can hold ten thousand."""
_NONE_KNOWN: Final = frozenset[str]()
"""No ephemeral container was judged before."""


def mutated(
    pod: AdmittedPod, rules: AdmissionRules, *, enforced: bool, granted: Granted | None = None
) -> Judged:
    """What a new pod lacks; refused are wishes that cannot be read and keys of ours.

    Of a pod that is to be reserved for also all that `validated` would say to it then: no pod that
    is refused afterwards gets a GPU for the time until that is noticed.
    `granted`: the reservation that it brings, if that is ours (`granted_early`).
    """
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = parse_requirements(pod, rules.wishes, enforced=enforced)
    early = _early(pod, needs)
    refusals = (*results(pod, None if early is None else granted), *_unreadable(pod, needs))
    if refusals or isinstance(needs, RequirementsInvalid):
        return Judged(concerned=True, refusals=refusals)
    if not (needs.guarded or enforced):
        return UNCONCERNED
    if early is not None:
        to_be_reserved = granted is None
        case = Case(pod, needs, rules, enforced, granted, to_be_reserved=to_be_reserved)
        against = (*_open_doors(case), *_never_injected(case))
        if against:
            return Judged(concerned=True, refusals=against)
    patch = injection(pod, needs, rules, enforced=enforced)
    return Judged(concerned=True, patch=patch, early=early)


def validated(
    pod: AdmittedPod,
    rules: AdmissionRules,
    *,
    enforced: bool,
    injected: bool = True,
    granted: Granted | None = None,
    modes: Collection[NodeMode] | None = None,
) -> Judged:
    """What is against a new pod, or a stored one that is to be bound.

    A stored one may have got ephemeral containers before its namespace was enforced.
    `injected`: whether it must have what the mutating webhook adds; not in report-only mode.
    `granted`: as in `mutated`. `modes`: as in `unservable`.
    """
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = parse_requirements(pod, rules.wishes, enforced=enforced)
    early = _early(pod, needs)
    granted = None if early is None else granted
    refusals = [*results(pod, granted), *_unreadable(pod, needs)]
    if isinstance(needs, RequirementsInvalid):
        return Judged(concerned=True, refusals=tuple(refusals))
    concerned = needs.guarded or enforced
    if concerned:
        case = Case(pod, needs, rules, enforced, granted)
        refusals += _open_doors(case)
        if injected:
            missing = injection(pod, needs, rules, enforced=enforced)
            late = ephemeral_injection(pod, needs, enforced=enforced, known=_NONE_KNOWN)
            refusals += _uninjected((*missing, *late))
        refusals += (x for x in (unservable(needs, modes),) if x is not None)
    return Judged(concerned or bool(refusals), tuple(refusals), early=early)


def mutated_ephemeral(
    pod: AdmittedPod, known: frozenset[str], rules: AdmissionRules, *, enforced: bool
) -> Judged:
    """What new ephemeral containers lack; `known` are the names of those that were there."""
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = _needs_of_stored(pod, rules, enforced=enforced)
    if not (needs.guarded or enforced):
        return UNCONCERNED
    patch = ephemeral_injection(pod, needs, enforced=enforced, known=known)
    return Judged(concerned=True, patch=patch)


def validated_ephemeral(
    pod: AdmittedPod,
    known: frozenset[str],
    rules: AdmissionRules,
    *,
    enforced: bool,
    injected: bool = True,
) -> Judged:
    """What is against new ephemeral containers."""
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = _needs_of_stored(pod, rules, enforced=enforced)
    if not (needs.guarded or enforced):
        return UNCONCERNED
    found = ephemeral(Case(pod, needs, rules, enforced), known)
    refusals = list(islice(found, MOST_OF_A_DOOR))
    if injected:
        patch = ephemeral_injection(pod, needs, enforced=enforced, known=known)
        refusals += _uninjected(patch)
    return Judged(concerned=True, refusals=tuple(refusals))


def _open_doors(case: Case) -> Iterator[Refusal]:
    """All doors of a pod as a whole."""
    for door in DOORS:
        yield from islice(door(case), MOST_OF_A_DOOR)
    yield from islice(ephemeral(case, _NONE_KNOWN), MOST_OF_A_DOOR)


def _never_injected(case: Case) -> Iterator[Refusal]:
    """What the validating webhook will say to a pod that one patch does not put right."""
    if is_beyond_repair(case.pod, case.needs, case.rules, enforced=case.enforced):
        yield Refusal(ReasonCode.DOOR_UNINJECTED, "more is wrong with it than one patch puts right")
    if case.to_be_reserved and not has_room(case.pod):
        text = f"it leaves no room for what is written into it, expected {MOST_PARTS} parts in all"
        yield Refusal(ReasonCode.REQ_INVALID, text)


def _too_large(pod: AdmittedPod, rules: AdmissionRules, *, enforced: bool) -> Judged:
    """Not even its wishes are read: that it has a key of ours is enough."""
    keys = reserved_keys(rules.wishes)
    if not (enforced or any(map(keys.is_ours, (*pod.annotations, *pod.labels)))):
        return UNCONCERNED
    text = f"keys, containers and what is in them: too many, expected at most {MOST_PARTS} in all"
    return Judged(concerned=True, refusals=(Refusal(ReasonCode.REQ_INVALID, text),))


def _needs_of_stored(pod: AdmittedPod, rules: AdmissionRules, *, enforced: bool) -> Requirements:
    """Of a pod that is there: wishes that cannot be read give it nothing, and guard it."""
    needs = parse_requirements(pod, rules.wishes, enforced=enforced)
    return Requirements(guarded=True) if isinstance(needs, RequirementsInvalid) else needs


def _early(pod: AdmittedPod, needs: Requirements | RequirementsInvalid) -> Requirements | None:
    if isinstance(needs, RequirementsInvalid) or not is_early(pod, needs):
        return None
    return needs


def _unreadable(pod: AdmittedPod, needs: Requirements | RequirementsInvalid) -> Iterator[Refusal]:
    if isinstance(needs, RequirementsInvalid):
        yield Refusal(ReasonCode.REQ_INVALID, needs.detail())
    elif needs.guarded:
        found = (unreservable(needs), overfull(pod))
        yield from (x for x in found if x is not None)


def _uninjected(patch: Iterable[Operation]) -> Iterator[Refusal]:
    """One refusal, however much is missing."""
    for operation in patch:
        text = f"{operation.path} is not as the mutating webhook makes it"
        yield Refusal(ReasonCode.DOOR_UNINJECTED, text)
        return
