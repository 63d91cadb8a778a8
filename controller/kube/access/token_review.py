"""Asks the API server whose token it is (authentication.k8s.io/v1 TokenReview).

A pod's token counts only for the HTTP API's audience, and only if the API server has compared that
audience; a person's is for the API server.
No error holds any part of a token or of an answer about one.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from controller.access import BoundPod, Person, TokenIdentity, TokenReviewUnavailableError
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import TOKEN_REVIEWS, ApiError
from controller.people.identity import person_of

_ACCOUNT: Final = "system:serviceaccount:"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_MOST_CHARS: Final = 512


class _User(msgspec.Struct, gc=False):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct, gc=False):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] | None = None


class _Review(msgspec.Struct, gc=False):
    status: _Status


_DECODER: Final = msgspec.json.Decoder(_Review)


class KubeTokenReviewer:
    """Implements TokenReviewer."""

    def __init__(self, api: ApiClient, audience: str) -> None:
        self._api = api
        self._audience = audience

    async def review(self, token: str) -> TokenIdentity | None:
        """Whose token it is, None where it is none of ours; raises TokenReviewUnavailableError."""
        spec = {"token": token, "audiences": [self._audience]}
        return reviewed_identity(await _reviewed(self._api, spec), self._audience)


class KubePersonReviewer:
    """Implements TokenReviewer for people: their tokens are for the API server itself.

    So no audience is named: the API server takes its own then, and refuses a token that was made
    for another service.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def review(self, token: str) -> Person | None:
        """Whose token it is, None where nobody's; raises TokenReviewUnavailableError."""
        return reviewed_person(await _reviewed(self._api, {"token": token}))


async def _reviewed(api: ApiClient, spec: Mapping[str, object]) -> bytes:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    try:
        return await api.create(TOKEN_REVIEWS, body)
    except ApiError as error:
        text = f"answered {error.status}" if error.status else "did not answer"
        raise TokenReviewUnavailableError(f"the API server {text}") from None


def reviewed_identity(answer: bytes, audience: str) -> TokenIdentity | None:
    """The identity in a TokenReview's status; raises TokenReviewUnavailableError."""
    status = _status_in(answer)
    name = status.user.username
    if not status.authenticated or audience not in (status.audiences or ()):
        return None
    if not 0 < len(name) <= _MOST_CHARS or not name.isprintable():
        return None
    return TokenIdentity(name, _pod(status.user))


def reviewed_person(answer: bytes) -> Person | None:
    """The person in a TokenReview's status, None where it names nobody.

    Raises TokenReviewUnavailableError.
    """
    status = _status_in(answer)
    if not status.authenticated:
        return None
    user = status.user
    found = person_of(user.username, user.groups or (), user.uid, user.extra)
    return found if isinstance(found, Person) else None


def _status_in(answer: bytes) -> _Status:
    try:
        return _DECODER.decode(answer).status
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise TokenReviewUnavailableError("the API server's answer cannot be read") from None


def _pod(user: _User) -> BoundPod | None:
    """Of a token that is bound to one; its namespace is the account's."""
    names, uids = ((user.extra or {}).get(x, []) for x in (_POD_NAME, _POD_UID))
    namespace = user.username.removeprefix(_ACCOUNT).partition(":")[0]
    if not user.username.startswith(_ACCOUNT) or len(names) != 1 or len(uids) != 1:
        return None
    return BoundPod(namespace, names[0], uids[0])
