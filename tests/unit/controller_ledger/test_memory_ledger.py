"""The store in memory: the contract."""

import pytest

from controller.ledger.memory_store import MemoryLedgerStore
from controller.ledger.store import LedgerStore
from tests.contracts.ledger_store import LedgerStoreContract


class TestMemoryLedgerStore(LedgerStoreContract):
    @pytest.fixture
    def store(self) -> LedgerStore:
        return MemoryLedgerStore()
