"""Asks the API server whether somebody may do something (authorization.k8s.io/v1).

A SubjectAccessReview is never stored. What is denied explicitly, or cannot be decided, is denied.
"""

from typing import Final

import msgspec

from controller.access import Person
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import SUBJECT_ACCESS_REVIEWS, ApiError
from controller.people.reviews import AccessReviewUnavailableError
from controller.people.rights import Right, review_of


class _Status(msgspec.Struct, gc=False):
    allowed: bool = False
    denied: bool = False


class _Review(msgspec.Struct, gc=False):
    status: _Status


_DECODER: Final = msgspec.json.Decoder(_Review)


class KubeAccessReviewer:
    """Implements AccessReviewer."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def review(self, person: Person, right: Right) -> bool:
        """Whether the person has the right; raises AccessReviewUnavailableError."""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": review_of(person, right),
        }
        try:
            answer = await self._api.create(SUBJECT_ACCESS_REVIEWS, body)
        except ApiError as error:
            text = f"answered {error.status}" if error.status else "did not answer"
            raise AccessReviewUnavailableError(f"the API server {text}") from None
        return reviewed_right(answer)


def reviewed_right(answer: bytes) -> bool:
    """The answer in a SubjectAccessReview's status; raises AccessReviewUnavailableError."""
    try:
        status = _DECODER.decode(answer).status
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise AccessReviewUnavailableError("the API server's answer cannot be read") from None
    return status.allowed and not status.denied
