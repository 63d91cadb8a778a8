"""As whom a person may call a method, and whose pods a person without a role may ask about.

Fails closed: where the API server does not answer, nobody may do anything.
"""

from typing import Final

from controller.access import Caller, CallerKind, Person
from controller.people.reviews import AccessReviews, AccessReviewUnavailableError
from controller.people.rights import (
    CLUSTER_ROLES,
    INSPECT,
    Right,
    is_for_tenants,
    missing,
    read_pods,
    ways_to,
)
from gpuwarden.reasons import ReasonCode, Refusal

_OR_INSPECT: Final = f"{INSPECT} (ClusterRole {CLUSTER_ROLES[INSPECT]})"
USER: Final = "user "
"""In front of a person's name, so that no user name can be read as another kind of caller."""


class Roles:
    """Used from one event loop."""

    def __init__(self, reviews: AccessReviews) -> None:
        self._reviews = reviews

    async def kind_for(self, person: Person, method: str) -> CallerKind | Refusal:
        """As whom a person calls `method`; a method that is not for people is ROLE_DENIED."""
        text = f"{person.username} may not call {method}: it is not for people"
        for way in ways_to(method):
            found = await self._has(person, way.right)
            if isinstance(found, Refusal):
                return found
            if found:
                return way.kind
            text = missing(person, method, way.right)
        if is_for_tenants(method):
            return CallerKind.TENANT
        return Refusal(ReasonCode.ROLE_DENIED, text)

    async def about_pods(self, caller: Caller, namespace: str, name: str = "") -> Refusal | None:
        """What keeps a tenant from asking about a namespace's pods, or one of them."""
        person = caller.person
        if caller.kind is not CallerKind.TENANT or person is None:
            return None
        right = read_pods(namespace, name)
        found = await self._has(person, right)
        if isinstance(found, Refusal):
            return found
        if found:
            return None
        text = f"{person.username} needs {right}, or {_OR_INSPECT}"
        return Refusal(ReasonCode.ROLE_DENIED, text)

    async def _has(self, person: Person, right: Right) -> bool | Refusal:
        try:
            return await self._reviews.has(person, right)
        except AccessReviewUnavailableError as error:
            return Refusal(ReasonCode.ACCESS_REVIEW_UNAVAILABLE, str(error))


def named(person: Person) -> str:
    """How logs, Events and objects name a person."""
    return f"{USER}{person.username}"


NO_NAMESPACE: Final = Refusal(
    ReasonCode.ROLE_DENIED,
    "without a role reservations are shown of one namespace: give it (--namespace), or get"
    " the ClusterRole gpuwarden-inspector",
)
