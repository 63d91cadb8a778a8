"""Which pods are told that a GPU has failed, in which words, and how often."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import Acceptance, GpuView, NodeView
from controller.kube.pods.events import (
    WORDS,
    EventSeries,
    Notice,
    Regarding,
    Severity,
    trust_notices,
)
from controller.kube.pods.gpu_failures import MOST_TOLD, GpuFailures
from controller.kube.pods.pods import KnownPod
from controller.ledger.record import Origin, PodRef
from controller.ledger.restore import LivePod
from controller.ledger.store import Entry, LedgerSnapshot
from controller.policy import NodeMode
from gpuwarden.evidence.model import Allocation, LostGpu
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice, node
from tests.builders.inventory import gpu_uuid, mig_uuid
from tests.builders.ledger import holder, record

NODES = DirectorySnapshot({"gpu-1": KnownNode("uid-1")})
LOST, SICK, BACK = ChangeKind.GPU_LOST, ChangeKind.GPU_UNHEALTHY, ChangeKind.GPU_BACK
A, B, C = map(gpu_uuid, (10, 11, 12))
MIG_1, MIG_2, MIG_3 = map(mig_uuid, (1, 2, 3))
SERIAL = "serial: not reported, 77 is enrolled"


def pod(name: str, *assigned: str, deleted: bool = False) -> KnownPod:
    """With a reservation id for the GPUs of its annotation, if it has any."""
    ref = PodRef("team", name, f"uid-{name}")
    made = KnownPod(
        "team", name, f"uid-{name}", "gpu-1", has_ended=False, asks=True, uses_gpus=True
    )
    held = LivePod(ref, "gpu-1", "v1.k1.x", assigned) if assigned else None
    return replace(made, held=held, is_deleted=deleted)


def failed(gpu_: GpuView, kind: ChangeKind = LOST, error: str = "GPU_IS_LOST") -> GpuView:
    if kind is SICK:
        return replace(gpu_, unhealthy=error)
    return replace(gpu_, lost=LostGpu(gpu_.uuid, gpu_.index, gpu_.pci_bus_id, error))


def given(name: str, device: str, namespace: str = "team") -> Allocation:
    return Allocation(namespace, name, "main", "nvidia.com/gpu", device)


def reserved(*parts: tuple[str, str]) -> LedgerSnapshot:
    """GPU or MIG device -> pod, as it is recorded of kubelet's choice."""
    by_gpu: dict[str, list[str]] = {}
    for uuid, name in parts:
        by_gpu.setdefault(uuid, []).append(name)
    return LedgerSnapshot.of(
        Entry(
            record(
                *(
                    holder(
                        uuid,
                        pod=PodRef("team", name, f"uid-{name}"),
                        origin=Origin.KUBELET,
                        restored=True,
                    )
                    for name in names
                ),
                gpu=uuid,
            ),
            "1",
        )
        for uuid, names in by_gpu.items()
    )


@dataclass
class Scene:
    """One node, its pods, and what the controller knows of it."""

    gpus: list[GpuView]
    pods: list[KnownPod] = field(default_factory=list)
    ledger: LedgerSnapshot = field(default_factory=LedgerSnapshot)
    mode: NodeMode = NodeMode.ENV
    allocations: tuple[Allocation, ...] = ()

    def __post_init__(self) -> None:
        self.failures = GpuFailures(self._managed, lambda: self.ledger)

    def say(
        self, *changes: TrustChange, nodes: DirectorySnapshot = NODES
    ) -> dict[str, list[Notice]]:
        """What each pod is told."""
        found: dict[str, list[Notice]] = {}
        for notice in self.failures.notices(changes, nodes, self._view):
            assert notice.regarding == Regarding(
                "Pod", notice.regarding.name, f"uid-{notice.regarding.name}", "team"
            )
            found.setdefault(notice.regarding.name, []).append(notice)
        return found

    def notes(self, *changes: TrustChange) -> dict[str, str]:
        """What each pod is told, once."""
        told = self.say(*changes)
        return {name: notice.note for name, (notice,) in told.items()}

    def _managed(self, name: str) -> Iterable[KnownPod]:
        return [x for x in self.pods if x.node == name]

    def _view(self, name: str) -> NodeView | None:
        if name != "gpu-1":
            return None
        return node(name, self._accepted(), mode=self.mode)

    def _accepted(self) -> Acceptance:
        return replace(acceptance(hash_of("a"), self.gpus), allocations=self.allocations)


def lost(uuid: str = A, detail: str = "GPU_IS_LOST") -> TrustChange:
    return TrustChange("gpu-1", LOST, ReasonCode.GPU_LOST, detail, uuid)


def sick(uuid: str = A, detail: str = "xid 79") -> TrustChange:
    return TrustChange("gpu-1", SICK, None, detail, uuid)


def whole(name: str, text: str, cure: str = "; delete the pod") -> str:
    return f"node gpu-1: its {text}{cure}. Details: gpuwarden why team/{name}"


DEAD = [failed(gpu(0, A)), gpu(1, B)]
IF = "; delete the pod if it does not work any more"

# --- who is told


def test_a_pod_that_holds_the_whole_gpu_is_told_and_no_other() -> None:
    pods = [pod("a", B, A.lower()), pod("b", B), pod("c")]
    assert Scene(DEAD, pods).notes(lost()) == {"a": whole("a", f"GPU {A} does not answer")}


SPLIT = [
    failed(gpu(0, A, mig=True, mig_devices=[mig_slice(MIG_1), mig_slice(MIG_2)])),
    gpu(1, B, mig=True, mig_devices=[mig_slice(MIG_3)]),
]


def test_holders_of_mig_devices_are_told_of_their_own() -> None:
    pods = [pod("a", MIG_1), pod("b", MIG_2), pod("c", MIG_3), pod("d", MIG_1, MIG_2)]
    assert Scene(SPLIT, pods).notes(lost()) == {
        "a": whole("a", f"MIG device {MIG_1} of {A} does not answer"),
        "b": whole("b", f"MIG device {MIG_2} of {A} does not answer"),
        "d": whole("d", f"MIG devices {MIG_1} of {A}, {MIG_2} of {A} do not answer"),
    }


def test_what_kubelet_gave_tells_pods_of_plugin_nodes() -> None:
    """Whole GPUs, MIG devices, and time slices of both, recorded or not."""
    gpus = [*SPLIT, failed(gpu(2, C))]
    pods = [pod(x) for x in ("whole", "slice-1", "slice-2", "part", "part-slice", "other")]
    allocations = (
        given("whole", C),
        given("slice-1", f"{C}::0"),
        given("slice-2", f"{C}::47"),
        given("part", MIG_1),
        given("part-slice", f"{MIG_2}::1"),
        given("other", MIG_3),
        given("whole", A, "another-team"),
    )
    scene = Scene(gpus, pods, mode=NodeMode.PLUGIN, allocations=allocations)
    assert scene.notes(lost(A), lost(C)) == {
        "whole": whole("whole", f"GPU {C} does not answer"),
        "slice-1": whole("slice-1", f"GPU {C} does not answer"),
        "slice-2": whole("slice-2", f"GPU {C} does not answer"),
        "part": whole("part", f"MIG device {MIG_1} of {A} does not answer"),
        "part-slice": whole("part-slice", f"MIG device {MIG_2} of {A} does not answer"),
    }


def test_what_is_recorded_of_kubelet_s_choice_tells_pods_without_its_answer() -> None:
    """As where kubelet cannot be asked, or the node is of another mode by now."""
    pods = [pod("a"), pod("b"), pod("c"), pod("d")]
    ledger = reserved((A, "a"), (MIG_3, "b"), (A, "c"))
    gpus = [DEAD[0], failed(SPLIT[1])]
    told = Scene(gpus, pods, ledger).notes(lost(A), lost(B))
    assert told == {
        "a": whole("a", f"GPU {A} does not answer"),
        "b": whole("b", f"MIG device {MIG_3} of {B} does not answer"),
        "c": whole("c", f"GPU {A} does not answer"),
    }


def test_of_a_gpu_that_shows_no_mig_devices_any_more_nobody_knows_the_holders() -> None:
    """As of one that was lost before the controller started."""
    bare = failed(gpu(0, A, mig=True))
    assert Scene([bare], [pod("a", MIG_1)], reserved((MIG_1, "a"))).notes(lost()) == {}


def test_on_an_env_node_kubelet_s_answer_makes_nobody_a_holder() -> None:
    scene = Scene(DEAD, [pod("a")], allocations=(given("a", A),))
    assert scene.notes(lost()) == {}


@pytest.mark.parametrize("nodes", [DirectorySnapshot({}), NODES])
def test_pods_of_a_node_that_is_not_known_are_not_told(nodes: DirectorySnapshot) -> None:
    """Neither where the cluster has no such node, nor where there is no evidence of it."""
    scene = Scene(DEAD, [replace(pod("a", A), node="gpu-2")])
    change = replace(lost(), node="gpu-2")
    known = DirectorySnapshot({**nodes.nodes, "gpu-2": KnownNode("uid-2")})
    assert scene.say(change, nodes=nodes) == {}
    assert scene.say(change, nodes=known) == {}
    assert scene.say(replace(change, gpu=None), nodes=known) == {}


# --- in which words


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (LOST, "VANISHED", f"GPU {A} does not answer; delete the pod"),
        (LOST, SERIAL, f"GPU {A} cannot be read completely{IF}"),
        (SICK, "xid 79", f"GPU {A} is unhealthy{IF}"),
        (SICK, "VANISHED", f"GPU {A} is unhealthy{IF}"),
    ],
)
def test_the_words_are_those_of_explain_without_the_detail(
    kind: ChangeKind, error: str, text: str
) -> None:
    scene = Scene([failed(gpu(0, A), kind, error)], [pod("a", A)])
    ((notice,),) = scene.say(TrustChange("gpu-1", kind, None, error, A)).values()
    assert notice.note == whole("a", text, "")
    assert (notice.reason, notice.severity) == (WORDS[kind].reason, Severity.WARNING)
    assert notice.code == ("GPU_LOST" if kind is LOST else "")
    assert error not in notice.note


def test_several_gpus_of_one_pod_are_one_event() -> None:
    uuids = [f"GPU-{x}" for x in range(12)]
    gpus = [failed(gpu(x, uuid)) for x, uuid in enumerate(uuids[:11])]
    gpus.append(failed(gpu(11, uuids[11]), error=SERIAL))
    note = Scene(gpus, [pod("a", *uuids)]).notes(*map(lost, uuids))["a"]
    shown = ", ".join(uuids[:8])
    assert note == whole(
        "a",
        f"GPUs {shown} and 3 more do not answer; its GPU GPU-11 cannot be read completely",
    )


def test_a_pod_that_is_being_deleted_is_not_told_to_be_deleted() -> None:
    scene = Scene(DEAD, [pod("a", A, deleted=True)])
    assert scene.notes(lost()) == {"a": whole("a", f"GPU {A} does not answer", "")}


def test_no_pod_is_told_of_another() -> None:
    pods = [pod(f"tenant-{x}") for x in range(48)]
    given_ = tuple(given(f"tenant-{x}", f"{A}::{x}") for x in range(48))
    scene = Scene(DEAD, pods, mode=NodeMode.PLUGIN, allocations=given_)
    notes = scene.notes(lost())
    assert len(notes) == 48
    for name, note in notes.items():
        assert note == whole(name, f"GPU {A} does not answer")


# --- how often


def test_a_failure_that_is_reported_again_tells_nobody_again() -> None:
    """As evidence that is refused does each time, and an agent that connects again."""
    scene = Scene(DEAD, [pod("a", A)])
    assert set(scene.notes(lost())) == {"a"}
    for _ in range(3):
        assert scene.say(lost()) == {}
    assert set(scene.notes(sick())) == {"a"}
    assert scene.say(sick(), lost()) == {}


def test_a_pod_that_came_since_is_told_with_the_next_report() -> None:
    scene = Scene(DEAD, [pod("a", A)])
    scene.say(lost())
    scene.pods.append(pod("b", A))
    assert set(scene.notes(lost())) == {"b"}
    scene.pods.clear()
    assert scene.say(lost()) == {}


def test_a_gpu_that_fails_once_more_is_told_once_more() -> None:
    scene = Scene(DEAD, [pod("a", A)])
    scene.say(sick(), lost())
    back = TrustChange("gpu-1", BACK, gpu=A)
    assert scene.say(back) == {}
    assert set(scene.notes(lost())) == {"a"}
    assert set(scene.notes(sick())) == {"a"}


def test_the_second_gpu_s_event_names_the_first_that_is_still_lost() -> None:
    """Events of one kind about one pod are merged, and the newest text stays."""
    gpus = [failed(gpu(x, f"GPU-{x}")) for x in range(3)]
    scene = Scene(gpus, [pod("a", "GPU-0", "GPU-1", "GPU-2")])
    assert scene.notes(lost("GPU-0")) == {"a": whole("a", "GPU GPU-0 does not answer")}
    both = whole("a", "GPUs GPU-0, GPU-1 do not answer")
    assert scene.notes(lost("GPU-1")) == {"a": both}
    scene.say(TrustChange("gpu-1", BACK, gpu="GPU-0"))
    assert scene.notes(lost("GPU-2")) == {"a": whole("a", "GPUs GPU-1, GPU-2 do not answer")}


def test_a_gpu_that_was_taken_out_is_forgotten() -> None:
    scene = Scene(DEAD, [pod("a", A)])
    scene.say(lost())
    scene.gpus = [gpu(1, B)]
    assert scene.say(lost(B)) == {}
    scene.gpus = DEAD
    assert set(scene.notes(lost())) == {"a"}


def test_a_node_that_is_gone_is_forgotten() -> None:
    scene = Scene(DEAD, [pod("a", A)])
    scene.say(lost())
    assert scene.say(lost(), nodes=DirectorySnapshot({})) == {}
    assert set(scene.notes(lost())) == {"a"}


def test_a_crowded_node_tells_some_of_its_pods_at_a_time() -> None:
    uuids = [f"GPU-{x}" for x in range(16)]
    gpus = [failed(gpu(x, uuid)) for x, uuid in enumerate(uuids)]
    pods = [pod(f"{uuid.lower()}-{x}", uuid) for uuid in uuids for x in range(10)]
    scene = Scene(gpus, pods)
    first = scene.notes(*map(lost, uuids))
    second = scene.notes(*map(lost, uuids))
    assert (len(first), len(second)) == (MOST_TOLD, 160 - MOST_TOLD)
    assert not first.keys() & second.keys()
    assert scene.say(*map(lost, uuids)) == {}


def test_repeats_of_one_pod_are_one_event() -> None:
    series = EventSeries("gpuwarden.dev/controller", "controller-0")
    scene = Scene(DEAD, [pod("a", A)])
    ((first,),) = scene.say(lost()).values()
    scene.say(TrustChange("gpu-1", BACK, gpu=A))
    ((second,),) = scene.say(lost()).values()
    assert series.add(first, "x", 0, 0) == "queued"
    assert series.add(second, "y", 0, 0) == "merged"


@pytest.mark.parametrize("change", [lost(), sick(), TrustChange("gpu-1", BACK, gpu=A)])
def test_the_node_s_own_event_is_another_s_to_make(change: TrustChange) -> None:
    (notice,) = trust_notices([change], NODES, lambda _node: [pod("a", A)])
    assert notice.regarding == Regarding("Node", "gpu-1", "uid-1")
