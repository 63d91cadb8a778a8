"""The store in memory: the contract."""

import pytest

from controller.ledger.store import LedgerStore, MemoryLedgerStore
from tests.contracts.ledger_store import LedgerStoreContract


class TestMemoryLedgerStore(LedgerStoreContract):
    @pytest.fixture
    def store(self) -> LedgerStore:
        return MemoryLedgerStore()
