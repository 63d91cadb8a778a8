"""What the ledger looks like to /filter; which nodes are gone."""

from dataclasses import dataclass

from controller.binding.reconciliation import AbsentNodes
from controller.binding.use import LedgerUse
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.ledger.release import NodeGone
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.snapshot import DeviceUse
from tests.builders.ledger import SHARE, holder, record

OWN, SHARED, OTHER = (
    record(holder("GPU-a"), gpu="GPU-a"),
    record(holder("GPU-b"), gpu="GPU-b", share=SHARE),
    record(holder("GPU-c"), gpu="GPU-c"),
)
HELD = LedgerSnapshot.of([Entry(x, "1") for x in (SHARED, OTHER)])


def test_what_others_hold_is_busy() -> None:
    use = LedgerUse(lambda: HELD)
    found = use.use("another", None)
    both = frozenset({"GPU-b", "GPU-c"})
    assert found == DeviceUse(both, claimed=both)
    assert use.use(None, None) is found
    own = DeviceUse(frozenset({"GPU-c"}), frozenset({"GPU-b"}), both)
    assert use.use("another", SHARE) == own


def test_a_pod_s_own_attempt_is_not() -> None:
    current = LedgerSnapshot.of([Entry(OWN, "1")])
    use = LedgerUse(lambda: current)
    assert use.use("uid-0", None) == DeviceUse(
        claimed=frozenset({"GPU-a"}), own=frozenset({"GPU-a"})
    )
    assert use.use("uid-1", None).busy == {"GPU-a"}
    current = LedgerSnapshot()
    assert use.use("uid-1", None) == DeviceUse()


@dataclass
class Directory:
    nodes: tuple[str, ...] = ("gpu-1",)
    fresh_until_ns: int = 1_000
    now_ns: int = 0

    def snapshot(self) -> DirectorySnapshot:
        return DirectorySnapshot({x: KnownNode("u") for x in self.nodes}, self.fresh_until_ns)


def test_a_node_is_gone_while_a_fresh_copy_lacks_it() -> None:
    directory = Directory()
    absent = AbsentNodes(directory.snapshot, lambda: directory.now_ns)
    assert absent.gone("gpu-1") is None
    directory.nodes, directory.now_ns = (), 10
    assert absent.gone("gpu-1") == NodeGone(10)
    directory.now_ns = 20
    assert absent.gone("gpu-1") == NodeGone(10)
    directory.now_ns = 1_000
    assert absent.gone("gpu-1") is None
    directory.fresh_until_ns = 2_000
    assert absent.gone("gpu-1") == NodeGone(1_000)
    directory.nodes = ("gpu-1",)
    assert absent.gone("gpu-1") is None
