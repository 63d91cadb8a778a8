"""What is against a pod, and what it lacks: the whole of pod admission as values.

Two questions, asked by the pod webhooks and by the binding webhook: `mutated` says what to add or
why it cannot be said, `validated` says what is against the pod as it will be stored. In order:

1. size: more parts than are judged         REQ_INVALID
2. keys that only gpuwarden writes          BYPASS_ANNOTATION
3. requirements that cannot be read, or leave no room for the answer
                                            REQ_INVALID, EXACT_UNAVAILABLE
4. the bypass checks (`bypass_checks`)      BYPASS_*
5. what the mutating webhook has to add     BYPASS_UNINJECTED
6. no node that the policy declares will ever serve the pod (`servable`)
                                            CLASS_UNKNOWN, REQ_INVALID, NODE_MODE,
                                            EXACT_UNAVAILABLE
7. the early reservation (`pod_webhooks`)   codes of the ledger and of /filter

A pod that asks for nothing, outside enforced namespaces, is not looked at beyond step 2.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from controller.admission.bypass_checks import BYPASS_CHECKS, Case, ephemeral, results
from controller.admission.early_reservation import Granted, is_early, unreservable
from controller.admission.mutation import (
    ephemeral_injection,
    injection,
    is_beyond_repair,
    replacements,
)
from controller.admission.pod import AdmittedContainer, AdmittedPod
from controller.admission.review import Operation
from controller.admission.rules import AdmissionRules
from controller.admission.servable import no_gpu_warning, unservable
from controller.placement.keys import (
    CDI_ASSIGNMENT,
    RESULT_ANNOTATIONS,
    SEED_RESULT_ANNOTATIONS,
    reserved_keys,
)
from controller.placement.requirements import Requirements, RequirementsInvalid, parse_requirements
from controller.policy import Policy
from gpuwarden.reasons import ReasonCode, Refusal

# --- room for annotations
# The API server takes 256 KiB of annotations, and the policies read some 1000 keys of a pod
# (`deploy/policy/keys.yaml`). A fuller pod could not be changed any more, so what is reserved for
# it would stay reserved while it waits. What gpuwarden has written already does not count.

MOST_KEYS: Final = 900
MOST_BYTES: Final = 192 << 10
_WRITTEN: Final = RESULT_ANNOTATIONS | SEED_RESULT_ANNOTATIONS | {CDI_ASSIGNMENT}
"""A pod that brings them itself is refused for that."""


def overfull(pod: AdmittedPod) -> Refusal | None:
    """Why there is no room."""
    annotations = {key: x for key, x in pod.annotations.items() if key not in _WRITTEN}
    keys = len(annotations) + len(pod.labels)
    if keys > MOST_KEYS:
        text = f"{keys} annotations and labels, expected at most {MOST_KEYS} of a managed pod"
        return Refusal(ReasonCode.REQ_INVALID, text)
    size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    if size > MOST_BYTES:
        text = f"{size} bytes of annotations, expected at most {MOST_BYTES} of a managed pod"
        return Refusal(ReasonCode.REQ_INVALID, text)
    return None


# --- size
# A request holds megabytes: one pod's keys or containers by the ten thousand would delay everybody
# else's pods and Bindings for seconds.

MOST_PARTS: Final = 10_000
"""A pod with more of them is not judged: it is refused where it is managed or may be."""
CONTAINER_PARTS: Final = 10
"""What a container counts for, without what is in it."""
_WRITTEN_IN_CONTAINER: Final = 2
_WRITTEN_IN_POD: Final = 16
"""Annotations of gpuwarden and a toleration are fewer."""


def parts(pod: AdmittedPod) -> int:
    """Annotations, labels, volumes, tolerations, claims, owners, containers and what is in them."""
    spec = pod.spec
    containers = (*pod.all_containers(), *(spec.ephemeral_containers or ()))
    lists = (
        spec.volumes,
        spec.tolerations,
        spec.resource_claims,
        pod.metadata.owner_references,
    )
    return (
        len(pod.annotations)
        + len(pod.labels)
        + sum(len(each) for each in lists if each is not None)
        + sum(map(_parts_of, containers))
    )


def has_room(pod: AdmittedPod) -> bool:
    """Whether a new pod will still be judged once everything is added to it."""
    written = _WRITTEN_IN_POD + _WRITTEN_IN_CONTAINER * len(pod.all_containers())
    return parts(pod) + written <= MOST_PARTS


def _parts_of(container: AdmittedContainer) -> int:
    resources, context = container.resources, container.security_context
    added = None if context is None or context.capabilities is None else context.capabilities.add
    sized = (
        container.env,
        container.env_from,
        container.volume_mounts,
        added,
        None if resources is None else resources.requests,
        None if resources is None else resources.limits,
    )
    return CONTAINER_PARTS + sum(len(each) for each in sized if each is not None)


# --- judgement


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer to a webhook. Without a refusal the pod is admitted."""

    concerned: bool
    """Whether the pod concerns gpuwarden; where not, it is not recorded either."""
    refusals: tuple[Refusal, ...] = ()
    patch: tuple[Operation, ...] = ()
    needs: Requirements | RequirementsInvalid | None = None
    """What the pod asks for; None where that was not read."""
    early: Requirements | None = None
    """The same, where it is to be reserved at the pod's creation."""
    warnings: tuple[str, ...] = ()
    """For whoever creates the pod, also where it is admitted."""


UNCONCERNED = Judged(concerned=False)
MOST_OF_A_CHECK: Final = 8
"""Refusals for one reason: each is reported and recorded, and one pod can hold ten thousand."""
_NONE_KNOWN: Final = frozenset[str]()
"""No ephemeral container was judged before."""


def mutated(
    pod: AdmittedPod,
    rules: AdmissionRules,
    *,
    enforced: bool,
    granted: Granted | None = None,
    policy: Policy | None = None,
) -> Judged:
    """What a new pod lacks; refused are requirements that cannot be read, and reserved keys.

    Of a pod that is to be reserved for also all that `validated` would say to it then: no pod that
    is refused afterwards gets a GPU for the time until that is noticed.
    `granted`: the reservation that it brings, if it is authentic (`granted_early`). `policy`: as in
    `unservable`.
    """
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = parse_requirements(pod, rules.requirements, enforced=enforced)
    early = _early(pod, needs)
    refusals = (*results(pod, None if early is None else granted), *_unreadable(pod, needs))
    if refusals or isinstance(needs, RequirementsInvalid):
        return Judged(concerned=True, refusals=refusals)
    if not (needs.managed or enforced):
        return UNCONCERNED
    if early is not None:
        to_be_reserved = granted is None
        case = Case(pod, needs, rules, enforced, granted, to_be_reserved=to_be_reserved)
        against = (*_violations(case), *_never_injected(case), *_never_served(case, policy))
        if against:
            return Judged(concerned=True, refusals=against)
    patch = injection(pod, needs, rules, enforced=enforced, reserved=early is not None)
    return Judged(concerned=True, patch=patch, early=early, warnings=replacements(patch, pod))


def validated(
    pod: AdmittedPod,
    rules: AdmissionRules,
    *,
    enforced: bool,
    injected: bool = True,
    granted: Granted | None = None,
    policy: Policy | None = None,
) -> Judged:
    """What is against a new pod, or a stored one that is to be bound.

    A stored one may have got ephemeral containers before its namespace was enforced.
    `injected`: whether it must have what the mutating webhook adds; not in report-only mode.
    `granted` and `policy`: as in `mutated`.
    """
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = parse_requirements(pod, rules.requirements, enforced=enforced)
    early = _early(pod, needs)
    granted = None if early is None else granted
    refusals = [*results(pod, granted), *_unreadable(pod, needs)]
    if isinstance(needs, RequirementsInvalid):
        return Judged(concerned=True, refusals=tuple(refusals), needs=needs)
    concerned = needs.managed or enforced
    warnings: tuple[str, ...] = ()
    if concerned:
        case = Case(pod, needs, rules, enforced, granted)
        refusals += _violations(case)
        if injected:
            reserved = granted is not None or bool(early and pod.spec.node_name)
            missing = injection(pod, needs, rules, enforced=enforced, reserved=reserved)
            late = ephemeral_injection(pod, needs, known=_NONE_KNOWN)
            refusals += _uninjected((*missing, *late))
        refusals += _never_served(case, policy)
        warnings = _warnings(case, policy)
    found = tuple(refusals)
    return Judged(concerned or bool(found), found, needs=needs, early=early, warnings=warnings)


def rehearsed(
    pod: AdmittedPod,
    rules: AdmissionRules,
    *,
    enforced: bool,
    granted: Granted | None = None,
    policy: Policy | None = None,
) -> Judged:
    """What both webhooks come to about a new pod, for whoever asks before it exists.

    What the patch puts right is no violation. Parameters as in `mutated`.
    """
    needs = parse_requirements(pod, rules.requirements, enforced=enforced)
    first = mutated(pod, rules, enforced=enforced, granted=granted, policy=policy)
    is_decided = first.refusals or not first.concerned or first.early is not None
    if is_decided or isinstance(needs, RequirementsInvalid):
        return first
    case = Case(pod, needs, rules, enforced)
    refusals = (*_violations(case), *_never_injected(case), *_never_served(case, policy))
    warnings = () if refusals else (*first.warnings, *_warnings(case, policy))
    return replace(first, refusals=refusals, warnings=warnings)


def mutated_ephemeral(
    pod: AdmittedPod, known: frozenset[str], rules: AdmissionRules, *, enforced: bool
) -> Judged:
    """What new ephemeral containers lack; `known` are the names of those that were there."""
    if parts(pod) > MOST_PARTS:
        return _too_large(pod, rules, enforced=enforced)
    needs = _needs_of_stored(pod, rules, enforced=enforced)
    if not (needs.managed or enforced):
        return UNCONCERNED
    patch = ephemeral_injection(pod, needs, known=known)
    return Judged(concerned=True, patch=patch, warnings=replacements(patch, pod))


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
    if not (needs.managed or enforced):
        return UNCONCERNED
    found = ephemeral(Case(pod, needs, rules, enforced), known)
    refusals = list(islice(found, MOST_OF_A_CHECK))
    if injected:
        patch = ephemeral_injection(pod, needs, known=known)
        refusals += _uninjected(patch)
    return Judged(concerned=True, refusals=tuple(refusals))


def _violations(case: Case) -> Iterator[Refusal]:
    """All bypass checks of a pod as a whole."""
    for bypass in BYPASS_CHECKS:
        yield from islice(bypass(case), MOST_OF_A_CHECK)
    yield from islice(ephemeral(case, _NONE_KNOWN), MOST_OF_A_CHECK)


def _never_injected(case: Case) -> Iterator[Refusal]:
    """What the validating webhook will say to a pod that one patch does not put right."""
    if is_beyond_repair(case.pod, case.needs, case.rules):
        yield Refusal(
            ReasonCode.BYPASS_UNINJECTED, "more is wrong with it than one patch puts right"
        )
    if case.to_be_reserved and not has_room(case.pod):
        text = f"it leaves no room for what is written into it, expected {MOST_PARTS} parts in all"
        yield Refusal(ReasonCode.REQ_INVALID, text)


def _never_served(case: Case, policy: Policy | None) -> Iterator[Refusal]:
    found = unservable(case.needs, policy, case.rules.resources)
    if found is not None:
        yield found


def _warnings(case: Case, policy: Policy | None) -> tuple[str, ...]:
    found = no_gpu_warning(case.needs, policy, case.rules.resources)
    return () if found is None else (found,)


def _too_large(pod: AdmittedPod, rules: AdmissionRules, *, enforced: bool) -> Judged:
    """Its requirements are not read: that it has a reserved key is enough."""
    keys = reserved_keys(rules.requirements)
    if not (enforced or any(map(keys.is_ours, (*pod.annotations, *pod.labels)))):
        return UNCONCERNED
    text = f"keys, containers and what is in them: too many, expected at most {MOST_PARTS} in all"
    return Judged(concerned=True, refusals=(Refusal(ReasonCode.REQ_INVALID, text),))


def _needs_of_stored(pod: AdmittedPod, rules: AdmissionRules, *, enforced: bool) -> Requirements:
    """Of a pod that is there: requirements that cannot be read give it nothing, and guard it."""
    needs = parse_requirements(pod, rules.requirements, enforced=enforced)
    return Requirements(managed=True) if isinstance(needs, RequirementsInvalid) else needs


def _early(pod: AdmittedPod, needs: Requirements | RequirementsInvalid) -> Requirements | None:
    if isinstance(needs, RequirementsInvalid) or not is_early(pod, needs):
        return None
    return needs


def _unreadable(pod: AdmittedPod, needs: Requirements | RequirementsInvalid) -> Iterator[Refusal]:
    if isinstance(needs, RequirementsInvalid):
        yield Refusal(ReasonCode.REQ_INVALID, needs.detail())
    elif needs.managed:
        found = (unreservable(needs), overfull(pod))
        yield from (x for x in found if x is not None)


def _uninjected(patch: Iterable[Operation]) -> Iterator[Refusal]:
    """One refusal, however much is missing."""
    for operation in patch:
        text = f"{operation.path} is not as the mutating webhook makes it"
        yield Refusal(ReasonCode.BYPASS_UNINJECTED, text)
        return
