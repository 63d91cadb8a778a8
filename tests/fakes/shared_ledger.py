"""A ledger that several replicas share, each through a store of its own."""

from collections.abc import Callable
from functools import partial
from typing import Final

from controller.ledger.store import LedgerStore
from tests.fakes.ledger_store import MemoryLedgerStore, ReplicaLedgerStore

KINDS: Final = ("one", "copies")
"""What each replica knows: all that is stored, or what it wrote and read itself."""
OpenLedger = Callable[[], LedgerStore]


def shared_ledger(kind: str) -> OpenLedger:
    """Of one of KINDS; what each replica calls for its own store."""
    shared = MemoryLedgerStore()
    return (lambda: shared) if kind == "one" else partial(ReplicaLedgerStore, shared)
