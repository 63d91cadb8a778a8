"""Chooses the enrolment store that the settings name. Opens nothing yet."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from controller.fleet.enrollment import EnrollmentStore, MemoryEnrollmentStore
from controller.settings import StoreKind, StoreSettings
from controller.store.sqlite_enrollment import SqliteEnrollmentStore
from gpuwarden.clock import Clock

MEMORY_WARNING = (
    "store.kind is memory: pins, denials and instance ids are forgotten with the process,"
    " so a restart lets every node in again; never use this in production"
)


@dataclass(frozen=True, slots=True)
class ChosenStore:
    """A store, the way to end it, and what the audit log says about it."""

    store: EnrollmentStore
    close: Callable[[], Awaitable[None]]
    facts: Callable[[], Mapping[str, str | int | bool]]


def choose_store(settings: StoreSettings, clock: Clock) -> ChosenStore:
    """The store of this process."""
    if settings.kind is StoreKind.MEMORY:
        return ChosenStore(MemoryEnrollmentStore(), _nothing, lambda: {"kind": settings.kind.value})
    store = SqliteEnrollmentStore(settings.path, clock)

    def facts() -> Mapping[str, str | int | bool]:
        found = {} if store.facts is None else asdict(store.facts)
        return {"kind": settings.kind.value, **found}

    return ChosenStore(store, store.close, facts)


async def _nothing() -> None:
    """Memory needs no end."""
