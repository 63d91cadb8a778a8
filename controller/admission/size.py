"""How much there is to judge in a pod. Pure.

A request holds megabytes, and one pod's keys or containers by the ten thousand would keep everybody
else's pods and Bindings waiting for seconds.
"""

from typing import Final

from controller.admission.pod_view import AdmittedContainer, AdmittedPod

MOST_PARTS: Final = 10_000
"""A pod with more of them is not judged: it is refused where it is any business of ours."""
CONTAINER_PARTS: Final = 10
"""What a container counts for, without what is in it."""
_WRITTEN_IN_CONTAINER: Final = 2
_WRITTEN_IN_POD: Final = 16
"""Annotations of ours and a toleration are fewer."""


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
    """Whether a new pod will still be judged once everything of ours stands in it."""
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
