"""The name of a workload without a job type, by which its runs are learned and its hints asked for.

It is made of what a pod carries from its creation to its end, so a webhook and whoever sees the pod
end find the same one. No other object is looked up. Must not know what a job type is.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from controller.placement.pod import Metadata, OwnerReference, Pod

LONGEST: Final = 253
_TEMPLATE_HASH: Final = "pod-template-hash"
_JOB_SET: Final = "jobset.sigs.k8s.io/jobset-name"
_STATIC: Final = "Node"
"""Who owns the copy of a static pod in the API."""
_CRON_TIME: Final = re.compile(r"(.+)-[0-9]{8}")
"""What a CronJob names its Jobs: itself, and the minutes since 1970."""
_GENERATED: Final = re.compile(r"(.+)-[bcdfghjklmnpqrstvwxz2456789]{5}")
"""What the API server makes of `generateName`. Source: k8s.io/apimachinery pkg/util/rand."""
_LONGEST_BASE: Final = 58
"""Of `generateName`: what is longer is cut."""
_SOME_SUFFIX: Final = "bcdfg"
_PLAIN: Final = re.compile(r"[A-Za-z0-9.-]+")
_HASH_CHARS: Final = 32


def owner_of(pod: Pod) -> OwnerReference | None:
    """Who controls a pod."""
    return next((x for x in pod.metadata.owner_references or () if x.controller), None)


def job_as_owner(job: Metadata) -> OwnerReference | None:
    """A Job that is created, as its pods will name it; None where no name of it can be told.

    Its name may not be known yet. One that is generated from a text without a dash at its end
    looks like any other afterwards.
    """
    base = (job.generate_name or "")[:_LONGEST_BASE]
    name = job.name or (base + _SOME_SUFFIX if base.endswith("-") else "")
    return OwnerReference(kind="Job", name=name, controller=True) if name else None


def workload_name(namespace: str, owner: OwnerReference | None, labels: Mapping[str, str]) -> str:
    """`namespace/Kind/name` of the object that makes such pods again and again; empty for none.

    `labels` are the pod's. The namespace comes first, and no namespace has a slash: whatever owner
    a pod claims, it names no workload of another namespace, nor a job type.
    """
    if owner is None or owner.kind == _STATIC:
        return ""
    kind, name = _outermost(owner, labels)
    generated = _GENERATED.fullmatch(name)
    name = name if generated is None else generated[1]
    if not _PLAIN.fullmatch(kind) or not _PLAIN.fullmatch(name):
        return ""
    text = f"{namespace}/{kind}/{name}"
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
    return f"{text[: LONGEST - _HASH_CHARS - 1]}~{digest}"


def _outermost(owner: OwnerReference, labels: Mapping[str, str]) -> tuple[str, str]:
    """Kind and name of what owns the owner, where the pod tells."""
    kind, name = owner.kind, owner.name
    if kind == "ReplicaSet":
        suffix = f"-{labels.get(_TEMPLATE_HASH, '')}"
        if len(suffix) > 1 and name.endswith(suffix):
            return "Deployment", name.removesuffix(suffix)
    elif kind == "Job":
        if _JOB_SET in labels:
            return "JobSet", labels[_JOB_SET]
        timed = _CRON_TIME.fullmatch(name)
        if timed is not None:
            return "CronJob", timed[1]
    return kind, name
