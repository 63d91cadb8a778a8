"""As whom a person calls, which rule is missing, and whose pods a tenant may ask about."""

import asyncio

import pytest

from controller.access import ALLOWED_CALLERS, Caller, CallerKind, Person
from controller.people.reviews import (
    AccessReviews,
    AccessReviewUnavailableError,
    ReviewLimits,
)
from controller.people.rights import (
    CLUSTER_ROLES,
    INSPECT,
    OPERATE,
    Right,
    is_for_tenants,
    read_pods,
    review_of,
    ways_to,
)
from controller.people.roles import Roles, named
from gpuwarden.reasons import ReasonCode, Refusal
from tests.fakes.clock import FakeClock

JANE = Person("jane", ("team-a",), "uid-1", (("k", ("v",)),))
FLEET = "/gpuwarden.wire.v1.FleetService"
QUARANTINE = "/gpuwarden.wire.v1.OperatorService/QuarantineNode"
RESERVATIONS = "/gpuwarden.wire.v1.PlacementService/ListReservations"


class Reviewer:
    def __init__(self, *rights: Right) -> None:
        self.rights = set(rights)
        self.asked: list[tuple[Person, Right]] = []
        self.is_silent = False
        self.waits = asyncio.Event()
        self.waits.set()

    async def review(self, person: Person, right: Right) -> bool:
        self.asked.append((person, right))
        await self.waits.wait()
        if self.is_silent:
            raise AccessReviewUnavailableError("the API server did not answer")
        return right in self.rights


class World:
    def __init__(self, *rights: Right, **limits: int) -> None:
        self.clock = FakeClock()
        self.reviewer = Reviewer(*rights)
        self.told: list[str] = []
        self.reviews = AccessReviews(
            self.reviewer,
            boottime_ns=self.clock.boottime_ns,
            reviewed=self.told.append,
            limits=ReviewLimits(**limits),
        )
        self.roles = Roles(self.reviews)


# --- which right opens which method


def test_each_method_for_people_is_opened_by_the_right_of_its_role() -> None:
    found = {x: [(w.right, w.kind) for w in ways_to(x)] for x in ALLOWED_CALLERS}
    operators = {x for x, ways in found.items() if ways == [(OPERATE, CallerKind.OPERATOR)]}
    readers = {x for x, ways in found.items() if ways == [(INSPECT, CallerKind.INSPECTOR)]}
    assert {x for x in ALLOWED_CALLERS if "/gpuwarden.wire.v1.OperatorService/" in x} == operators
    assert {x for x, ways in found.items() if not ways} == {
        "/gpuwarden.wire.v1.AttestationService/Attest"
    }
    assert readers == set(ALLOWED_CALLERS) - operators - {
        "/gpuwarden.wire.v1.AttestationService/Attest"
    }
    assert ways_to("/other/Method") == ()


def test_three_methods_are_for_tenants() -> None:
    assert {x for x in ALLOWED_CALLERS if is_for_tenants(x)} == {
        f"{FLEET}/FitPod",
        RESERVATIONS,
        "/gpuwarden.wire.v1.PlacementService/ExplainPod",
    }


def test_what_the_api_server_is_asked() -> None:
    assert review_of(JANE, INSPECT) == {
        "user": "jane",
        "groups": ["team-a"],
        "uid": "uid-1",
        "extra": {"k": ["v"]},
        "resourceAttributes": {"verb": "inspect", "group": "gpuwarden.dev", "resource": "fleet"},
    }
    assert review_of(JANE, read_pods("team-a", "train-0"))["resourceAttributes"] == {
        "verb": "get",
        "resource": "pods",
        "namespace": "team-a",
        "name": "train-0",
    }
    assert "name" not in str(review_of(JANE, read_pods("team-a"))).replace("namespace", "")
    assert CLUSTER_ROLES == {INSPECT: "gpuwarden-inspector", OPERATE: "gpuwarden-operator"}


# --- roles


async def test_a_person_has_the_role_that_the_method_needs() -> None:
    both = World(INSPECT, OPERATE)
    assert await both.roles.kind_for(JANE, f"{FLEET}/ListNodes") is CallerKind.INSPECTOR
    assert await both.roles.kind_for(JANE, QUARANTINE) is CallerKind.OPERATOR
    assert [right for _, right in both.reviewer.asked] == [INSPECT, OPERATE]


@pytest.mark.parametrize(
    ("rights", "method", "rule"),
    [
        ((), f"{FLEET}/ListNodes", '"inspect" on "fleet" in API group gpuwarden.dev'),
        ((INSPECT,), QUARANTINE, '"operate" on "fleet" in API group gpuwarden.dev'),
        ((OPERATE,), f"{FLEET}/ListNodes", "(ClusterRole gpuwarden-inspector)"),
        ((OPERATE, INSPECT), "/gpuwarden.wire.v1.AttestationService/Attest", "not for people"),
        ((OPERATE, INSPECT), "/other/Method", "not for people"),
    ],
)
async def test_a_refusal_names_the_rule_that_is_missing(
    rights: tuple[Right, ...], method: str, rule: str
) -> None:
    found = await World(*rights).roles.kind_for(JANE, method)
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.ROLE_DENIED
    assert found.detail.startswith(f"jane may not call {method}: ")
    assert rule in found.detail


async def test_without_a_role_a_person_is_a_tenant_where_tenants_may_ask() -> None:
    assert await World().roles.kind_for(JANE, RESERVATIONS) is CallerKind.TENANT
    assert await World(INSPECT).roles.kind_for(JANE, RESERVATIONS) is CallerKind.INSPECTOR


@pytest.mark.reason("ACCESS_REVIEW_UNAVAILABLE")
async def test_an_api_server_that_does_not_answer_gives_no_role() -> None:
    world = World(INSPECT)
    world.reviewer.is_silent = True
    unavailable = Refusal(ReasonCode.ACCESS_REVIEW_UNAVAILABLE, "the API server did not answer")
    assert await world.roles.kind_for(JANE, f"{FLEET}/ListNodes") == unavailable
    assert await world.roles.kind_for(JANE, RESERVATIONS) == unavailable
    assert await world.roles.about_pods(tenant(), "team-a") == unavailable


# --- tenants


def tenant(kind: CallerKind = CallerKind.TENANT, person: Person | None = JANE) -> Caller:
    return Caller(kind, "user jane", None, person)


async def test_a_tenant_asks_about_the_pods_that_they_may_read() -> None:
    world = World(read_pods("team-a"), read_pods("team-b", "train-0"))
    assert await world.roles.about_pods(tenant(), "team-a") is None
    assert await world.roles.about_pods(tenant(), "team-b", "train-0") is None
    found = await world.roles.about_pods(tenant(), "team-b")
    assert found is not None
    assert found.code is ReasonCode.ROLE_DENIED
    assert 'jane needs verb "get" on "pods" in namespace team-b, or verb "inspect"' in found.detail


async def test_others_are_asked_nothing() -> None:
    world = World()
    for caller in (tenant(CallerKind.INSPECTOR), Caller(CallerKind.LOCAL, "local", None)):
        assert await world.roles.about_pods(caller, "team-b") is None
    assert world.reviewer.asked == []


def test_a_name_cannot_be_read_as_another_kind_of_caller() -> None:
    assert named(Person("local uid 0")) == "user local uid 0"


# --- what is kept


async def test_rights_are_kept_for_a_moment_and_not_longer() -> None:
    world = World(INSPECT)
    assert [await world.reviews.has(JANE, x) for x in (INSPECT, OPERATE) * 2] == [
        True,
        False,
        True,
        False,
    ]
    assert world.told == ["accepted", "refused", "kept", "kept"]
    world.reviewer.rights = {OPERATE}
    world.clock.advance(5)
    assert [await world.reviews.has(JANE, x) for x in (INSPECT, OPERATE)] == [True, True]
    world.clock.advance(5)
    assert not await world.reviews.has(JANE, INSPECT)


async def test_an_answer_is_for_this_person_with_these_groups() -> None:
    world = World(INSPECT)
    for person in (JANE, Person("jane"), Person("jane", ("team-a",)), Person("joe", JANE.groups)):
        await world.reviews.has(person, INSPECT)
    assert world.told == ["accepted"] * 4


async def test_too_many_questions_at_once_are_refused() -> None:
    world = World(INSPECT, at_once=0)
    with pytest.raises(AccessReviewUnavailableError, match="too many rights"):
        await world.reviews.has(JANE, INSPECT)
    assert world.told == ["busy"]


async def test_tenants_take_nothing_from_those_who_have_a_role() -> None:
    """Neither what is known of them, nor their questions at a time."""
    world = World(INSPECT, *(read_pods("team-b", f"pod-{x}") for x in range(3)), kept=2, at_once=2)
    await world.reviews.has(JANE, INSPECT)
    for number in range(3):
        assert await world.reviews.has(Person("joe"), read_pods("team-b", f"pod-{number}"))
    world.clock.advance(10)
    world.reviewer.waits.clear()
    tenants = [
        asyncio.create_task(world.reviews.has(Person(name), right))
        for name in ("joe", "jack")
        for right in (read_pods("team-c"), INSPECT)
    ]
    await asyncio.sleep(0)
    with pytest.raises(AccessReviewUnavailableError, match="too many rights"):
        await world.reviews.has(Person("jim"), INSPECT)
    inspector = asyncio.create_task(world.reviews.has(JANE, INSPECT))
    await asyncio.sleep(0)
    world.reviewer.waits.set()
    assert await inspector
    assert await asyncio.gather(*tenants) == [False, True, False, True]
