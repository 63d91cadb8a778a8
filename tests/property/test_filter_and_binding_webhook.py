"""What /filter lets pass the binding webhook grants, and the other way round.

Whatever a node shows of its GPUs and of their use, and whatever the ledger holds: else a pod is
sent to a node and turned away there, again and again.
"""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.binding.decision import BindingView, Refused, Reserve, decide_binding
from controller.binding.use import LedgerUse, UseReports
from controller.fleet.view import Acceptance, NodeView
from controller.ledger.occupancy import Known, ReconciliationState, grant_refusal
from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.placement.filter_and_score import filter_nodes
from controller.placement.requirements import Requirements, parse_requirements, share_group
from controller.placement.snapshot import Scenes
from controller.policy import Policy
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.reasons import Refusal
from tests.builders.admitted_pods import Document
from tests.builders.bindings import NODE, UID, asked, binding, binding_view, env_pod, stored
from tests.builders.fleet_views import NOW_NS, acceptance, fleet, gpu, hash_of, mig_slice, node
from tests.builders.ledger import SHARE, holder, record
from tests.fakes.clock import FakeClock

FIRM = ReconciliationState(NOW_NS - 2, ledger_read_ns=NOW_NS - 1, pods_read_ns=NOW_NS - 1)
OWNER = {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "owner-a", "controller": True}
GROUP = replace(SHARE, entry=f"{NODE}:0")
OWN, OTHER = (
    PodRef("team-a", "train-0", UID, "owner-a"),
    PodRef("team-a", "other", "uid-1", "owner-a"),
)
CARDS = ("GPU-0", "GPU-1", "GPU-2", "MIG-2a", "MIG-2b", "MIG-gone")
GPUS = (
    gpu(0),
    gpu(1),
    gpu(2, mig=True, mig_devices=[mig_slice("MIG-2a"), mig_slice("MIG-2b")]),
)
UIDS: tuple[str | None, ...] = (None, UID, "uid-1", "uid-stranger")
NAMES = ("train-0", "other", "stranger")


def pod_with(annotations: dict[str, str]) -> Document:
    pod = env_pod(annotations)
    pod["metadata"] |= {"generateName": "train-", "ownerReferences": [OWNER]}
    return pod


PODS = tuple(
    map(
        pod_with,
        (
            {"gpuwarden.dev/gpu-selector": "memory>=1Gi"},
            {"gpuwarden.dev/gpu-count": "2"},
            {"gpuwarden.dev/gpu-selector": "mig=true"},
            {"gpuwarden.dev/gpu-selector": "mig=false"},
            {"gpuwarden.dev/gpu-uuids": "GPU-1"},
            {"gpuwarden.dev/gpu-uuids": "MIG-2a"},
            {"gpu-scheduling-map": f"0={NODE}:0\n1={NODE}:0", "gpuwarden.dev/ordinal": "0"},
        ),
    )
)


def kept(card: str, pod: PodRef, state: HolderState, *, share: bool) -> GpuRecord:
    made = replace(record(holder(card, pod=pod, state=state), gpu=card), node=NODE)
    return replace(made, share=GROUP) if share and card == "GPU-0" else made


RECORDS = st.dictionaries(
    st.sampled_from(CARDS),
    st.tuples(
        st.sampled_from([OWN, OTHER]),
        st.sampled_from([HolderState.PROPOSED, HolderState.CONFIRMED, HolderState.RELEASING]),
        st.booleans(),
    ),
    max_size=3,
).map(lambda x: tuple(kept(card, pod, state, share=s) for card, (pod, state, s) in x.items()))


@st.composite
def evidence(draw: st.DrawFn) -> Acceptance:
    used = draw(st.lists(st.tuples(st.sampled_from(CARDS), st.sampled_from(UIDS)), max_size=3))
    devices = st.sampled_from([*CARDS, "GPU-1::2", "mlx5_0"])
    allocated = draw(st.lists(st.tuples(st.sampled_from(NAMES), devices), max_size=3))
    broken = draw(st.sampled_from([None, None, None, 0, 1, 2]))
    gpus = [replace(x, unhealthy="xid 79") if x.index == broken else x for x in GPUS]
    counts = {card: sum(card == x for x, _ in used) for card, _ in used}
    return replace(
        acceptance(hash_of("a"), gpus, processes=counts),
        processes=tuple(GpuProcess(card, 7, uid) for card, uid in used),
        allocations=tuple(Allocation("team-a", x, "main", "r", device) for x, device in allocated),
    )


class NowClock(FakeClock):
    """Stands where the builders' evidence is fresh."""

    def boottime_ns(self) -> int:
        return NOW_NS


def view_of(here: NodeView, records: tuple[GpuRecord, ...], policy: Policy) -> BindingView:
    """As the controller makes it."""
    made = binding_view(here, records=records)
    scenes = Scenes(lambda: fleet(here), lambda: policy, NowClock().now)
    reports = UseReports(lambda: fleet(here))

    def refusal(name: str, gpus: tuple[str, ...]) -> Refusal | None:
        return grant_refusal(FIRM, name, gpus, Known(made.ledger, reports.of(name), NOW_NS))

    return replace(made, scene=scenes.now(), grant_refusal=refusal)


def by_filter(pod: Document, here: NodeView, view: BindingView, policy: Policy) -> Refusal | None:
    admitted = stored(pod).pod
    assert admitted is not None
    needs = parse_requirements(admitted, view.rules.requirements, enforced=True)
    assert isinstance(needs, Requirements)
    use = LedgerUse(lambda: view.ledger).use(UID, share_group(admitted, needs))
    scene = Scenes(lambda: fleet(here), lambda: policy, NowClock().now).now(use)
    return filter_nodes([NODE], needs, scene).reasons.get(NODE)


GIVEN_TO_A_STRANGER = replace(
    acceptance(hash_of("a"), GPUS),
    processes=(),
    allocations=(Allocation("team-a", "stranger", "main", "r", "GPU-0"),),
)


@settings(max_examples=400)
@given(
    shown=evidence(),
    records=RECORDS,
    pod=st.sampled_from(PODS),
    counted=st.booleans(),
)
@example(shown=GIVEN_TO_A_STRANGER, records=(), pod=PODS[0], counted=True)
def test_filter_and_binding_webhook_agree(
    shown: Acceptance, records: tuple[GpuRecord, ...], pod: Document, counted: bool
) -> None:
    policy = Policy(processes_count_as_use=counted)
    here = node(NODE, shown)
    view = view_of(here, records, policy)
    found = decide_binding(asked(binding()), stored(pod), view, enforced=True)
    expected = by_filter(pod, here, view, policy)
    if expected is None:
        assert isinstance(found, Reserve)
    else:
        assert isinstance(found, Refused)
        assert found.refusals == (expected,)
