"""Where reservations are kept: beside the enrolments, by the same setting."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controller.kube.cluster import Cluster
from controller.ledger.memory_store import MemoryLedgerStore
from controller.ledger.store import Entry, LedgerStore
from controller.settings import StoreKind, StoreSettings
from controller.store.sqlite_ledger import SqliteLedgerStore
from gpuwarden.clock import Clock


@dataclass(frozen=True, slots=True)
class ChosenLedger:
    """A store, not yet opened, and the way to end it."""

    store: LedgerStore
    close: Callable[[], Awaitable[None]]
    take_replaced: Callable[[], tuple[Entry, ...]] = tuple
    """As FootingPorts has it."""


def choose_ledger(settings: StoreSettings, clock: Clock, cluster: Cluster) -> ChosenLedger:
    """The store that the settings ask for."""
    if settings.kind in {StoreKind.AUTO, StoreKind.KUBERNETES}:
        store = cluster.reservations
        return ChosenLedger(store, _nothing, store.take_replaced)
    if settings.kind is StoreKind.MEMORY:
        return ChosenLedger(MemoryLedgerStore(), _nothing)
    file = SqliteLedgerStore(settings.path, clock)
    return ChosenLedger(file, file.close)


async def _nothing() -> None:
    """Memory needs no end, and the API client is closed by whoever opened it."""
