"""A Workload API that answers what a test puts into it; held to the real one's contract tests."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuwarden.identity.svid import Offer
from gpuwarden.identity.workload_api import WorkloadApiError

Answer = Offer | Exception


def given(answer: Answer) -> Offer:
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass
class FakeWatch:
    answer: Answer
    updated: Callable[[], None]
    closed: bool = False

    def latest(self) -> Offer:
        if self.closed:
            raise WorkloadApiError("watch is closed")
        return given(self.answer)

    def close(self) -> None:
        self.closed = True

    def update(self, answer: Answer) -> None:
        self.answer = answer
        if not isinstance(answer, Exception):
            self.updated()


@dataclass
class FakeWorkloadApi:
    """`answer` is what a fetch and a new watch say; an open watch changes only by `update`."""

    answer: Answer
    watches: list[FakeWatch] = field(default_factory=list)
    fetches: int = 0

    def fetch(self) -> Offer:
        self.fetches += 1
        return given(self.answer)

    def watch(self, updated: Callable[[], None]) -> FakeWatch:
        self.watches.append(FakeWatch(given(self.answer), updated))
        return self.watches[-1]

    @property
    def open_watches(self) -> list[FakeWatch]:
        return [watch for watch in self.watches if not watch.closed]
