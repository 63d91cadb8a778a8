"""A pod as admission reads it: what placement reads, and whatever can give it a GPU.

Unknown fields are skipped: the API server has decoded the object with its own schema and written
it again, so names and types are the API's, each key once.
"""

from collections.abc import Mapping

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
)


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class FieldReference(_Object, frozen=True, gc=False):
    """ObjectFieldSelector."""

    field_path: str = ""
    api_version: str | None = None
    """The API server writes `v1` where it is missing."""


class ValueSource(_Object, frozen=True, gc=False):
    """EnvVarSource; a source of another kind than a field of the pod counts as the same."""

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
    priority: int | None = None


class AdmittedOwner(OwnerReference, frozen=True, gc=False):
    """OwnerReference."""

    api_version: str = ""
    uid: str = ""


class AdmittedMetadata(Metadata, frozen=True, gc=False):
    """ObjectMeta."""

    creation_timestamp: str | None = None
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
