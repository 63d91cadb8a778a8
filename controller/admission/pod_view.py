"""Pod view.

Holds: pod view, supply, rules, registration.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from controller.placement.pod import (
    Container,
    Metadata,
    OwnerReference,
    Pod,
    PodDecodeError,
    PodSpec,
    ResourceClaim,
    Resources,
    requested,
    reserved_keys,
)
from controller.placement.requirements import Requirements
from controller.placement.texts import ASSIGNED_UUIDS, HINT_ANNOTATIONS, RequirementRules

# --- pod view
# A pod as admission sees it: what placement reads, and whatever can open a GPU. Pure.
#
# Unknown fields are skipped: the API server has decoded the object with its own schema and
# written it again, so names and types are the API's, each key once.


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class FieldReference(_Object, frozen=True, gc=False):
    """ObjectFieldSelector."""

    field_path: str = ""
    api_version: str | None = None
    """The API server writes `v1` where it is missing."""


class ValueSource(_Object, frozen=True, gc=False):
    """EnvVarSource; a source of another kind than a field of the pod is not told apart."""

    field_ref: FieldReference | None = None


class Variable(_Object, frozen=True, gc=False):
    """EnvVar."""

    name: str = ""
    value: str | None = None
    value_from: ValueSource | None = None


class VariableSource(_Object, frozen=True, gc=False):
    """EnvFromSource: a whole ConfigMap or Secret, its keys behind `prefix`."""

    prefix: str | None = None


class Capabilities(_Object, frozen=True, gc=False):
    """Capabilities."""

    add: tuple[str, ...] | None = None


class SecurityContext(_Object, frozen=True, gc=False):
    """SecurityContext of a container."""

    privileged: bool | None = None
    capabilities: Capabilities | None = None


class VolumeMount(_Object, frozen=True, gc=False):
    """VolumeMount."""

    mount_path: str = ""


class ContainerResources(Resources, frozen=True, gc=False):
    """ResourceRequirements with the claims that the container uses."""

    claims: tuple[ResourceClaim, ...] | None = None


class AdmittedContainer(Container, frozen=True, gc=False):
    """A container, an init container or an ephemeral one."""

    resources: ContainerResources | None = None
    env: tuple[Variable, ...] | None = None
    env_from: tuple[VariableSource, ...] | None = None
    security_context: SecurityContext | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None


class HostPath(_Object, frozen=True, gc=False):
    """HostPathVolumeSource."""

    path: str = ""


class Volume(_Object, frozen=True, gc=False):
    """Volume."""

    name: str = ""
    host_path: HostPath | None = None


class Toleration(_Object, frozen=True, gc=False):
    """Toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class NodeSelectorRequirement(_Object, frozen=True, gc=False):
    """NodeSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_Object, frozen=True, gc=False):
    """NodeSelectorTerm: all of its requirements hold; one without any matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(_Object, frozen=True, gc=False):
    """NodeSelector: one of its terms holds."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(_Object, frozen=True, gc=False):
    """NodeAffinity; what is only preferred is not read."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Object, frozen=True, gc=False):
    """Affinity, to nodes alone."""

    node_affinity: NodeAffinity | None = None


class AdmittedSpec(PodSpec, frozen=True, gc=False):
    """PodSpec."""

    containers: tuple[AdmittedContainer, ...] | None = None
    init_containers: tuple[AdmittedContainer, ...] | None = None
    ephemeral_containers: tuple[AdmittedContainer, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    host_pid: bool | None = msgspec.field(default=None, name="hostPID")


class AdmittedOwner(OwnerReference, frozen=True, gc=False):
    """OwnerReference."""

    api_version: str = ""
    uid: str = ""


class AdmittedMetadata(Metadata, frozen=True, gc=False):
    """ObjectMeta."""

    generate_name: str | None = None
    owner_references: tuple[AdmittedOwner, ...] | None = None


class AdmittedPod(Pod, frozen=True, kw_only=True, gc=False):
    """A Pod; a patch needs the object below `spec` to be there."""

    metadata: AdmittedMetadata = AdmittedMetadata()
    spec: AdmittedSpec

    @property
    def shown_name(self) -> str:
        """The name, or what it will begin with: at its creation a pod may have none yet."""
        metadata = self.metadata
        return metadata.name or f"{metadata.generate_name or ''}*"

    def lists(self) -> Mapping[str, tuple[AdmittedContainer, ...]]:
        """Containers and init containers (sidecars among them) by their field in the spec."""
        spec = self.spec
        return {
            "initContainers": spec.init_containers or (),
            "containers": spec.containers or (),
        }

    def all_containers(self) -> tuple[AdmittedContainer, ...]:
        """Those that are there from the pod's creation on."""
        return (*(self.spec.init_containers or ()), *(self.spec.containers or ()))


_POD = msgspec.json.Decoder(AdmittedPod)


def decode_admitted(data: bytes | msgspec.Raw) -> AdmittedPod:
    """Decode a Pod; raises PodDecodeError."""
    try:
        return _POD.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodDecodeError(f"not a Pod: {error}") from None


# --- supply
# Who gives a container its GPUs, and so which variables are ours (placement design, section 6).
#
# Decided per container at the pod's creation, from the pod alone. Pure.

CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
"""The container toolkit gives such a container nothing, whatever its image says."""
ASSIGNED_PATH: Final = f"metadata.annotations['{ASSIGNED_UUIDS}']"


class Supply(Enum):
    """Where a container's GPUs come from."""

    KUBELET = auto()
    """A device plugin or DRA driver: nothing from us, a UUID that is not the chosen one would
    leave CUDA without a device."""
    REFERENCE = auto()
    """What the binding webhook writes into the pod's annotation: an `env` node."""
    NONE = auto()
    """Nobody may give it any: the image's default would show every card."""
    UNTOUCHED = auto()
    """Not managed by us: another container of a pod outside enforced namespaces."""


def is_env_pod(needs: Requirements) -> bool:
    """Whether the pod's GPUs come from nobody but us."""
    return needs.count > 0 and not needs.requests and not needs.claims


def supply_of(
    container: AdmittedContainer,
    needs: Requirements,
    resources: Iterable[str],
    *,
    enforced: bool,
) -> Supply:
    """Where this container's GPUs come from; `resources` are the managed ones.

    An amount that is no number makes the pod's requirements invalid before anybody asks here.
    """
    asked = container.resources
    if asked is not None:
        if asked.claims:
            return Supply.KUBELET
        for each in resources:
            if requested(asked, each):
                return Supply.KUBELET
    return supply_without_request(needs, enforced=enforced)


def supply_without_request(needs: Requirements, *, enforced: bool) -> Supply:
    """The same for a container that requests none, such as every ephemeral one (core/v1)."""
    if is_env_pod(needs):
        return Supply.REFERENCE
    return Supply.NONE if enforced else Supply.UNTOUCHED


def wanted_variables(supply: Supply) -> tuple[str, ...]:
    """Names of the variables that such a container has from us."""
    if supply is Supply.REFERENCE:
        return (CUDA, NVIDIA)
    return (NVIDIA,) if supply is Supply.NONE else ()


def is_ours(entry: Variable, supply: Supply) -> bool:
    """Whether an entry is what we write, with or without what the API server adds."""
    source = entry.value_from
    if supply is Supply.NONE:
        return source is None and entry.value == VOID
    if source is None or source.field_ref is None or entry.value:
        return False
    reference = source.field_ref
    return reference.field_path == ASSIGNED_PATH and reference.api_version in {None, "", "v1"}


# --- rules
# What an installation configures about admission. Pure.

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""What the API server writes where a pod names none."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """One value for mutation, validation and the binding webhook, so that they cannot disagree."""

    requirements: RequirementRules = RequirementRules()  # noqa: RUF009 -- frozen
    scheduler_name: str = "gpuwarden"
    """The scheduler that asks our extender (`schedulerName`)."""
    runtime_classes: tuple[str, ...] = ("nvidia",)
    """Runtime classes that managed pods, and pods of enforced namespaces, may name."""
    by_affinity: bool = False
    """No scheduler asks the extender: pods are sent to nodes by a hint (`scheduling: affinity`)."""

    host_paths: frozenset[str] = frozenset()
    """Host paths that such pods may mount, as they are written."""

    @property
    def only_enforced(self) -> bool:
        """Whether the binding webhook sees bindings in enforced namespaces alone.

        Elsewhere it is asked about those of our own scheduler, and there is none.
        """
        return self.by_affinity or self.scheduler_name == DEFAULT_SCHEDULER

    @property
    def resources(self) -> tuple[str, ...]:
        """The managed resources."""
        return self.requirements.managed_resources


# --- registration
# For which pods the API server asks us outside enforced namespaces: a CEL expression. Pure.
#
# Made from the keys that the parser reads, so that no key can make a pod managed without a call.
# Hints are not among them: they never block. Expressions over tens of thousands of keys take the
# API
# server seconds, so it looks at the number first. Source: admissionregistration.k8s.io/v1,
# `matchConditions`.

MOST_KEYS: Final = 1000
"""Annotations and labels whose names the API server reads by itself."""
_FIELDS: Final = ("annotations", "labels")


def asks_condition(rules: RequirementRules) -> str:
    """Whether a pod has an annotation or label that is ours and no hint, or very many of them."""
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
