"""What the gate writes into a Binding, and so onto the pod, in one write with its node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.admission.early import cdi_names
from controller.admission.json_patch import Operation, Value, Verb, pointer
from controller.admission.pod_view import AdmittedPod
from controller.binding.request import BindingRequest
from controller.binding.stored_pod import StoredPod
from controller.scheduling.promise import Promise
from controller.scheduling.wish_keys import (
    ASSIGNED_UUIDS,
    ATTESTATION_HASH,
    CDI_ASSIGNMENT,
    GIVEN_GUARANTEE,
    GIVEN_NODE,
    GUARANTEE_LIMIT,
    RESERVATION_ID,
    RESULT_TWINS,
    SEED_ASSIGN,
    SEED_LABEL_PREFIX,
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a pod is told about its place."""

    node: str
    attestation_hash: str | None
    promise: Promise
    gpus: tuple[str, ...] = ()
    """In the order in which the container sees them; none where kubelet chooses, or none are
    asked for."""
    reservation: str | None = None


def result_annotations(result: Result, pod: AdmittedPod) -> Mapping[str, str]:
    """Our annotations, and their twins where the pod used the seeds' spelling."""
    found = {GIVEN_NODE: result.node, GIVEN_GUARANTEE: result.promise.guarantee.value}
    if result.promise.limit is not None:
        found[GUARANTEE_LIMIT] = result.promise.limit.value
    if result.attestation_hash is not None:
        found[ATTESTATION_HASH] = result.attestation_hash
    if result.reservation is not None:
        found |= {ASSIGNED_UUIDS: ",".join(result.gpus), RESERVATION_ID: result.reservation}
    if any(label.startswith(SEED_LABEL_PREFIX) for label in pod.labels):
        found |= {twin: found[key] for twin, key in RESULT_TWINS.items() if key in found}
    if result.gpus and _wants_cdi(pod):
        found[CDI_ASSIGNMENT] = cdi_names(result.gpus)
    return found


def same_pod_patch(stored: StoredPod) -> tuple[Operation, ...]:
    """The precondition that the pod is no other one than the one that was judged."""
    return (Operation(Verb.ADD, pointer("metadata", "uid"), stored.uid),)


def binding_patch(
    request: BindingRequest, stored: StoredPod, annotations: Mapping[str, str]
) -> tuple[Operation, ...]:
    """Annotations, and the preconditions that the pod is still the one that was judged."""
    preconditions = (
        *same_pod_patch(stored),
        Operation(Verb.ADD, pointer("metadata", "resourceVersion"), stored.version),
    )
    place = pointer("metadata", "annotations")
    if not request.annotations:
        made: Value = dict(sorted(annotations.items()))
        return (*preconditions, Operation(Verb.ADD, place, made))
    return (
        *preconditions,
        *(
            Operation(Verb.ADD, place + pointer(key), text)
            for key, text in sorted(annotations.items())
        ),
    )


def _wants_cdi(pod: AdmittedPod) -> bool:
    return pod.labels.get(SEED_ASSIGN) in {"", "true"}
