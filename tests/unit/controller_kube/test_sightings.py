"""Own answers and the copy, in the orders that matter."""

import pytest

from controller.kube.reflection import Change, Entry, Sightings

V1, V2, V3 = (Entry(f"v{n}", "uid", n) for n in (1, 2, 3))


@pytest.fixture
def sightings() -> Sightings[int]:
    made: Sightings[int] = Sightings()
    assert made.listed({"a": V1}, asked_ns=0) == (["a"], False)
    return made


def told(sightings: Sightings[int], entry: Entry[int] | None) -> list[str]:
    return sightings.told((Change("a", None, entry),))


class TestOwnWrites:
    def test_what_the_watch_still_has_to_tell_is_older(self, sightings: Sightings[int]) -> None:
        inquiry = sightings.inquire("a")
        assert sightings.answered(inquiry, V3, 10)
        assert told(sightings, V2) == []
        assert sightings.known["a"] == V3
        assert told(sightings, V3) == []
        newer = Entry("v4", "uid", 4)
        assert told(sightings, newer) == ["a"]

    def test_an_answer_that_the_watch_overtook_is_older(self, sightings: Sightings[int]) -> None:
        inquiry = sightings.inquire("a")
        told(sightings, V2)
        told(sightings, V3)
        assert sightings.answered(inquiry, V2, 10)
        assert sightings.known["a"] == V3

    def test_a_read_of_what_was_known_already_is_older(self, sightings: Sightings[int]) -> None:
        inquiry = sightings.inquire("a")
        told(sightings, V2)
        assert sightings.answered(inquiry, V1, 10)
        assert sightings.known["a"] == V2

    def test_an_answer_that_a_list_overtook_proves_nothing(self, sightings: Sightings[int]) -> None:
        inquiry = sightings.inquire("a")
        sightings.listed({"a": V3}, asked_ns=5)
        assert not sightings.answered(inquiry, V2, 10)
        assert sightings.known["a"] == V3


class TestLists:
    def test_one_asked_for_before_an_answer_leaves_it_and_wants_another(
        self, sightings: Sightings[int]
    ) -> None:
        sightings.answered(sightings.inquire("a"), V2, 10)
        assert sightings.listed({"a": V1}, asked_ns=10) == ([], True)
        assert sightings.known["a"] == V2
        assert sightings.listed({"a": V3}, asked_ns=11) == (["a"], False)
        assert sightings.known["a"] == V3

    def test_one_that_holds_the_answer_is_sure(self, sightings: Sightings[int]) -> None:
        sightings.answered(sightings.inquire("a"), V2, 10)
        assert sightings.listed({"a": V2}, asked_ns=10) == ([], False)
        assert told(sightings, V3) == ["a"]


class TestGone:
    def test_what_is_gone_is_missing_and_still_known(self, sightings: Sightings[int]) -> None:
        assert told(sightings, None) == []
        assert sightings.missing == {"a"}
        assert sightings.known["a"] == V1
        assert told(sightings, V2) == ["a"]
        assert sightings.missing == set()

    def test_a_list_finds_what_is_gone(self, sightings: Sightings[int]) -> None:
        assert sightings.listed({}, asked_ns=5) == ([], False)
        assert sightings.missing == {"a"}

    def test_what_was_never_known_cannot_be_missing(self) -> None:
        sightings: Sightings[int] = Sightings()
        told(sightings, None)
        assert sightings.missing == set()

    def test_a_request_without_an_answer_leaves_nothing(self, sightings: Sightings[int]) -> None:
        inquiry = sightings.inquire("a")
        sightings.unanswered(inquiry)
        told(sightings, V2)
        assert inquiry.seen == {"v1"}
