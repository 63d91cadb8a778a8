"""The copy of a collection: what each step does, and when it is fresh."""

import pytest

from controller.kube.reflection import (
    LONGEST_PAUSE_S,
    Change,
    Entry,
    Event,
    EventKind,
    Reflection,
    WantList,
    WantWatch,
)
from controller.kube.resources import ApiError

A1 = Entry("v1", "uid-a", "first")
A2 = Entry("v2", "uid-a", "second")
B1 = Entry("v3", "uid-b", "other")


@pytest.fixture
def copy() -> Reflection[str]:
    made: Reflection[str] = Reflection()
    made.listed({"a": A1}, "v1", 100)
    return made


class TestLists:
    def test_it_begins_with_a_list_and_goes_on_with_a_watch(self) -> None:
        copy: Reflection[str] = Reflection()
        assert copy.wanted() == WantList()
        assert copy.fresh_at_ns is None
        assert copy.listed({"a": A1}, "v1", 100) == (Change("a", None, A1),)
        assert copy.wanted() == WantWatch("v1")
        assert copy.fresh_at_ns == 100

    def test_a_list_without_a_version_counts_for_nothing(self, copy: Reflection[str]) -> None:
        copy.relist()
        assert copy.listed({}, "", 200) == ()
        assert dict(copy.objects) == {"a": A1}
        assert copy.fresh_at_ns == 100
        assert copy.wanted() == WantList()
        assert copy.pause_s(0.0) > 0

    def test_a_list_that_is_wanted_stays_wanted_whatever_the_watch_says(
        self, copy: Reflection[str]
    ) -> None:
        copy.relist()
        copy.event(Event(EventKind.APPLIED, "v2", "a", A2), 200)
        assert copy.wanted() == WantList()
        copy.listed({"a": A2}, "v2", 300)
        assert copy.wanted() == WantWatch("v2")

    def test_a_list_finds_what_is_gone_new_and_made_again(self, copy: Reflection[str]) -> None:
        again = Entry("v9", "uid-2", "again")
        assert copy.listed({"a": again}, "v9", 300) == (
            Change("a", A1, None),
            Change("a", None, again),
        )
        assert copy.listed({"b": B1}, "v9", 400) == (
            Change("a", again, None),
            Change("b", None, B1),
        )

    def test_nothing_new_keeps_the_very_same_objects(self, copy: Reflection[str]) -> None:
        before = copy.objects
        assert copy.listed({"a": Entry("v1", "uid-a", "first")}, "v7", 300) == ()
        assert copy.objects is before
        assert copy.fresh_at_ns == 300

    def test_while_it_is_listed_again_nothing_vanishes(self, copy: Reflection[str]) -> None:
        copy.failed(ApiError("too old", 410))
        assert copy.wanted() == WantList()
        assert dict(copy.objects) == {"a": A1}


class TestWatches:
    def test_events_in_order(self, copy: Reflection[str]) -> None:
        assert copy.event(Event(EventKind.APPLIED, "v2", "a", A2), 200) == (Change("a", A1, A2),)
        assert copy.event(Event(EventKind.APPLIED, "v3", "b", B1), 300) == (Change("b", None, B1),)
        assert copy.event(Event(EventKind.DELETED, "v4", "a", A2), 400) == (Change("a", A2, None),)
        assert dict(copy.objects) == {"b": B1}
        assert copy.wanted() == WantWatch("v4")
        assert copy.fresh_at_ns == 400

    def test_what_says_nothing_new_changes_nothing(self, copy: Reflection[str]) -> None:
        assert copy.event(Event(EventKind.APPLIED, "v1", "a", A1), 200) == ()
        assert copy.event(Event(EventKind.DELETED, "v2", "z", B1), 300) == ()
        assert copy.event(Event(EventKind.BOOKMARK, "v8"), 400) == ()
        assert copy.wanted() == WantWatch("v8")
        assert copy.fresh_at_ns == 400

    def test_an_event_without_a_version_cannot_be_followed(self, copy: Reflection[str]) -> None:
        with pytest.raises(ApiError, match="without a resourceVersion"):
            copy.event(Event(EventKind.BOOKMARK, ""), 200)
        assert copy.wanted() == WantWatch("v1")

    def test_freshness_never_goes_back(self, copy: Reflection[str]) -> None:
        copy.event(Event(EventKind.BOOKMARK, "v2"), 900)
        copy.listed({"a": A1}, "v3", 500)
        assert copy.fresh_at_ns == 900


class TestProof:
    def test_the_newest_version_proves_the_copy(self, copy: Reflection[str]) -> None:
        copy.proven("v1", 700)
        assert copy.fresh_at_ns == 700

    @pytest.mark.parametrize("version", ["v2", ""])
    def test_another_version_proves_nothing(self, copy: Reflection[str], version: str) -> None:
        copy.proven(version, 700)
        copy.relist()
        copy.proven("", 700)
        assert copy.fresh_at_ns == 100


class TestFailures:
    @pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503])
    def test_a_watch_is_asked_for_again_where_that_may_help(
        self, copy: Reflection[str], status: int
    ) -> None:
        copy.failed(ApiError("no", status))
        assert copy.wanted() == WantWatch("v1")
        assert copy.trouble == "no"

    @pytest.mark.parametrize("status", [400, 404, 410, 422])
    def test_else_everything_is_listed(self, copy: Reflection[str], status: int) -> None:
        copy.failed(ApiError("no", status))
        assert copy.wanted() == WantList()

    def test_watches_that_never_say_a_word_give_way_to_a_list(self, copy: Reflection[str]) -> None:
        for _ in range(2):
            copy.failed(ApiError("too large resource version", 504))
        assert copy.wanted() == WantWatch("v1")
        copy.failed(ApiError("too large resource version", 504))
        assert copy.wanted() == WantList()

    def test_pauses_grow_to_a_limit_and_end_with_the_first_word(
        self, copy: Reflection[str]
    ) -> None:
        assert copy.pause_s(0.5) == 0.0
        pauses = []
        for _ in range(12):
            copy.failed(ApiError("no"))
            pauses.append(copy.pause_s(0.0))
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (0.25, LONGEST_PAUSE_S / 2)
        assert copy.pause_s(0.999) <= LONGEST_PAUSE_S
        copy.listed({}, "v5", 900)
        assert copy.pause_s(0.5) == 0.0
        assert copy.trouble == ""

    def test_the_server_says_how_long_to_stay_away(self, copy: Reflection[str]) -> None:
        copy.failed(ApiError("slow down", 429, retry_after_s=17.0))
        assert copy.pause_s(0.0) == 17.0
