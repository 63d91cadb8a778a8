"""The pods that an object will have, as its controller makes them, for questions before they exist.

A pod's labels, owner and name say which line of a map is its own, and a template has none of them.
Source: kubernetes pkg/controller (statefulset, job, deployment, daemon). Must not judge them.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from controller.admission.pod import AdmittedMetadata, AdmittedOwner, AdmittedPod, decode_admitted
from controller.admission.validation import MOST_PARTS, parts
from controller.placement.keys import COMPLETION_INDEX, MAP, ORDINAL, POD_INDEX
from controller.placement.pod import PodDecodeError, PodStatus

_MAX_BYTES: Final = 4 * 1024 * 1024
MOST_PODS: Final = 64
"""Each is judged by itself where a map gives each its own place."""
_TEMPLATE_HASH: Final = "pod-template-hash"
_SOME_HASH: Final = "0"
_BY_GENERATED_NAME: Final = frozenset({"ReplicaSet", "ReplicationController", "DaemonSet"})


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class _Name(_Struct, frozen=True, gc=False):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None


class _Ordinals(_Struct, frozen=True, gc=False):
    start: int = 0


class _Spec(_Struct, frozen=True, gc=False):
    containers: tuple[msgspec.Raw, ...] | None = None
    template: AdmittedPod | None = None
    job_template: "_Workload | None" = None
    replicas: int | None = None
    ordinals: _Ordinals | None = None
    completions: int | None = None
    parallelism: int | None = None
    completion_mode: str | None = None


class _Workload(_Struct, frozen=True, gc=False):
    """Any object; of one that is no workload nothing is there."""

    kind: str = ""
    metadata: _Name = _Name()
    spec: _Spec = _Spec()


_WORKLOAD: Final = msgspec.json.Decoder(_Workload)


def made_pods(data: bytes, namespace: str) -> tuple[AdmittedPod, ...]:
    """The pod itself; of a workload one of its pods, or with a map each of them.

    `namespace` is that of an object which names none. Raises PodDecodeError.
    """
    if len(data) > _MAX_BYTES:
        raise PodDecodeError(f"more than {_MAX_BYTES} bytes")
    try:
        found = _WORKLOAD.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodDecodeError(f"not a Pod: {error}") from None
    where = found.metadata.namespace or namespace
    if found.spec.containers is not None:
        pods = [_in_namespace(decode_admitted(data), where)]
    elif found.spec.job_template is not None:
        job = found.spec.job_template
        pods = list(_pods_of("Job", f"{_name(found)}-0", job.spec, where))
    else:
        pods = list(_pods_of(found.kind, _name(found), found.spec, where))
    if not pods or not pods[0].spec.containers:
        raise PodDecodeError("not a Pod: spec.containers is missing or empty")
    return tuple(pods)


def namespace_of(data: bytes, namespace: str) -> str:
    """Where the pods of an object will be; as `made_pods`."""
    return made_pods(data, namespace)[0].metadata.namespace or ""


def _name(workload: _Workload) -> str:
    metadata = workload.metadata
    return metadata.name or metadata.generate_name or workload.kind.lower()


def _in_namespace(pod: AdmittedPod, namespace: str) -> AdmittedPod:
    """A new one: of a stored pod that the manifest was taken from it has nothing."""
    metadata = msgspec.structs.replace(
        pod.metadata, namespace=namespace, uid=None, resource_version=None
    )
    return msgspec.structs.replace(pod, metadata=metadata, status=PodStatus())


def _pods_of(kind: str, name: str, spec: _Spec, namespace: str) -> Iterator[AdmittedPod]:
    template = spec.template
    if template is None:
        return
    if kind == "StatefulSet":
        first = 0 if spec.ordinals is None else spec.ordinals.start
        for index in _judged(template, first, spec.replicas):
            labels = {POD_INDEX: str(index)}
            made = _made(template, namespace, (kind, name), labels=labels)
            metadata = msgspec.structs.replace(made.metadata, name=f"{name}-{index}")
            yield msgspec.structs.replace(made, metadata=metadata)
    elif kind == "Job" and spec.completion_mode == "Indexed":
        for index in _judged(template, 0, spec.completions):
            own = {COMPLETION_INDEX: str(index)}
            owner = (kind, f"{name}-{index}")
            yield _made(template, namespace, owner, labels=own, annotations=own)
    elif kind == "Deployment":
        labels = {_TEMPLATE_HASH: _SOME_HASH}
        yield _made(template, namespace, ("ReplicaSet", f"{name}-{_SOME_HASH}"), labels=labels)
    elif kind == "Job" or kind in _BY_GENERATED_NAME:
        yield _made(template, namespace, (kind, name))
    else:
        yield _in_namespace(template, namespace)


def _judged(template: AdmittedPod, first: int, count: int | None) -> range:
    """The indices that make a difference, of those that there will be, and one at least."""
    annotations = template.annotations
    if not count or MAP not in annotations or ORDINAL in annotations:
        return range(first, first + 1)
    if parts(template) > MOST_PARTS:  # each is refused for that
        return range(first, first + 1)
    if count > MOST_PODS:
        text = f"{count} pods with a map are judged one by one, expected at most {MOST_PODS}"
        raise PodDecodeError(f"{text}: ask about a single pod")
    return range(first, first + count)


def _made(
    template: AdmittedPod,
    namespace: str,
    owner: tuple[str, str],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> AdmittedPod:
    kind, name = owner
    metadata = AdmittedMetadata(
        generate_name=f"{name}-",
        namespace=namespace,
        annotations={**template.annotations, **(annotations or {})},
        labels={**template.labels, **(labels or {})},
        owner_references=(AdmittedOwner(kind=kind, name=name, controller=True),),
    )
    return msgspec.structs.replace(template, metadata=metadata)
