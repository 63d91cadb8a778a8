"""Chooses the enrollment store that the settings name. Opens nothing yet."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from controller.fleet.enrollment import EnrollmentStore, MemoryEnrollmentStore
from controller.settings import StoreKind, StoreSettings
from controller.store.enrollments import SqliteEnrollmentStore
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
    may_come_later: bool = False
    """Whether to start without it: it is another process's, and nothing is accepted until then."""


class StoreMissingError(Exception):
    """The settings name a store that this process cannot have."""


def choose_store(
    settings: StoreSettings, clock: Clock, kubernetes: EnrollmentStore | None = None
) -> ChosenStore:
    """The store of this process; `kubernetes` where its API is used. Raises StoreMissingError."""
    if settings.kind is StoreKind.KUBERNETES and kubernetes is None:
        raise StoreMissingError("store.kind is kubernetes, but the Kubernetes API is not used here")
    if kubernetes is not None and settings.kind in {StoreKind.AUTO, StoreKind.KUBERNETES}:
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
    """Memory needs no end, and the API client is closed by whoever opened it."""
