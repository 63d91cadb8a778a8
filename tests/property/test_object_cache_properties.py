"""Own writes and the watch together never take an object back in time, and end in agreement.

Model: a server with a numbered history per object; requests of ours that take effect at one
moment and are answered at a later one; a watch that lags; lists asked for and taken later.
"""

from contextlib import ExitStack

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.kube.api.cache import Change
from controller.kube.api.resources import Entry
from controller.kube.objects.store import MutationCache, PendingRequest
from sandbox.kube.objects import version_of

KEYS = st.sampled_from(["a", "a", "b"])


def is_over(value: int) -> bool:
    """Half of all values, so that an object comes to its end, and another one follows."""
    return value % 2 == 0


class Writing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.now = 0
        self.objects: dict[str, Entry[int]] = {}
        self.order: dict[str, int] = {}
        self.history: list[tuple[int, str, Entry[int] | None]] = []
        self.watched = 0
        self.cache: dict[str, Entry[int]] = {}
        """What the cache holds: the watch and lists alone."""
        self.mutations: MutationCache[int] = MutationCache(is_over)
        self.answers: list[tuple[PendingRequest, Entry[int] | None, ExitStack]] = []
        """On their way; None where there is no object."""
        self.removed: dict[str, set[str]] = {}
        """Versions that were the last of an object which somebody removed, by key."""
        self.unlisted: set[str] = set()
        """Keys that a list did not have: how they went nobody saw."""
        self.list_on_its_way: tuple[int, int, dict[str, Entry[int]]] | None = None
        self.is_list_wanted = False
        self.newest_known: dict[str, int] = {}

    def write(self, key: str) -> Entry[int]:
        self.number += 1
        entry = Entry(version_of(self.number), "uid", self.number)
        self.order[entry.version] = self.number
        self.objects[key] = entry
        self.history.append((self.number, key, entry))
        return entry

    @rule(key=KEYS)
    def others_write(self, key: str) -> None:
        self.write(key)

    @rule(key=KEYS)
    def others_delete(self, key: str) -> None:
        if key in self.objects:
            self.number += 1
            self.removed.setdefault(key, set()).add(self.objects.pop(key).version)
            self.history.append((self.number, key, None))

    @rule(key=KEYS, we_look=st.booleans())
    def others_end(self, key: str, *, we_look: bool) -> None:
        """In two writes, as a reservation ends."""
        if key in self.objects:
            while not is_over(self.write(key).value):
                pass
            self.others_delete(key)
        if we_look:
            self.we_ask(key, writes=False)

    @rule(key=KEYS, writes=st.booleans())
    def we_ask(self, key: str, *, writes: bool) -> None:
        """One at a time per object, as the store does."""
        if any(request.key == key for request, _, _ in self.answers):
            return
        stack = ExitStack()
        request = stack.enter_context(self.mutations.begin(key))
        entry = self.write(key) if writes else self.objects.get(key)
        self.answers.append((request, entry, stack))

    @precondition(lambda self: self.answers)
    @rule()
    def we_get_no_answer(self) -> None:
        """Or go away; what we wrote is written."""
        self.answers.pop()[2].close()

    @precondition(lambda self: self.answers)
    @rule()
    def we_are_answered(self) -> None:
        request, entry, stack = self.answers.pop(0)
        self.now += 1
        with stack:
            if entry is None:
                self.mutations.miss(request)
                return
            is_sure = self.mutations.complete(request, entry, self.now)
        if is_sure:
            known = self.mutations.known.get(request.key)
            assert known is None or self.order[known.version] >= self.order[entry.version]
        else:
            self.we_ask(request.key, writes=False)

    @precondition(lambda self: self.list_on_its_way is None)
    @rule(count=st.sampled_from([1, 1_000]))
    def the_watch_tells(self, count: int) -> None:
        for number, key, entry in [x for x in self.history if x[0] > self.watched][:count]:
            self.watched = number
            change = Change(key, self.cache.get(key), entry)
            if entry is None:
                self.cache.pop(key, None)
            else:
                self.cache[key] = entry
            self.mutations.take_changes((change,))

    @precondition(lambda self: self.list_on_its_way is None)
    @rule(is_later=st.booleans())
    def a_list_is_asked_for(self, *, is_later: bool) -> None:
        self.now += is_later
        self.is_list_wanted = False
        self.list_on_its_way = (self.now, self.number, dict(self.objects))

    @precondition(lambda self: self.list_on_its_way is not None)
    @rule()
    def the_list_arrives(self) -> None:
        assert self.list_on_its_way is not None
        asked, number, objects = self.list_on_its_way
        self.list_on_its_way = None
        self.watched, self.cache = number, dict(objects)
        self.unlisted |= self.mutations.known.keys() - objects.keys()
        _, is_unsure = self.mutations.take_list(objects, asked)
        self.is_list_wanted |= is_unsure

    @rule()
    def everything_settles(self) -> None:
        while self.answers:
            self.we_are_answered()
        for _ in range(3):
            if self.list_on_its_way is not None:
                self.the_list_arrives()
            if self.is_list_wanted:
                self.a_list_is_asked_for(is_later=True)
        assert not self.is_list_wanted
        self.the_watch_tells(1_000)
        known = self.mutations.known
        there = {k: x for k, x in known.items() if k not in self.mutations.missing}
        assert there == self.objects
        assert not [x for x in self.mutations.missing if is_over(known[x].value)]
        assert not self.mutations._pending

    @invariant()
    def nothing_goes_back_in_time(self) -> None:
        for key, entry in self.mutations.known.items():
            number = self.order[entry.version]
            assert number >= self.newest_known.get(key, 0)
            self.newest_known[key] = number

    @invariant()
    def what_came_to_its_end_was_not_removed(self) -> None:
        """What is live and missing gets written again, so it must have gone before its end."""
        self.unlisted &= self.mutations.missing
        for key in self.mutations.missing - self.unlisted:
            entry = self.mutations.known[key]
            assert is_over(entry.value) or entry.version in self.removed[key]


Writing.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestWriting = Writing.TestCase
