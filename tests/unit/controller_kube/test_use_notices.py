"""Which disagreement is told on which object, and in what words."""

import pytest

from controller.binding.use import UseFault, UseFaultKind
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.kube.events import Notice, Regarding, Severity, use_notices
from controller.ledger.record import PodRef

NODES = DirectorySnapshot({"gpu-1": KnownNode("uid-1")})
POD = PodRef("team-a", "train-0", "uid-0")
ON_NODE, ON_POD = (
    Regarding("Node", "gpu-1", "uid-1"),
    Regarding("Pod", "train-0", "uid-0", "team-a"),
)


def told(
    kind: UseFaultKind, pod: PodRef | None = POD, owner: str = "", node: str = "gpu-1"
) -> list[Notice]:
    return list(use_notices([UseFault(kind, node, "GPU-a", pod, owner)], NODES))


@pytest.mark.parametrize(
    ("kind", "about", "reason", "note"),
    [
        (
            UseFaultKind.OTHER_GPU,
            ON_POD,
            "GpuMismatch",
            "the pod has GPU-a, which is not the GPU of its reservation",
        ),
        (
            UseFaultKind.UNFIT_GPU,
            ON_POD,
            "GpuMismatch",
            "kubelet gave the pod GPU-a, which is not what it has asked for",
        ),
        (
            UseFaultKind.TAKEN_GPU,
            ON_POD,
            "GpuMismatch",
            "kubelet gave the pod GPU-a, which is reserved for another pod",
        ),
        (
            UseFaultKind.UNRESERVED,
            ON_POD,
            "GpuUnreserved",
            "the pod was bound without a reservation and sees no GPU",
        ),
        (
            UseFaultKind.OFF_BOOK,
            ON_NODE,
            "GpuOffBook",
            "GPU-a is used by pod team-a/train-0, and no reservation explains it",
        ),
    ],
)
def test_about_whom(kind: UseFaultKind, about: Regarding, reason: str, note: str) -> None:
    (notice,) = told(kind)
    assert notice == Notice(about, reason, "Compare", Severity.WARNING, note=note)


def test_users_that_are_not_known() -> None:
    (unknown,) = told(UseFaultKind.OFF_BOOK, None, "uid-9")
    assert "by a pod with UID uid-9" in unknown.note
    (nobody,) = told(UseFaultKind.OFF_BOOK, None)
    assert "by a process of no pod" in nobody.note


def test_nothing_about_what_the_cluster_does_not_have() -> None:
    assert told(UseFaultKind.OFF_BOOK, node="gpu-9") == []
    assert told(UseFaultKind.OTHER_GPU, None) == []
