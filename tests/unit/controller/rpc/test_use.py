"""What nodes show of use, as callers get it."""

from controller.binding.idle import Account, Holding, IdleGpu
from controller.binding.use import UseFault, UseFaultKind
from controller.binding.use_reconciler import UseNow
from controller.ledger.record import PodRef
from controller.rpc.use import MAX_LISTED, use_message
from gpuwarden.wire.v1 import placement_pb2 as pb

S = 1_000_000_000
POD, OTHER = PodRef("team-a", "x", "uid-x"), PodRef("team-b", "y", "uid-y")
STRANGER = UseFault(
    UseFaultKind.UNRESERVED_USE, "n", "GPU-a", None, "uid-9", victims=(OTHER,), since_wall_ns=S
)
WRONG = UseFault(UseFaultKind.OTHER_GPU, "n", "GPU-b", POD, since_wall_ns=2 * S)
IDLE = IdleGpu(Holding("GPU-c", "n", POD, "r"), 3 * S)
NOW = UseNow((STRANGER, WRONG), (IDLE,), {"team-b": Account(9 * S, 4 * S)}, "2026")


def test_faults_idle_gpus_and_accounts() -> None:
    assert use_message(NOW, "") == pb.ListUseResponse(
        faults=[
            pb.UseFault(
                kind="unreserved_use",
                node="n",
                gpu="GPU-a",
                uid="uid-9",
                since="1970-01-01T00:00:01.000Z",
                held_by=["team-b/y"],
            ),
            pb.UseFault(
                kind="other_gpu",
                node="n",
                gpu="GPU-b",
                namespace="team-a",
                pod="x",
                uid="uid-x",
                since="1970-01-01T00:00:02.000Z",
            ),
        ],
        fault_count=2,
        idle=[
            pb.IdleGpu(
                gpu="GPU-c",
                node="n",
                namespace="team-a",
                pod="x",
                uid="uid-x",
                reservation="r",
                since="1970-01-01T00:00:03.000Z",
            )
        ],
        idle_count=1,
        namespaces=[
            pb.NamespaceUse(namespace="team-a", idle_gpus=1),
            pb.NamespaceUse(namespace="team-b", reserved_gpu_s=9, idle_gpu_s=4),
        ],
        since="2026",
    )


def test_of_one_namespace_what_its_pods_do_and_suffer() -> None:
    found = use_message(NOW, "team-b")
    assert [x.gpu for x in found.faults] == ["GPU-a"]
    assert (found.fault_count, found.idle_count) == (1, 0)
    assert [x.namespace for x in found.namespaces] == ["team-b"]


def test_long_lists_are_cut_and_counted() -> None:
    many = UseNow(faults=(WRONG,) * (MAX_LISTED + 1), idle=(IDLE,) * (MAX_LISTED + 2))
    found = use_message(many, "")
    assert (len(found.faults), found.fault_count) == (MAX_LISTED, MAX_LISTED + 1)
    assert (len(found.idle), found.idle_count) == (MAX_LISTED, MAX_LISTED + 2)
