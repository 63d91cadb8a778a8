"""What /filter counts as used beyond the evidence: the GPUs that the ledger holds. Pure."""

from collections.abc import Callable
from dataclasses import replace

from controller.ledger.occupancy import Occupancy
from controller.ledger.record import ShareGroup
from controller.ledger.store import LedgerSnapshot
from controller.scheduling.scenes import DeviceUse


class LedgerUse:
    """Implements GpuUse; the same answer is the same object while the ledger is the same."""

    def __init__(self, snapshot: Callable[[], LedgerSnapshot]) -> None:
        self._snapshot = snapshot
        self._occupancy = Occupancy(LedgerSnapshot())
        self._use = DeviceUse()

    def use(self, pod_uid: str | None, share: ShareGroup | None) -> DeviceUse:
        """As a pod sees it: its own attempts do not count, nor what its share group holds."""
        snapshot = self._snapshot()
        if snapshot.entries is not self._occupancy.snapshot.entries:
            self._occupancy = self._occupancy.then(snapshot)
            self._use = DeviceUse(
                self._occupancy.busy(),
                claimed=self._occupancy.claimed(),
                parts=snapshot.parts_on,
                holders=self._occupancy.holders(),
            )
        busy = self._occupancy.busy_for(pod_uid, share)
        if busy is self._use.busy:
            return self._use
        without_group = self._occupancy.busy_for(pod_uid)
        own = self._use.busy - without_group
        return replace(self._use, busy=busy, shared=without_group - busy, own=own)
