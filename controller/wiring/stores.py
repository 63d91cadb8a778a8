"""Chooses the enrollment store that the settings name. Opens nothing yet."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from controller.fleet.enrollment import EnrollmentStore, MemoryEnrollmentStore
from controller.settings import StoreKind, StoreSettings
from controller.store.enrollments import SqliteEnrollmentStore
from gpuwarden.clock import Clock
from gpuwarden.settings.rules import store_finding

MEMORY_WARNING = (
    "store.kind is memory: enrolled GPUs, denials and instance ids are forgotten with the process,"
    " so a restart lets every node in again; never use this in production"
)


@dataclass(frozen=True, slots=True)
class ChosenStore:
    """A store, how it is closed, and its facts for the audit log."""

    store: EnrollmentStore
    close: Callable[[], Awaitable[None]]
    facts: Callable[[], Mapping[str, str | int | bool]]
    may_come_later: bool = False
    """Whether to start before it can be read, as where another process keeps it.

    Until it was read nothing is accepted.
    """


class StoreKindError(Exception):
    """`store.kind` does not fit; the text names what was given, what is expected and why."""


def choose_store(
    settings: StoreSettings, clock: Clock, kubernetes: EnrollmentStore | None = None
) -> ChosenStore:
    """The store of this process; `kubernetes` where its API is used. Raises StoreKindError."""
    finding = store_finding(settings.kind, uses_api=kubernetes is not None)
    if finding is not None:
        raise StoreKindError(str(finding))
    if kubernetes is not None:
        facts_of_it = {"kind": StoreKind.KUBERNETES.value}
        return ChosenStore(kubernetes, _nothing, lambda: facts_of_it, may_come_later=True)
    if settings.kind is StoreKind.MEMORY:
        return ChosenStore(MemoryEnrollmentStore(), _nothing, lambda: {"kind": settings.kind.value})
    store = SqliteEnrollmentStore(settings.path, clock)

    def facts() -> Mapping[str, str | int | bool]:
        found = {} if store.facts is None else asdict(store.facts)
        return {"kind": StoreKind.SQLITE.value, **found}

    return ChosenStore(store, store.close, facts)


async def _nothing() -> None:
    """Memory needs no close, and whoever opened the API client closes it."""
