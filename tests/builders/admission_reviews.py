"""AdmissionReviews as the API server sends them, and reading the answers."""

import base64
import json
from typing import Any

import msgspec

from controller.admission.review import AdmissionRequest, Review, decode_review

Document = dict[str, Any]


def review_json(
    pod: Document | None,
    *,
    operation: str = "CREATE",
    subresource: str = "",
    old: Document | None = None,
    namespace: str = "team-a",
    dry_run: bool = False,
    **request: Any,
) -> Document:
    """A review of a pod; `request` wins."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    made: Document = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": kind,
        "namespace": namespace,
        "operation": operation,
        "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": old,
        "dryRun": dry_run,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **request,
    }
    if subresource:
        made["subResource"] = subresource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": made}


def review_of(document: Document) -> Review:
    return decode_review(msgspec.json.encode(document))


def request_of(document: Document) -> AdmissionRequest:
    return review_of(document).request


def patch_of(answer: Document) -> list[Document]:
    """The patch of an answer; empty without one."""
    response = answer["response"]
    if "patch" not in response:
        assert "patchType" not in response
        return []
    assert response["patchType"] == "JSONPatch"
    found: list[Document] = json.loads(base64.b64decode(response["patch"], validate=True))
    return found
