"""Which settings send log records, and which changes of nodes are among them."""

from collections.abc import Callable

from controller.audit.sealing import SealedLine
from controller.fleet.trust import ChangeKind, TrustChange
from controller.wiring.telemetry import audit_copies, send_changes
from gpuwarden.audit.chain import Head
from gpuwarden.telemetry.log_entry import LogEntry
from gpuwarden.telemetry.log_export import LogExport
from tests.fakes.clock import FakeClock


class Queue(LogExport):
    """Keeps what is put."""

    def __init__(self) -> None:
        super().__init__(lambda _entries: True, lambda: None, lambda _count: None)
        self.put_here: list[Callable[[], LogEntry]] = []

    def put(self, make: Callable[[], LogEntry]) -> None:
        self.put_here.append(make)


def test_changes_are_sent_and_unchanged_rounds_are_not() -> None:
    queue = Queue()
    changes = tuple(TrustChange("n1", kind) for kind in (ChangeKind.RENEWED, ChangeKind.REVOKED))
    send_changes(queue, FakeClock(), changes)
    [make] = queue.put_here
    assert make().attributes["gpuwarden.decision"] == "revoked"


def test_each_durable_record_is_put_unread() -> None:
    """The thread of the audit log must not spend time on it."""
    queue = Queue()
    audit_copies(queue)([SealedLine(b"no record", Head(1, "a" * 64))] * 2)
    assert len(queue.put_here) == 2
