"""What counts in a SubjectAccessReview's answer: allowed and not denied."""

import json
from typing import Any

import pytest

from controller.kube.access.access_review import reviewed_right
from controller.people.reviews import AccessReviewUnavailableError


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        ({"allowed": True}, True),
        ({"allowed": True, "denied": False, "reason": "RBAC: …"}, True),
        ({"allowed": True, "denied": True}, False),
        ({"allowed": False}, False),
        ({"allowed": False, "evaluationError": "role not found"}, False),
        ({}, False),
    ],
)
def test_what_counts(status: dict[str, Any], *, allowed: bool) -> None:
    assert reviewed_right(json.dumps({"status": status}).encode()) is allowed


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"status":{"allowed":"true"}}', b"\xff"])
def test_what_cannot_be_read_is_no_answer(answer: bytes) -> None:
    with pytest.raises(AccessReviewUnavailableError, match="cannot be read"):
        reviewed_right(answer)
