"""Where reservations are kept: beside the enrolments, by the same setting."""

from controller.kube.cluster import Cluster
from controller.ledger.memory_store import MemoryLedgerStore
from controller.ledger.store import LedgerStore
from controller.settings import StoreKind, StoreSettings


def ledger_store(settings: StoreSettings, cluster: Cluster | None) -> LedgerStore | None:
    """The store that is asked for, not yet opened; None where there is none of that kind."""
    del cluster
    return MemoryLedgerStore() if settings.kind is StoreKind.MEMORY else None
