"""AdmissionReview on the wire: what is read, and that every answer is well-formed."""

import json
from typing import Any

import msgspec
import pytest

from controller.admission.mutation import Operation, Verb
from controller.admission.review import ReviewError, Verdict, decode_review, encode_answer
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admission_reviews import patch_of, review_json, review_of
from tests.builders.admitted_pods import new_pod


def answer(verdict: Verdict, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        encode_answer(review_of({**review_json(new_pod()), **changes}), verdict)
    )
    return found


def test_a_request_is_read_and_its_object_left_as_it_is() -> None:
    pod = new_pod()
    found = review_of(review_json(pod, dry_run=True, name="a")).request
    assert (found.operation, found.namespace, found.name) == ("CREATE", "team-a", "a")
    assert (found.user_info.username, found.resource.resource) == ("jane", "pods")
    assert found.dry_run is True
    assert json.loads(bytes(found.object)) == pod


def test_a_requester_of_any_name_is_answered() -> None:
    """The API server bounds neither: who authenticates does."""
    long = {"username": "u" * 5000, "groups": ["g" * 5000]}
    found = review_of(review_json(new_pod(), userInfo=long))
    assert found.request.user_info.username == long["username"]
    assert json.loads(encode_answer(found, Verdict()))["response"]["uid"] == found.request.uid


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_the_answer_has_the_version_and_the_uid_of_the_question(version: str) -> None:
    found = answer(Verdict(), apiVersion=version)
    assert found == {
        "apiVersion": version,
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }


def test_a_patch_is_base64_of_json_patch() -> None:
    found = answer(Verdict(patch=(Operation(Verb.ADD, "/a~1b", "é"),)))
    assert found["response"]["allowed"] is True
    assert patch_of(found) == [{"op": "add", "path": "/a~1b", "value": "é"}]


STATUSES = {
    "REQ_INVALID": 400,
    "GPU_BUSY": 429,
    "GPU_LOST": 429,
    "LEDGER_CONFLICT": 429,
    "RESERVATION_PENDING": 429,
    "ADMISSION_FAILED": 500,
    "CONTROLLER_NOT_READY": 503,
    "LEDGER_UNAVAILABLE": 503,
    "AUDIT_UNAVAILABLE": 503,
}
"""All others: 403."""
REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@pytest.mark.parametrize("code", ReasonCode)
def test_a_refusal_says_its_code_and_why(code: ReasonCode) -> None:
    status = STATUSES.get(code.value, 403)
    refusals = (Refusal(code, "because"), Refusal(ReasonCode.DOOR_CDI, "and"))
    response = answer(Verdict(refusals, patch=(Operation(Verb.REMOVE, "/a"),)))["response"]
    assert response["allowed"] is False
    assert "patch" not in response
    assert response["status"] == {
        "status": "Failure",
        "code": status,
        "reason": REASONS[status],
        "message": f"gpuwarden: {code} because; gpuwarden: DOOR_CDI and",
    }
    codes = dict.fromkeys((code.value, "DOOR_CDI"))
    assert response["auditAnnotations"] == {"codes": ",".join(codes)}


def test_texts_are_bounded() -> None:
    refusals = tuple(Refusal(ReasonCode.DOOR_ENV, "x" * 300) for _ in range(50))
    response = answer(Verdict(refusals))["response"]
    assert len(response["status"]["message"]) == 2048
    assert response["auditAnnotations"]["codes"] == "DOOR_ENV"
    warnings = answer(Verdict(warnings=("y" * 999,) * 99))["response"]["warnings"]
    assert [len(x) for x in warnings] == [256] * 8


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"a":' * 100_000, "no JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "expected admission.k8s.io/v1/AdmissionReview"),
        (
            msgspec.json.encode({**review_json(None), "apiVersion": "admission.k8s.io/v2"}),
            "admission.k8s.io/v2/AdmissionReview",
        ),
        (msgspec.json.encode({**review_json(None), "kind": "Pod"}), "admission.k8s.io/v1/Pod"),
        (msgspec.json.encode({**review_json(None), "request": None}), "no request"),
        (msgspec.json.encode(review_json(None, uid="")), "request.uid"),
        (msgspec.json.encode(review_json(None, uid=7)), "request.uid"),
        (msgspec.json.encode(review_json(None, namespace="n" * 1025)), "request.namespace"),
    ],
)
def test_what_is_no_review_is_an_error(body: bytes, expected: str) -> None:
    with pytest.raises(ReviewError) as caught:
        decode_review(body)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 200


def test_nulls_and_unknown_fields_of_the_api_are_fine() -> None:
    document = review_json(None, future={"a": 1})
    document["request"]["userInfo"]["groups"] = None
    document["request"]["dryRun"] = None
    found = review_of(document).request
    assert found.user_info.groups is None
    assert found.dry_run is None
