"""Bindings as the API server hands them to the webhook, and what the webhook decides by."""

from dataclasses import replace
from typing import Any

from controller.admission.review import AdmissionRequest
from controller.admission.rules import AdmissionRules
from controller.binding.decision import BindingView
from controller.binding.request import BindingRequest, StoredPod, read_binding
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord
from controller.ledger.reservation_id import ReservationIds, ReservationKey
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import Document, admitted, new_pod, patched
from tests.builders.fleet_views import healthy
from tests.builders.scenes import scene

SCHEDULER = "system:serviceaccount:gpuwarden-system:gpuwarden-scheduler"
IDS = ReservationIds("lab", (ReservationKey("k1", b"k" * 32),))
UID = "0b7c1a52-0000-4000-8000-000000000001"
REQUIREMENT = {"gpuwarden.dev/gpu-selector": "memory>=1Gi"}
NODE = "gpu-1"


def binding(
    pod: str = "train-0", node: str = NODE, *, uid: str | None = UID, **metadata: Any
) -> Document:
    """A v1 Binding as the scheduler writes it."""
    made: Document = {"name": pod, "namespace": "team-a", **metadata}
    if uid is not None:
        made["uid"] = uid
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": made,
        "target": {"kind": "Node", "name": node},
    }


def binding_review(document: Document, *, old: bool = False, **request: Any) -> Document:
    """A review of a Binding; `old`: posted to the resource `bindings`. `request` wins."""
    resource = {"group": "", "version": "v1", "resource": "bindings" if old else "pods"}
    fields = {
        "resource": resource,
        "name": "" if old else document["metadata"]["name"],
        "subresource": "" if old else "binding",
        "userInfo": {"username": SCHEDULER},
        **request,
    }
    return review_json(document, **fields)


def asked(document: Document | None = None, **request: Any) -> BindingRequest:
    return read_binding(review_request(document, **request))


def review_request(document: Document | None = None, **request: Any) -> AdmissionRequest:
    return request_of(binding_review(document or binding(), **request))


def env_pod(
    annotations: dict[str, str] | None = None,
    *,
    name: str = "train-0",
    uid: str = UID,
    enforced: bool = True,
    **pod: Any,
) -> Document:
    """A pod for an `env` node as it is stored: named, and with what the webhook adds."""
    made = new_pod(annotations=REQUIREMENT if annotations is None else annotations, **pod)
    del made["metadata"]["generateName"]
    made["metadata"]["name"] = name
    document = patched(made, enforced=enforced)
    document["metadata"] |= {"uid": uid, "resourceVersion": "7"}
    return document


def stored(document: Document | None = None, **changes: Any) -> StoredPod:
    document = env_pod() if document is None else document
    metadata = document["metadata"]
    made = StoredPod(
        metadata["uid"], metadata["resourceVersion"], "", has_ended=False, pod=admitted(document)
    )
    return replace(made, **changes)


def binding_view(
    *nodes: NodeView, records: tuple[GpuRecord, ...] = (), **changes: Any
) -> BindingView:
    """By default one fresh `env` node with eight GPUs, of which nobody has any."""
    made = BindingView(
        scene=scene(*(nodes or (healthy(NODE),))),
        ledger=LedgerSnapshot.of(Entry(x, str(x.version)) for x in records),
        claiming={},
        ids=IDS,
        rules=AdmissionRules(),
        not_ready=None,
        grant_refusal=lambda _node, _gpus: None,
    )
    return replace(made, **changes)
