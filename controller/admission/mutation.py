"""Mutation.

Holds: json patch, node affinity, node match, hint, early, visible devices, mutation.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, Protocol

import msgspec

from controller.admission.pod_view import (
    ASSIGNED_PATH,
    DEFAULT_SCHEDULER,
    NVIDIA,
    VOID,
    AdmissionRules,
    AdmittedContainer,
    AdmittedPod,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Supply,
    Toleration,
    Variable,
    VariableSource,
    is_env_pod,
    is_ours,
    supply_of,
    supply_without_request,
    wanted_variables,
)
from controller.fleet.directory import KnownNode, Taint
from controller.ledger.record import (
    PodRef,
    ReservationIds,
    ReservationSubject,
    in_claiming_order,
    is_early_id,
)
from controller.placement.pod import MANAGED_EFFECT, MANAGED_TAINT, ORDINAL_KEYS, device_requests
from controller.placement.requirements import Requirements
from controller.placement.texts import (
    ASSIGNED_UUIDS,
    CDI_ASSIGNMENT,
    CDI_KIND,
    GIVEN_NODE,
    HINT_LABEL_PREFIX,
    LABEL_PREFIXES,
    MAP,
    REQUIREMENT_ANNOTATIONS,
    RESERVATION_ID,
    RESULT_ALIASES,
    RequirementRules,
    RequirementTextError,
)
from gpuwarden.reasons import ReasonCode, Refusal

# --- json patch
# JSON Patch (RFC 6902): the operations that we write, and how they look on the wire. Pure.


class Verb(StrEnum):
    """`op`."""

    ADD = "add"
    """A new member or element; `-` appends; an object's member that exists is replaced."""
    REPLACE = "replace"
    REMOVE = "remove"


Value = str | int | bool | None | list["Value"] | dict[str, "Value"]
"""What can stand in a patch of ours."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `value` is not written for a removal."""

    op: Verb
    path: str
    """A JSON Pointer (RFC 6901)."""
    value: Value = None


END: Final = "-"
"""The place behind an array's last element."""


def pointer(*tokens: str | int) -> str:
    """A JSON Pointer: `~` and `/` inside a token are escaped."""
    return "".join(
        [f"/{token}" if isinstance(token, int) else f"/{_escaped(token)}" for token in tokens]
    )


def _escaped(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")


def encode_patch(operations: Iterable[Operation]) -> bytes:
    """The patch as a JSON array."""
    return msgspec.json.encode([_document(each) for each in operations])


def _document(operation: Operation) -> dict[str, Value]:
    document: dict[str, Value] = {"op": operation.op.value, "path": operation.path}
    if operation.op is not Verb.REMOVE:
        document["value"] = operation.value
    return document


# --- node affinity
# Demands of ours on a pod's node, joined to the affinity that the pod has, as a patch. Pure.
#
# Terms of a node selector are alternatives (core/v1 NodeSelector), so a demand has to stand in
# each of them. A term without any requirement matches no node and is left as it is: with ours in
# it, it would match some.

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_EXPRESSIONS, _FIELDS = "matchExpressions", "matchFields"


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """A label of the node, or a field of it, has one of `values`."""

    key: str
    values: tuple[str, ...]
    is_field: bool = False
    """A field; `metadata.name` with one value is all that the API knows."""


def on_node(name: str) -> NodeDemand:
    """The node of this name and no other, whatever labels it has."""
    return NodeDemand("metadata.name", (name,), is_field=True)


def demanding(pod: AdmittedPod, demand: NodeDemand) -> Iterator[Operation]:
    """What is missing; nothing where each term has the demand already."""
    made = _requirement(demand)
    fresh: dict[str, Value] = {"nodeSelectorTerms": [{_list_of(demand): [made]}]}
    affinity = pod.spec.affinity
    if affinity is None:
        value: Value = {"nodeAffinity": {_REQUIRED: fresh}}
        yield Operation(Verb.ADD, pointer("spec", "affinity"), value)
        return
    at = pointer("spec", "affinity", "nodeAffinity")
    if affinity.node_affinity is None:
        yield Operation(Verb.ADD, at, {_REQUIRED: fresh})
        return
    at += pointer(_REQUIRED)
    required = affinity.node_affinity.required
    if required is None or not required.node_selector_terms:
        yield Operation(Verb.ADD, at, fresh)
        return
    for index, term in enumerate(required.node_selector_terms):
        yield from _in_term(at + pointer("nodeSelectorTerms", index), term, demand)


def _in_term(at: str, term: NodeSelectorTerm, demand: NodeDemand) -> Iterator[Operation]:
    if not (term.match_expressions or term.match_fields):
        return
    there = (term.match_fields if demand.is_field else term.match_expressions) or ()
    if any(_says(each, demand) for each in there):
        return
    path, made = at + pointer(_list_of(demand)), _requirement(demand)
    if there:
        yield Operation(Verb.ADD, path + pointer(END), made)
    else:
        yield Operation(Verb.ADD, path, [made])


def _says(present: NodeSelectorRequirement, demand: NodeDemand) -> bool:
    found = (present.key, present.operator, present.values or ())
    return found == (demand.key, "In", demand.values)


def _list_of(demand: NodeDemand) -> str:
    return _FIELDS if demand.is_field else _EXPRESSIONS


def _requirement(demand: NodeDemand) -> Value:
    return {"key": demand.key, "operator": "In", "values": list(demand.values)}


# --- node match
# Whether a pod may go to a node by selector, required affinity and taints. Pure.
#
# As kube-scheduler and kubelet read them: core/v1 PodSpec.nodeSelector, NodeSelector, Toleration; a
# term or a requirement that cannot be read matches nothing. A cordoned node has a taint, and so has
# one that is not ready. Our own taint is no obstacle to a pod that admission gives its toleration.

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class OurToleration(Enum):
    """What becomes of the toleration of our own taint, which a new pod need not have yet."""

    INJECTED = auto()
    """The namespace is enforced: admission adds it."""
    REFUSED = auto()
    """The installation protects its nodes, and the namespace is not enforced: who brings it is
    refused (deploy/policy/protection), after all webhooks."""
    AS_GIVEN = auto()
    """It counts where the pod has it."""


def our_toleration(*, enforced: bool, protected: bool) -> OurToleration:
    """For a namespace that is `enforced` or not; `protected` is the setting of the cluster."""
    if enforced:
        return OurToleration.INJECTED
    return OurToleration.REFUSED if protected else OurToleration.AS_GIVEN


def suits(pod: AdmittedPod, name: str, node: KnownNode, ours: OurToleration) -> bool:
    """Whether a scheduler may send the pod to the node."""
    return all(_is_tolerated(x, pod, ours) for x in node.taints) and _matches(pod, name, node)


def is_kept(pod: AdmittedPod, name: str, node: KnownNode, ours: OurToleration) -> bool:
    """Whether kubelet keeps the pod that names the node: only what evicts counts of its taints."""
    evicting = (x for x in node.taints if x.effect == "NoExecute")
    return all(_is_tolerated(x, pod, ours) for x in evicting) and _matches(pod, name, node)


def _matches(pod: AdmittedPod, name: str, node: KnownNode) -> bool:
    labels = node.labels
    wanted = pod.spec.node_selector or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    required = None if node_affinity is None else node_affinity.required
    if required is None:
        return True
    return any(_term(each, name, labels) for each in required.node_selector_terms or ())


def _is_tolerated(taint: Taint, pod: AdmittedPod, ours: OurToleration) -> bool:
    if taint.key == MANAGED_TAINT:
        if ours is OurToleration.REFUSED:
            return False
        if ours is OurToleration.INJECTED and taint.effect == MANAGED_EFFECT:
            return True
    return any(_tolerates_of_node_match(each, taint) for each in pod.spec.tolerations or ())


def _tolerates_of_node_match(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in {None, "", taint.effect}:
        return False
    if not toleration.key:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    is_equal = (toleration.value or "") == taint.value
    return toleration.operator in {None, "", "Equal"} and is_equal


def _term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not (expressions or fields):
        return False
    return all(_holds(each, labels) for each in expressions) and all(
        each.key == "metadata.name" and _holds(each, {"metadata.name": name}) for each in fields
    )


def _holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement.operator, value, values)
    return False


def _compares(operator: str, value: str | None, values: tuple[str, ...]) -> bool:
    if value is None or len(values) != 1:
        return False
    if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(values[0])):
        return False
    own, bound = int(value), int(values[0])
    return own > bound if operator == "Gt" else own < bound


# --- hint
# The label by which a scheduler that does not ask us finds nodes: one per requirement. Pure.
#
# Pods that ask for the same things share a label; nodes have it while such a pod would pass
# there (`kube.node_hints`). Nobody trusts it: the binding webhook judges every binding. It stands
# under
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
    """The label that a pod waits for; None of a pod that was not told of one.

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


# --- early
# Reservation at a pod's creation: who gets one, and what a pod then says of it. Pure.
#
# A pod that asks for it, or that names its node itself and so never meets the binding webhook, has
# its GPUs before it exists. What the mutating webhook writes about them is known again by the
# reservation id: every other pod that brings such keys is refused. Which GPUs, and whether the
# ledger still has them for this pod, is the business of whoever keeps the ledger.

DRY_RUN_ID: Final = "dry-run"
"""In the place of a reservation id: an id of ours stands for a claim, and there is none."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a pod brings of a reservation that was made for it at its creation."""

    reservation: str
    namespace: str
    node: str
    gpus: tuple[str, ...]
    """In the order in which the container sees them."""


@dataclass(frozen=True, slots=True)
class EarlyAsk:
    """A pod that is to be reserved for; it may not have a name yet, and has no UID."""

    request: str
    """UID of the API server's request: the same again gets the same."""
    namespace: str
    pod: AdmittedPod
    needs: Requirements
    granted: Granted | None
    """Where the pod was here before (reinvocation)."""
    enforced: bool
    """Whether its namespace is: others get no toleration of managed nodes."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Given:
    """What is reserved, and the annotations that say so."""

    granted: Granted
    annotations: Mapping[str, str]


class EarlyReservations(Protocol):
    """Whoever keeps the ledger."""

    @property
    def ids(self) -> ReservationIds | None:
        """Knows our reservation ids; None where nothing can be reserved."""

    async def reserve(self, ask: EarlyAsk) -> Given | Refusal:
        """Reserve GPUs for a pod that is not there yet; of a dry run nothing stays."""

    async def take(self, granted: Granted, pod: PodRef) -> Refusal | None:
        """Make a reservation this very pod's, once and for all; the pod has its UID now."""


def is_early(pod: AdmittedPod, needs: Requirements) -> bool:
    """Whether the pod's GPUs are reserved at its creation: where nobody but us gives them."""
    return is_env_pod(needs) and (needs.reserve is not None or bool(pod.spec.node_name))


def unreservable(needs: Requirements) -> Refusal | None:
    """Against a pod that wants GPUs reserved early which kubelet or a driver chooses."""
    given_by_others = bool(needs.requests) or needs.claims
    if needs.reserve is None or needs.accepts is not None or not given_by_others:
        return None
    text = "whoever gives the GPUs that containers request chooses them later: nothing to reserve"
    return Refusal(ReasonCode.EXACT_UNAVAILABLE, text)


def granted_early(
    pod: AdmittedPod, namespace: str, ids: ReservationIds | None, *, dry_run: bool = False
) -> Granted | None:
    """What the pod says, if one of our keys made its id for just that; None for all else.

    `dry_run`: of the request; only then the stand-in for an id counts.
    """
    said = pod.annotations
    reservation, node = said.get(RESERVATION_ID, ""), said.get(GIVEN_NODE, "")
    gpus = tuple(said.get(ASSIGNED_UUIDS, "").split(","))
    found = Granted(reservation, namespace, node, gpus)
    if any(said.get(key, text) != text for key, text in _copies(found).items()):
        return None
    is_ours = dry_run and reservation == DRY_RUN_ID
    return found if is_ours or _is_authentic(found, ids) else None


def early_patch(pod: AdmittedPod, given: Given) -> tuple[Operation, ...]:
    """What is missing in the pod: annotations, and a demand for the node where it names none."""
    place = pointer("metadata", "annotations")
    lacking = {k: x for k, x in given.annotations.items() if pod.annotations.get(k) != x}
    found: list[Operation] = []
    if lacking and not pod.annotations:
        made: Value = dict(sorted(lacking.items()))
        found.append(Operation(Verb.ADD, place, made))
    else:
        found += (Operation(Verb.ADD, place + pointer(k), x) for k, x in sorted(lacking.items()))
    if not pod.spec.node_name:
        found += demanding(pod, on_node(given.granted.node))
    return tuple(found)


def cdi_names(gpus: tuple[str, ...]) -> str:
    """Qualified CDI names, as the annotation of a runtime has them (CDI specification)."""
    return ",".join(f"{CDI_KIND}={uuid}" for uuid in gpus)


def _copies(found: Granted) -> dict[str, str]:
    """What else must say the same, where it is there."""
    own = {
        ASSIGNED_UUIDS: ",".join(found.gpus),
        RESERVATION_ID: found.reservation,
        GIVEN_NODE: found.node,
    }
    twins = {twin: own[key] for twin, key in RESULT_ALIASES.items()}
    return {**twins, CDI_ASSIGNMENT: cdi_names(found.gpus)}


def _is_authentic(found: Granted, ids: ReservationIds | None) -> bool:
    if ids is None or not is_early_id(found.reservation):
        return False
    subject = ReservationSubject(found.namespace, found.node, in_claiming_order(found.gpus))
    return ids.is_authentic(found.reservation, subject)


# --- visible devices
# Variables by which the NVIDIA container toolkit chooses what a container sees. Pure.
#
# Source: nvidia-container-toolkit, internal/config/image. A container's own environment,
# `envFrom` included, is put after the device plugin's, so it wins.

DEVICE_VARIABLES: Final = (
    NVIDIA,
    "DOCKER_RESOURCE_GPU",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_NVSWITCH",
)
"""`DOCKER_RESOURCE_GPU` is the usual name of the toolkit's configurable one (swarm-resource)."""
_HARMLESS: Final = frozenset({None, "", "none", "void"})
"""Values with which no device is given; a later `$(…)` is in none of them."""


def opens_devices(entry: Variable) -> bool:
    """Whether the entry could give its container devices; a value from elsewhere could."""
    return entry.name in DEVICE_VARIABLES and (
        entry.value_from is not None or entry.value not in _HARMLESS
    )


def could_open_devices(source: VariableSource) -> bool:
    """Whether some key of the source, behind its prefix, is one of the variables."""
    prefix = source.prefix or ""
    return any(name.startswith(prefix) for name in DEVICE_VARIABLES)


# --- mutation
# What the mutating webhook adds to a pod, as the smallest patch. Pure.
#
# Idempotent: of a pod that has it all the patch is empty, so the same function says whether a
# pod was injected. Nothing but variables, the scheduler's name or the node affinity, and one
# toleration is touched.

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
    if needs.managed:
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
        yield from demanding(pod, hint(pod, rules.requirements))


def _scheduler(pod: AdmittedPod, name: str) -> Iterator[Operation]:
    """A scheduler that the pod names itself stays: it is a bypass."""
    present = pod.spec.scheduler_name
    if present != name and present in {None, "", DEFAULT_SCHEDULER}:
        yield Operation(Verb.ADD, pointer("spec", "schedulerName"), name)


def _toleration(pod: AdmittedPod) -> Iterator[Operation]:
    present = pod.spec.tolerations or ()
    if any(map(_tolerates_of_mutation, present)):
        return
    entry: Value = {"key": MANAGED_TAINT, "operator": "Exists", "effect": MANAGED_EFFECT}
    path = pointer("spec", "tolerations")
    if present:
        yield Operation(Verb.ADD, path + pointer(END), entry)
    else:
        yield Operation(Verb.ADD, path, [entry])


def _tolerates_of_mutation(toleration: Toleration) -> bool:
    return (
        toleration.operator == "Exists"
        and (toleration.key or MANAGED_TAINT) == MANAGED_TAINT
        and (toleration.effect or MANAGED_EFFECT) == MANAGED_EFFECT
        and toleration.toleration_seconds is None
    )
