"""What a pod, or a Job for its pods, tells the scorer, and whether it gets hints at all.

Hints make good placements more likely. They never refuse a pod: what cannot be read is left out
with a warning. Must not know what the scorer answers.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from controller.admission.hints.workload_name import job_as_owner, owner_of, workload_name
from controller.admission.pod import (
    AdmittedContainer,
    AdmittedMetadata,
    AdmittedPod,
    AdmittedSpec,
    Affinity,
    NodeAffinity,
    NodeSelectorTerm,
)
from controller.admission.validation import parts
from controller.placement.pod import (
    Container,
    Metadata,
    Pod,
    PodDecodeError,
    device_requests,
    requested,
)
from gpuwarden.policy.texts import RequirementTextError, shown

# --- keys: gpuwarden's own first, then those of radix

JOB_TYPE: Final = ("gpuwarden.dev/job-type", "app.kubernetes.io/job-type")
"""As annotation or label."""
JOB_TYPE_LABEL: Final = JOB_TYPE[1]
"""By which pods keep away from each other."""
MEMORY: Final = ("gpuwarden.dev/gpu-memory", "gpu.mem.gi")
BATCH_SIZE: Final = ("gpuwarden.dev/batch-size", "ml.batch_size")
TENANT: Final = ("gpuwarden.dev/tenant", "scheduler.radix.ai/tenant")
NO_TENANT: Final = "default"
TIMESTAMP: Final = "scheduler.radix.ai/decision-timestamp"
"""On a pod that was decided already: by this webhook in the template of its Job, or as a copy."""

_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""What a label can hold."""
_MEMORY: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_GIB: Final = {
    "Ki": 2.0**-20,
    "Mi": 2.0**-10,
    "Gi": 1.0,
    "Ti": 2.0**10,
    "k": 1e3 / 2**30,
    "M": 1e6 / 2**30,
    "G": 1e9 / 2**30,
    "T": 1e12 / 2**30,
}
_BATCH_SIZE: Final = re.compile(r"[1-9][0-9]{0,8}")
_MOST_CHARS: Final = 253
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_Some = TypeVar("_Some", bound=Container)


def is_label_value(text: str) -> bool:
    """Whether a label can hold it; the empty text does not count."""
    return _VALUE.fullmatch(text) is not None


# --- the object


class PreferredTerm(msgspec.Struct, frozen=True, gc=False):
    """PreferredSchedulingTerm."""

    preference: NodeSelectorTerm = NodeSelectorTerm()


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """That it is there is all that is read."""


class HintedNodeAffinity(NodeAffinity, frozen=True, gc=False):
    """NodeAffinity with what is only preferred."""

    preferred: tuple[PreferredTerm, ...] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAntiAffinity(msgspec.Struct, frozen=True, gc=False):
    """PodAntiAffinity."""

    preferred: tuple[_Entry, ...] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class HintedAffinity(Affinity, frozen=True, rename="camel", gc=False):
    """Affinity."""

    node_affinity: HintedNodeAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class HintedContainer(AdmittedContainer, frozen=True, gc=False):
    """Container."""

    image: str | None = None


class HintedSpec(AdmittedSpec, frozen=True, rename="camel", gc=False):
    """PodSpec."""

    containers: tuple[HintedContainer, ...] | None = None
    affinity: HintedAffinity | None = None
    priority_class_name: str | None = None


class HintedPod(AdmittedPod, frozen=True, kw_only=True, gc=False):
    """Pod."""

    spec: HintedSpec


class _Template(msgspec.Struct, frozen=True, gc=False):
    spec: HintedSpec
    metadata: AdmittedMetadata | None = None


class _JobSpec(msgspec.Struct, frozen=True, gc=False):
    template: _Template


class _Job(msgspec.Struct, frozen=True, gc=False):
    spec: _JobSpec
    metadata: Metadata = Metadata()


_POD: Final = msgspec.json.Decoder(HintedPod)
_JOB: Final = msgspec.json.Decoder(_Job)


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod that is created, or what the pods of a Job will be."""

    pod: HintedPod
    outer: Metadata = Metadata()  # noqa: RUF009 -- frozen
    """Of the Job, whose annotations and labels tell as much as the template's."""
    at: tuple[str, ...] = ()
    """Where the pod is in the object."""
    has_metadata: bool = True

    @property
    def is_template(self) -> bool:
        """Whether it is a Job's."""
        return bool(self.at)


def decode_workload(body: msgspec.Raw, resource: str) -> Workload:
    """Decode a Pod, or a Job for `jobs`; raises PodDecodeError."""
    try:
        if resource != "jobs":
            return Workload(_POD.decode(body))
        job = _JOB.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodDecodeError(f"not of {resource}: {error}") from None
    template = job.spec.template
    pod = HintedPod(metadata=template.metadata or AdmittedMetadata(), spec=template.spec)
    has_metadata = template.metadata is not None
    return Workload(pod, job.metadata, ("spec", "template"), has_metadata=has_metadata)


# --- what it tells


@dataclass(frozen=True, slots=True)
class Features:
    """What the scorer hears."""

    job_type: str
    """Or the name by its owner, which no label can hold."""
    memory_gib: float | None = None
    """That the pod needs on each GPU."""
    batch_size: int | None = None
    tenant: str = NO_TENANT


@dataclass(frozen=True, slots=True)
class Told:
    """What the keys say; without a job type or an owner there are no features."""

    features: Features | None
    warnings: tuple[str, ...] = ()
    """For whoever creates the pod: what was left out."""


def told(work: Workload, owner_name: str) -> Told:
    """Read the keys of hints; `owner_name` stands for a job type where there is none to read."""
    annotations = {**(work.outer.annotations or {}), **work.pod.annotations}
    labels = {**(work.outer.labels or {}), **work.pod.labels}
    found = _first(JOB_TYPE, annotations) or _first(JOB_TYPE, labels)
    job_type, unread = owner_name, None
    if found is not None and is_label_value(found[1]):
        job_type = found[1]
    elif found is not None:
        unread = _ignored(*found, "what a label can hold")
    if not job_type:
        return Told(None, () if unread is None else (unread,))
    memory, batch, tenant = (_first(x, annotations) for x in (MEMORY, BATCH_SIZE, TENANT))
    gib = None if memory is None else _gib(memory[1])
    is_count = batch is not None and _BATCH_SIZE.fullmatch(batch[1]) is not None
    is_named = tenant is not None and 0 < len(tenant[1]) <= _MOST_CHARS
    warnings = (
        unread,
        None
        if memory is None or gib
        else _ignored(*memory, "an amount above 0 such as 40Gi or 40"),
        None if batch is None or is_count else _ignored(*batch, "a whole number from 1"),
        None if tenant is None or is_named else _ignored(*tenant, f"1 to {_MOST_CHARS} characters"),
    )
    features = Features(
        job_type,
        gib,
        int(batch[1]) if batch is not None and is_count else None,
        tenant[1] if tenant is not None and is_named else NO_TENANT,
    )
    return Told(features, tuple(x for x in warnings if x is not None))


def name_by_owner(work: Workload, namespace: str) -> str:
    """Of a pod that is created, or of those that a Job will make; empty for none."""
    owner = job_as_owner(work.outer) if work.is_template else owner_of(work.pod)
    return workload_name(namespace, owner, work.pod.labels)


def name_of(pod: Pod) -> str:
    """By what runs of a pod that exists are learned: its job type, or its owner; empty for none."""
    by_owner = workload_name(pod.metadata.namespace or "", owner_of(pod), pod.labels)
    return job_type_of(pod) or by_owner


def job_type_of(pod: Pod) -> str:
    """The job type of a pod that exists; empty for none."""
    found = _first(JOB_TYPE, pod.annotations) or _first(JOB_TYPE, pod.labels)
    return found[1] if found is not None and is_label_value(found[1]) else ""


def gpu_containers(
    containers: Iterable[_Some] | None, resources: tuple[str, ...]
) -> Sequence[_Some]:
    """Those that ask kubelet for GPUs; all of them where none does."""
    there = tuple(containers or ())
    asking = [x for x in there if any(requested(x.resources, y) for y in resources)]
    return asking or there


def digest_in(image: str) -> str:
    """The digest in the name of an image; empty where it has none."""
    found = _DIGEST.search(image)
    return "" if found is None else found[0]


def image_of(pod: HintedPod, resources: tuple[str, ...]) -> str:
    """Digest of what the first container with GPUs will run; empty for a tag alone."""
    mine = gpu_containers(pod.spec.containers, resources)
    return digest_in(mine[0].image or "") if mine else ""


def _first(keys: tuple[str, ...], texts: Mapping[str, str]) -> tuple[str, str] | None:
    return next(((key, texts[key]) for key in keys if key in texts), None)


def _gib(text: str) -> float | None:
    """A quantity, or a plain number of GiB; None for what is no amount above 0."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        return None
    amount = float(match[1]) * _GIB[match[2] or "Gi"]
    return amount if amount > 0 else None


def _ignored(key: str, text: str, expected: str) -> str:
    return f"gpuwarden: {key}: {shown(text)} is ignored, expected {expected}"


# --- whether it gets hints

_MOST_PARTS: Final = 5_000
_MOST_KEYS: Final = 500
_MOST_BYTES: Final = 64 << 10


def has_room(pod: AdmittedPod) -> bool:
    """Whether hints never make a pod too large for what judges it afterwards (`validation`)."""
    size = sum(len(key.encode()) + len(text.encode()) for key, text in pod.annotations.items())
    keys = len(pod.annotations) + len(pod.labels)
    return parts(pod) <= _MOST_PARTS and keys <= _MOST_KEYS and size <= _MOST_BYTES


def requests_gpus(pod: AdmittedPod, resources: tuple[str, ...]) -> bool:
    """Whether it requests a managed resource; a quantity that is no count is none."""
    try:
        return bool(device_requests(pod, resources)) or bool(pod.spec.resource_claims)
    except RequirementTextError:
        return False


# --- the question


def score_request(
    features: Features,
    candidates: tuple[str, ...],
    colocated: tuple[str, ...],
    memory_gib: Mapping[str, float],
    image: str = "",
) -> bytes:
    """The body of `POST /v1/score`; `memory_gib` is what a GPU of each type has, by evidence.

    `image` is the digest of what it will run, where it is known.

    A candidate counts as large enough (`hint_candidates`), so it is never told smaller than what
    is asked for: a card that is sold with 80 GB reports a little less.
    """
    least = features.memory_gib or 0.0
    told_features: dict[str, str | int | float] = {"tenant": features.tenant}
    if features.memory_gib is not None:
        told_features["gpu_mem_gb"] = _rounded(features.memory_gib)
    if features.batch_size is not None:
        told_features["batch_size"] = features.batch_size
    return msgspec.json.encode(
        {
            "job_type": features.job_type,
            "features": told_features,
            "candidate_gpu_types": candidates,
            "candidate_gpu_mem_gb": {
                x: _rounded(max(memory_gib[x], least)) for x in candidates if x in memory_gib
            },
            "colocated_job_types": colocated,
            **({"image": image} if image else {}),
        }
    )


def _rounded(gib: float) -> float:
    return math.ceil(gib * 1000) / 1000
