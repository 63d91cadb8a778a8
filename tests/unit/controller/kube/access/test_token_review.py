"""What counts in a TokenReview's answer."""

import json
from typing import Any

import pytest

from controller.access import BoundPod, Person, TokenReviewUnavailableError
from controller.kube.access.token_review import reviewed_identity, reviewed_person

NAME = "authentication.kubernetes.io/pod-name"
UID = "authentication.kubernetes.io/pod-uid"
USER = {
    "username": "system:serviceaccount:team-a:default",
    "groups": ["system:serviceaccounts"],
    "extra": {NAME: ["train-0"], UID: ["uid-0"], "other": ["x", "y"]},
}
STATUS = {"authenticated": True, "user": USER, "audiences": ["gpuwarden"]}


def answer(**status: Any) -> bytes:
    return json.dumps({"kind": "TokenReview", "status": {**STATUS, **status}}).encode()


def test_a_token_of_a_pod() -> None:
    found = reviewed_identity(answer(), "gpuwarden")
    assert found is not None
    assert found.username == USER["username"]
    assert found.pod == BoundPod("team-a", "train-0", "uid-0")


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {"audiences": []},
        {"audiences": None},
        {"audiences": ["https://kubernetes.default.svc"]},
        {"user": {}},
        {"user": {"username": "a\nb"}},
        {"user": {"username": "a" * 600}},
    ],
)
def test_what_does_not_count(status: dict[str, Any]) -> None:
    """An API server that does not know audiences answers without any: that is not ours."""
    assert reviewed_identity(answer(**status), "gpuwarden") is None


@pytest.mark.parametrize(
    "user",
    [
        {"username": "jane", "extra": USER["extra"]},
        {"username": USER["username"]},
        {"username": USER["username"], "extra": {NAME: ["train-0"]}},
        {"username": USER["username"], "extra": {NAME: ["a", "b"], UID: ["uid-0"]}},
        {"username": USER["username"], "extra": {NAME: ["a"], UID: ["1", "2"]}},
    ],
)
def test_a_token_of_no_pod(user: dict[str, Any]) -> None:
    found = reviewed_identity(answer(user=user), "gpuwarden")
    assert found is not None
    assert found.pod is None


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"status":{"authenticated":"yes"}}']
)
def test_what_cannot_be_read_is_undecided(body: bytes) -> None:
    with pytest.raises(TokenReviewUnavailableError):
        reviewed_identity(body, "gpuwarden")


# --- people


def test_a_person_is_named_as_the_api_server_names_them() -> None:
    user = {"username": "jane@example.org", "uid": "u-1", "groups": ["a"], "extra": {"k": ["v"]}}
    for audiences in (["https://kubernetes.default.svc"], [], None):
        found = reviewed_person(answer(user=user, audiences=audiences))
        assert found == Person("jane@example.org", ("a",), "u-1", (("k", ("v",)),))


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {"user": {}},
        {"user": {"username": "system:anonymous"}},
        {"user": {"username": "jane", "groups": ["system:unauthenticated"]}},
        {"user": {"username": "a\nb"}},
    ],
)
def test_an_answer_that_names_nobody(status: dict[str, Any]) -> None:
    assert reviewed_person(answer(**status)) is None


def test_an_answer_about_a_person_that_cannot_be_read() -> None:
    with pytest.raises(TokenReviewUnavailableError, match="cannot be read"):
        reviewed_person(b"{}")
