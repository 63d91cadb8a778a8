"""Own answers and the copy, in the orders that matter."""

import asyncio

import pytest

from controller.kube.api.cache import Change
from controller.kube.api.resources import Entry
from controller.kube.objects.store import MutationCache

V1, V2, V3 = (Entry(f"v{n}", "uid", n) for n in (1, 2, 3))


@pytest.fixture
def objects() -> MutationCache[int]:
    made: MutationCache[int] = MutationCache()
    assert made.take_list({"a": V1}, asked_ns=0) == (["a"], False)
    return made


def answered(objects: MutationCache[int], entry: Entry[int]) -> bool:
    with objects.begin("a") as request:
        return objects.complete(request, entry, 10)


def missed(objects: MutationCache[int]) -> bool:
    with objects.begin("a") as request:
        return objects.miss(request)


def told(objects: MutationCache[int], entry: Entry[int] | None) -> list[str]:
    return objects.take_changes((Change("a", None, entry),))


class TestOwnWrites:
    def test_what_the_watch_still_has_to_tell_is_older(self, objects: MutationCache[int]) -> None:
        assert answered(objects, V3)
        assert told(objects, V2) == []
        assert objects.known["a"] == V3
        assert told(objects, V3) == []
        newer = Entry("v4", "uid", 4)
        assert told(objects, newer) == ["a"]

    def test_an_answer_that_the_watch_overtook_is_older(self, objects: MutationCache[int]) -> None:
        with objects.begin("a") as request:
            told(objects, V2)
            told(objects, V3)
            assert objects.complete(request, V2, 10)
        assert objects.known["a"] == V3

    def test_a_read_of_what_was_known_already_is_older(self, objects: MutationCache[int]) -> None:
        with objects.begin("a") as request:
            told(objects, V2)
            assert objects.complete(request, V1, 10)
        assert objects.known["a"] == V2

    def test_an_answer_that_a_list_overtook_proves_nothing(
        self, objects: MutationCache[int]
    ) -> None:
        with objects.begin("a") as request:
            objects.take_list({"a": V3}, asked_ns=5)
            assert not objects.complete(request, V2, 10)
        assert objects.known["a"] == V3


class TestLists:
    def test_one_asked_for_before_an_answer_leaves_it_and_wants_another(
        self, objects: MutationCache[int]
    ) -> None:
        assert answered(objects, V2)
        assert objects.take_list({"a": V1}, asked_ns=10) == ([], True)
        assert objects.known["a"] == V2
        assert objects.take_list({"a": V3}, asked_ns=11) == (["a"], False)
        assert objects.known["a"] == V3

    def test_one_that_holds_the_answer_is_sure(self, objects: MutationCache[int]) -> None:
        assert answered(objects, V2)
        assert objects.take_list({"a": V2}, asked_ns=10) == ([], False)
        assert told(objects, V3) == ["a"]


class TestGone:
    def test_what_is_gone_is_missing_and_still_known(self, objects: MutationCache[int]) -> None:
        assert told(objects, None) == []
        assert objects.missing == {"a"}
        assert objects.known["a"] == V1
        assert told(objects, V2) == ["a"]
        assert objects.missing == set()

    def test_a_list_finds_what_is_gone(self, objects: MutationCache[int]) -> None:
        assert objects.take_list({}, asked_ns=5) == ([], False)
        assert objects.missing == {"a"}

    def test_what_was_never_known_cannot_be_missing(self) -> None:
        objects: MutationCache[int] = MutationCache()
        told(objects, None)
        assert objects.missing == set()

    @pytest.mark.parametrize("by_list", [False, True])
    def test_what_had_come_to_its_end_is_forgotten(self, *, by_list: bool) -> None:
        objects: MutationCache[int] = MutationCache(lambda value: value == 2)
        objects.take_list({"a": V1, "b": V2}, asked_ns=0)
        if by_list:
            objects.take_list({}, asked_ns=5)
        else:
            objects.take_changes((Change("a", None, None), Change("b", None, None)))
        assert (objects.known, objects.missing) == ({"a": V1}, {"a"})

    def test_not_while_something_older_can_be_told_of_it(self) -> None:
        """Else a reservation that has ended would be in force once more."""
        objects: MutationCache[int] = MutationCache(lambda value: value == 2)
        objects.take_list({"a": V1}, asked_ns=0)
        assert answered(objects, V2)
        assert missed(objects)
        assert told(objects, V1) == []
        assert objects.known["a"] == V2
        told(objects, V2)
        told(objects, None)
        assert (objects.known, objects.missing) == ({}, set())

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, asyncio.CancelledError])
    def test_a_request_without_an_answer_leaves_nothing(
        self, objects: MutationCache[int], error: type[BaseException]
    ) -> None:
        with pytest.raises(error), objects.begin("a") as request:
            raise error
        told(objects, V2)
        assert request.seen == {"v1"}
        assert objects._pending == set()


class TestNothingFound:
    """An answer that finds no object."""

    def test_where_objects_have_no_end_it_was_removed(self, objects: MutationCache[int]) -> None:
        assert missed(objects)
        assert (objects.known, objects.missing) == ({"a": V1}, {"a"})

    def test_where_it_may_have_ended_since_the_watch_decides(self) -> None:
        """An end in two writes: 1 lives, 2 is over."""
        objects: MutationCache[int] = MutationCache(lambda value: value == 2)
        objects.take_list({"a": V1}, asked_ns=0)
        assert not missed(objects)
        assert (objects.known, objects.missing) == ({"a": V1}, set())
        told(objects, V2)
        assert missed(objects)
        assert (objects.known, objects.missing) == ({}, set())

    @pytest.mark.parametrize("by_list", [False, True])
    def test_what_was_removed_before_its_end_is_missing(self, *, by_list: bool) -> None:
        objects: MutationCache[int] = MutationCache(lambda value: value == 2)
        objects.take_list({"a": V1}, asked_ns=0)
        assert not missed(objects)
        if by_list:
            objects.take_list({}, asked_ns=5)
        else:
            told(objects, None)
        assert missed(objects)
        assert (objects.known, objects.missing) == ({"a": V1}, {"a"})

    @pytest.mark.parametrize("shown", [V2, None])
    @pytest.mark.parametrize("by_list", [False, True])
    def test_what_the_cache_shows_meanwhile_may_be_newer(
        self, objects: MutationCache[int], *, by_list: bool, shown: Entry[int] | None
    ) -> None:
        with objects.begin("a") as request:
            if by_list:
                objects.take_list({} if shown is None else {"a": shown}, asked_ns=5)
            else:
                told(objects, shown)
            assert not objects.miss(request)
        assert objects.known == {"a": shown or V1}
        assert objects.missing == ({"a"} if shown is None else set())

    def test_what_was_never_known_is_not_there(self) -> None:
        objects: MutationCache[int] = MutationCache(lambda value: value == 2)
        assert missed(objects)
        assert (objects.known, objects.missing) == ({}, set())
