"""What a candidate does with a Lease."""

import json

import pytest

from controller.kube.api.leader_election import Candidate, Create, Lease, Update
from controller.kube.api.resources import ApiError

_SECOND = 1_000_000_000
NOW = 5_000 * _SECOND
WALL = 1_800_000_000 * _SECOND


def lease(
    holder: str | None, *, renewed: str = "r1", duration: int = 15, version: str = "v"
) -> Lease:
    spec = {
        "holderIdentity": holder,
        "renewTime": renewed,
        "acquireTime": "a1",
        "leaseDurationSeconds": duration,
        "leaseTransitions": 4,
    }
    body = {"metadata": {"resourceVersion": version, "name": "l"}, "spec": spec}
    return Lease.read(json.dumps(body).encode())


@pytest.fixture
def me() -> Candidate:
    return Candidate("me")


def test_without_a_lease_it_makes_one(me: Candidate) -> None:
    decided = me.decide(None, NOW, WALL)
    assert decided == Create(
        {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": "2027-01-15T08:00:00.000000Z",
            "renewTime": "2027-01-15T08:00:00.000000Z",
            "leaseTransitions": 0,
        }
    )
    assert not me.is_leader(NOW)
    me.wrote(NOW)
    assert me.is_leader(NOW)


def test_it_renews_its_own_and_keeps_since_when(me: Candidate) -> None:
    decided = me.decide(lease("me"), NOW, WALL)
    assert isinstance(decided, Update)
    assert decided.version == "v"
    assert decided.spec["acquireTime"] == "a1"
    assert decided.spec["leaseTransitions"] == 4


def test_another_holder_is_waited_for_by_our_own_clock(me: Candidate) -> None:
    assert me.decide(lease("you"), NOW, WALL) is None
    assert me.decide(lease("you"), NOW + 14 * _SECOND, WALL) is None
    decided = me.decide(lease("you"), NOW + 15 * _SECOND, WALL)
    assert isinstance(decided, Update)
    assert decided.version == "v"
    assert decided.spec["leaseTransitions"] == 5
    assert decided.spec["acquireTime"] != "a1"


def test_a_renewal_begins_the_wait_again_and_a_wrong_clock_does_not_matter(me: Candidate) -> None:
    """Not even one that stands still and renews with the same time."""
    assert me.decide(lease("you", renewed="1970"), NOW, WALL) is None
    renewed = lease("you", renewed="1970", version="v2")
    assert me.decide(renewed, NOW + 15 * _SECOND, WALL) is None
    assert me.decide(renewed, NOW + 29 * _SECOND, WALL) is None
    assert me.decide(renewed, NOW + 30 * _SECOND, WALL) is not None


def test_a_longer_lease_of_another_is_respected(me: Candidate) -> None:
    assert me.decide(lease("you", duration=60), NOW, WALL) is None
    assert me.decide(lease("you", duration=60), NOW + 59 * _SECOND, WALL) is None
    assert me.decide(lease("you", duration=60), NOW + 60 * _SECOND, WALL) is not None


@pytest.mark.parametrize("holder", ["", None])
def test_one_that_was_given_back_is_taken_at_once(me: Candidate, holder: str | None) -> None:
    assert me.decide(lease(holder), NOW, WALL) is not None


def test_it_stops_leading_before_others_may_begin(me: Candidate) -> None:
    me.decide(lease("me"), NOW, WALL)
    me.wrote(NOW)
    assert me.is_leader(NOW + 10 * _SECOND - 1)
    assert not me.is_leader(NOW + 10 * _SECOND)


def test_it_stops_at_once_when_another_holds_it_or_wrote_first(me: Candidate) -> None:
    me.wrote(NOW)
    me.decide(lease("you"), NOW, WALL)
    assert not me.is_leader(NOW)
    me.wrote(NOW)
    me.lost()
    assert not me.is_leader(NOW)


def test_it_gives_back_only_its_own(me: Candidate) -> None:
    me.wrote(NOW)
    update = me.release(lease("me"), WALL)
    assert update is not None
    assert update.spec["holderIdentity"] == ""
    assert not me.is_leader(NOW)
    assert me.release(lease("you"), WALL) is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"metadata":{},"spec":{"holderIdentity":7}}'])
def test_what_is_no_lease_is_an_error(body: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        Lease.read(body)
