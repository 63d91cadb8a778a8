"""The cache of a collection: what each step does, and when it is fresh."""

import pytest

from controller.kube.api.cache import LONGEST_PAUSE_S, Cache, Change, WantList, WantWatch
from controller.kube.api.resources import ApiError, Entry, EventKind, WatchEvent

A1 = Entry("v1", "uid-a", "first")
A2 = Entry("v2", "uid-a", "second")
B1 = Entry("v3", "uid-b", "other")


@pytest.fixture
def cache() -> Cache[str]:
    made: Cache[str] = Cache()
    made.take_list({"a": A1}, "v1", 100)
    return made


class TestLists:
    def test_it_begins_with_a_list_and_goes_on_with_a_watch(self) -> None:
        cache: Cache[str] = Cache()
        assert cache.next_request() == WantList()
        assert cache.fresh_at_ns is None
        assert cache.take_list({"a": A1}, "v1", 100) == (Change("a", None, A1),)
        assert cache.next_request() == WantWatch("v1")
        assert cache.fresh_at_ns == 100

    def test_a_list_without_a_version_counts_for_nothing(self, cache: Cache[str]) -> None:
        cache.relist()
        assert cache.take_list({}, "", 200) == ()
        assert dict(cache.objects) == {"a": A1}
        assert cache.fresh_at_ns == 100
        assert cache.next_request() == WantList()
        assert cache.pause_s(0.0) > 0

    def test_a_list_that_is_wanted_stays_wanted_whatever_the_watch_says(
        self, cache: Cache[str]
    ) -> None:
        cache.relist()
        cache.take_event(WatchEvent(EventKind.APPLIED, "v2", "a", A2), 200)
        assert cache.next_request() == WantList()
        cache.take_list({"a": A2}, "v2", 300)
        assert cache.next_request() == WantWatch("v2")

    def test_a_list_finds_what_is_gone_new_and_made_again(self, cache: Cache[str]) -> None:
        again = Entry("v9", "uid-2", "again")
        assert cache.take_list({"a": again}, "v9", 300) == (
            Change("a", A1, None),
            Change("a", None, again),
        )
        assert cache.take_list({"b": B1}, "v9", 400) == (
            Change("a", again, None),
            Change("b", None, B1),
        )

    def test_nothing_new_keeps_the_very_same_objects(self, cache: Cache[str]) -> None:
        before = cache.objects
        assert cache.take_list({"a": Entry("v1", "uid-a", "first")}, "v7", 300) == ()
        assert cache.objects is before
        assert cache.fresh_at_ns == 300

    def test_while_it_is_listed_again_nothing_vanishes(self, cache: Cache[str]) -> None:
        cache.record_failure(ApiError("too old", 410))
        assert cache.next_request() == WantList()
        assert dict(cache.objects) == {"a": A1}


class TestWatches:
    def test_events_in_order(self, cache: Cache[str]) -> None:
        assert cache.take_event(WatchEvent(EventKind.APPLIED, "v2", "a", A2), 200) == (
            Change("a", A1, A2),
        )
        assert cache.take_event(WatchEvent(EventKind.APPLIED, "v3", "b", B1), 300) == (
            Change("b", None, B1),
        )
        assert cache.take_event(WatchEvent(EventKind.DELETED, "v4", "a", A2), 400) == (
            Change("a", A2, None),
        )
        assert dict(cache.objects) == {"b": B1}
        assert cache.next_request() == WantWatch("v4")
        assert cache.fresh_at_ns == 400

    def test_what_says_nothing_new_changes_nothing(self, cache: Cache[str]) -> None:
        assert cache.take_event(WatchEvent(EventKind.APPLIED, "v1", "a", A1), 200) == ()
        assert cache.take_event(WatchEvent(EventKind.DELETED, "v2", "z", B1), 300) == ()
        assert cache.take_event(WatchEvent(EventKind.BOOKMARK, "v8"), 400) == ()
        assert cache.next_request() == WantWatch("v8")
        assert cache.fresh_at_ns == 400

    def test_an_event_without_a_version_cannot_be_followed(self, cache: Cache[str]) -> None:
        with pytest.raises(ApiError, match="without a resourceVersion"):
            cache.take_event(WatchEvent(EventKind.BOOKMARK, ""), 200)
        assert cache.next_request() == WantWatch("v1")

    def test_freshness_never_goes_back(self, cache: Cache[str]) -> None:
        cache.take_event(WatchEvent(EventKind.BOOKMARK, "v2"), 900)
        cache.take_list({"a": A1}, "v3", 500)
        assert cache.fresh_at_ns == 900


class TestProof:
    def test_the_newest_version_proves_the_copy(self, cache: Cache[str]) -> None:
        cache.confirm("v1", 700)
        assert cache.fresh_at_ns == 700

    @pytest.mark.parametrize("version", ["v2", ""])
    def test_another_version_proves_nothing(self, cache: Cache[str], version: str) -> None:
        cache.confirm(version, 700)
        cache.relist()
        cache.confirm("", 700)
        assert cache.fresh_at_ns == 100


class TestFailures:
    @pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503])
    def test_a_watch_is_asked_for_again_where_that_may_help(
        self, cache: Cache[str], status: int
    ) -> None:
        cache.record_failure(ApiError("no", status))
        assert cache.next_request() == WantWatch("v1")
        assert cache.trouble == "no"

    @pytest.mark.parametrize("status", [400, 404, 410, 422])
    def test_else_everything_is_listed(self, cache: Cache[str], status: int) -> None:
        cache.record_failure(ApiError("no", status))
        assert cache.next_request() == WantList()

    def test_silent_watches_are_replaced_by_a_list(self, cache: Cache[str]) -> None:
        for _ in range(2):
            cache.record_failure(ApiError("too large resource version", 504))
        assert cache.next_request() == WantWatch("v1")
        cache.record_failure(ApiError("too large resource version", 504))
        assert cache.next_request() == WantList()

    def test_pauses_grow_to_a_limit_and_end_with_the_first_answer(self, cache: Cache[str]) -> None:
        assert cache.pause_s(0.5) == 0.0
        pauses = []
        for _ in range(12):
            cache.record_failure(ApiError("no"))
            pauses.append(cache.pause_s(0.0))
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (0.25, LONGEST_PAUSE_S / 2)
        assert cache.pause_s(0.999) <= LONGEST_PAUSE_S
        cache.take_list({}, "v5", 900)
        assert cache.pause_s(0.5) == 0.0
        assert cache.trouble == ""

    def test_the_server_says_how_long_to_stay_away(self, cache: Cache[str]) -> None:
        cache.record_failure(ApiError("slow down", 429, retry_after_s=17.0))
        assert cache.pause_s(0.0) == 17.0
