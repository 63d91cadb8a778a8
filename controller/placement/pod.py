"""A v1 Pod as placement reads it, decoded from JSON, and the devices that it requests.

Unknown fields are skipped: the API server owns the schema, and a newer one must not fail here.
"""

from collections.abc import Iterable

import msgspec

from controller.placement.values import parse_count

_ENDED = frozenset({"Succeeded", "Failed"})


class PodDecodeError(ValueError):
    """The bytes are no Pod; says what is wrong and where."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class OwnerReference(_Object, frozen=True, gc=False):
    """metadata.ownerReferences[]."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True, gc=False):
    """ObjectMeta; every field may be absent or null."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class Resources(_Object, frozen=True, gc=False):
    """ResourceRequirements; quantities as the API writes them, or as YAML numbers."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(_Object, frozen=True, gc=False):
    """One container or init container."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    """`Always` on an init container makes it a sidecar (KEP-753)."""


class ResourceClaim(_Object, frozen=True, gc=False):
    """PodResourceClaim, or a container's use of one: that it is there is all that is read.

    No msgspec.Raw: that would keep the whole message alive.
    """


class PodSpec(_Object, frozen=True, gc=False):
    """PodSpec."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    resources: Resources | None = None
    """Pod-level resources (KEP-2837)."""
    resource_claims: tuple[ResourceClaim, ...] | None = None
    node_name: str | None = None


class PodStatus(_Object, frozen=True, gc=False):
    """PodStatus."""

    phase: str = ""
    nominated_node_name: str | None = None
    """Where kube-scheduler has evicted pods for this one."""


class Pod(_Object, frozen=True, gc=False):
    """A Pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations, empty where there are none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        """Labels, empty where there are none."""
        return self.metadata.labels or {}

    @property
    def has_ended(self) -> bool:
        """Whether no container of it will ever run again."""
        return self.status.phase in _ENDED


_POD = msgspec.json.Decoder(Pod)


def decode_pod(data: bytes | bytearray | memoryview | msgspec.Raw) -> Pod:
    """Decode a Pod; raises PodDecodeError."""
    try:
        return _POD.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodDecodeError(f"not a Pod: {error}") from None


def device_requests(pod: Pod, resources: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Effective request per managed resource, those above 0 only.

    max(sum of containers and sidecars, largest init step), where an init step runs
    beside the sidecars before it (k8s component-helpers, `PodRequests`); never less
    than a pod-level request. Raises RequirementTextError for a quantity that is no count.
    """
    pairs = ((resource, _effective(pod.spec, resource)) for resource in resources)
    return tuple((resource, count) for resource, count in pairs if count)


def requested(resources: Resources | None, resource: str) -> int:
    """What one container asks of `resource`; a limit counts where there is no request.

    Raises RequirementTextError for a quantity that is no count.
    """
    if resources is None:
        return 0
    for amounts in (resources.requests, resources.limits):
        if amounts is not None and resource in amounts:
            return parse_count(str(amounts[resource]))
    return 0


def _effective(spec: PodSpec, resource: str) -> int:
    total = sum(requested(container.resources, resource) for container in spec.containers or ())
    sidecars = largest_step = 0
    for container in spec.init_containers or ():
        count = requested(container.resources, resource)
        if container.restart_policy == "Always":
            sidecars += count
            total += count
            largest_step = max(largest_step, sidecars)
        else:
            largest_step = max(largest_step, count + sidecars)
    return max(total, largest_step, requested(spec.resources, resource))
