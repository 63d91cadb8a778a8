"""A cache equals the server after any order of events, drops, compactions and restarts.

The model server is tests/fakes/api_objects; a watch that is open is a position in its
history, of which Hypothesis delivers as much as it likes before the next thing happens.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.kube.api.cache import Cache, Change, WantList, WantWatch
from controller.kube.api.resources import ApiError, Entry, EventKind, WatchEvent
from sandbox.kube.objects import ApiObjects, Object, RefusedError, version_of

NAMES = st.sampled_from(["a", "b", "c"])
_KINDS = {
    "ADDED": EventKind.APPLIED,
    "MODIFIED": EventKind.APPLIED,
    "DELETED": EventKind.DELETED,
}


def entry(body: Object) -> Entry[int]:
    return Entry(body["metadata"]["resourceVersion"], body["metadata"]["uid"], body["value"])


class Copying(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = ApiObjects()
        self.cache: Cache[int] = Cache()
        self.replayed: dict[str, Entry[int]] = {}
        """What somebody knows who only listens to the changes."""
        self.now = 0
        self.watch: int | None = None
        self.past: list[tuple[int, dict[str, Entry[int]]]] = []
        """Every state of the server, and the moment at which it ended."""
        self.lists = 0
        self.newest = 0

    def server_state(self) -> dict[str, Entry[int]]:
        return {key: entry(x) for key, x in self.server.all("things").items()}

    def heard(self, changes: tuple[Change[int], ...]) -> None:
        for change in changes:
            assert self.replayed.get(change.key) == change.old
            assert change.old is None or change.new is None or change.old.uid == change.new.uid
            if change.new is None:
                del self.replayed[change.key]
            else:
                self.replayed[change.key] = change.new

    def will_change(self) -> None:
        self.now += 1
        self.past.append((self.now, self.server_state()))

    @rule(name=NAMES, value=st.integers(0, 3))
    def somebody_writes(self, name: str, value: int) -> None:
        self.will_change()
        body = {"metadata": {"name": name}, "value": value}
        if name in self.server.all("things"):
            self.server.replace("things", name, body)
        else:
            self.server.create("things", name, body)

    @rule(name=NAMES)
    def somebody_deletes(self, name: str) -> None:
        if name in self.server.all("things"):
            self.will_change()
            self.server.delete("things", name)

    @rule()
    def something_else_happens(self) -> None:
        self.server.create("others", f"o-{self.server.number}", {"metadata": {}})

    @rule()
    def history_is_compacted(self) -> None:
        self.server.compact()

    @rule()
    def the_server_is_restored_from_elsewhere(self) -> None:
        self.server.restart_elsewhere()
        self.watch = None
        self.cache.record_failure(ApiError("broken"))

    @precondition(lambda self: self.watch is None)
    @rule(writes=st.lists(st.tuples(NAMES, st.integers(0, 3)), max_size=2))
    def the_copy_takes_its_next_step(self, writes: list[tuple[str, int]]) -> None:
        """`writes` happen between the list's moment and its arrival."""
        wanted = self.cache.next_request()
        if isinstance(wanted, WantWatch):
            try:
                self.watch = self.server.number_of(wanted.version)
            except RefusedError as error:
                self.cache.record_failure(ApiError("gone", error.status))
                assert isinstance(self.cache.next_request(), WantList)
            return
        asked, listed = self.now, self.server_state()
        version = version_of(self.server.number)
        for name, value in writes:
            self.somebody_writes(name, value)
        self.heard(self.cache.take_list(listed, version, asked))
        self.lists += 1

    @precondition(lambda self: self.watch is not None)
    @rule(count=st.integers(1, 4))
    def the_watch_delivers(self, count: int) -> None:
        assert self.watch is not None
        if self.watch < self.server.oldest:
            self.watch = None
            self.cache.record_failure(ApiError("ERROR event", 410))
            return
        for happening in self.server.after("things", self.watch)[:count]:
            self.watch = happening.number
            event = WatchEvent(
                _KINDS[happening.type],
                version_of(happening.number),
                happening.key,
                entry(happening.object),
            )
            self.heard(self.cache.take_event(event, self.now_as_of(happening.number)))

    @precondition(lambda self: self.watch is not None and self.watch >= self.server.oldest)
    @rule()
    def the_watch_sends_a_bookmark(self) -> None:
        self.the_watch_delivers(1_000)
        self.watch = self.server.number
        bookmark: WatchEvent[int] = WatchEvent(EventKind.BOOKMARK, version_of(self.watch))
        assert self.cache.take_event(bookmark, self.now) == ()
        assert dict(self.cache.objects) == self.server_state()

    @precondition(lambda self: self.watch is not None)
    @rule(status=st.sampled_from([0, 429, 500, 503]))
    def the_watch_breaks(self, status: int) -> None:
        self.watch = None
        self.cache.record_failure(ApiError("broken", status, retry_after_s=2.0))
        assert self.cache.pause_s(0.0) >= 2.0

    @precondition(lambda self: self.watch is not None)
    @rule()
    def the_watch_ends_in_time(self) -> None:
        self.watch = None

    @rule()
    def everything_settles(self) -> None:
        """At most a refused watch, a list and a watch away from equality."""
        for _ in range(3):
            if self.watch is None:
                self.the_copy_takes_its_next_step([])
            else:
                self.the_watch_delivers(1_000)
        if self.watch is not None and self.watch >= self.server.oldest:
            self.the_watch_delivers(1_000)
            assert dict(self.cache.objects) == self.server_state()

    def now_as_of(self, number: int) -> int:
        """A moment that does not claim more than this event proves."""
        later = self.server.after("things", number)
        return self.now - len(later)

    @invariant()
    def the_copy_is_some_state_of_the_server(self) -> None:
        """Never of an earlier one than before."""
        mine = dict(self.cache.objects)
        states = [*(state for _, state in self.past), self.server_state()]
        if self.lists:
            self.newest = next(n for n in range(self.newest, len(states)) if states[n] == mine)

    @invariant()
    def the_changes_tell_the_whole_story(self) -> None:
        assert self.replayed == dict(self.cache.objects)

    @invariant()
    def it_never_asks_from_nowhere(self) -> None:
        wanted = self.cache.next_request()
        assert isinstance(wanted, WantList) or wanted.version not in {"", "0", "None"}


Copying.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCopying = Copying.TestCase
