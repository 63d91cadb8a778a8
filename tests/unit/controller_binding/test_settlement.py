"""What a report of a plugin node shows for certain."""

from dataclasses import replace

from controller.binding.reconciliation import Settlement, Showing
from controller.ledger.release import GivenGpu
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice
from tests.builders.node_use import CARDS, NODE, SomeBoundPods, bound, device, ref, use_report

SHOWING = Showing(NODE, frozenset(CARDS))


def test_a_report_counts_once_the_pod_was_known_before_it_was_asked_for() -> None:
    settlement, pods = Settlement(), SomeBoundPods([bound()])
    given = (GivenGpu(ref(), NODE, "GPU-a"),)
    assert settlement.due(SHOWING, use_report(device(), asked_ns=100), pods, 200) == ()
    assert settlement.due(SHOWING, use_report(device(), asked_ns=200), pods, 300) == ()
    assert settlement.due(SHOWING, use_report(device(), asked_ns=201), pods, 400) == given
    assert settlement.due(SHOWING, use_report(device(), asked_ns=300), pods, 500) == given


def test_another_pod_of_the_name_begins_anew() -> None:
    settlement = Settlement()
    first, second = SomeBoundPods([bound()]), SomeBoundPods([bound(uid="uid-9")])
    settlement.due(SHOWING, use_report(device(), asked_ns=100), first, 200)
    assert settlement.due(SHOWING, use_report(device(), asked_ns=300), second, 400) == ()
    later = use_report(device(), asked_ns=500)
    (found,) = settlement.due(SHOWING, later, second, 600)
    assert found.pod.uid == "uid-9"


def test_what_is_not_shown_any_more_begins_anew() -> None:
    settlement, pods = Settlement(), SomeBoundPods([bound()])
    settlement.due(SHOWING, use_report(device(), asked_ns=100), pods, 200)
    assert settlement.due(SHOWING, use_report(asked_ns=300), pods, 400) == ()
    assert settlement.due(SHOWING, use_report(device(), asked_ns=500), pods, 600) == ()
    settlement.forget(NODE)
    assert settlement.due(SHOWING, use_report(device(), asked_ns=700), pods, 800) == ()


def test_a_report_without_kubelet_says_nothing_and_forgets_nothing() -> None:
    settlement, pods = Settlement(), SomeBoundPods([bound()])
    settlement.due(SHOWING, use_report(device(), asked_ns=100), pods, 200)
    silent = replace(use_report(asked_ns=300), given=None)
    assert settlement.due(SHOWING, silent, pods, 400) == ()
    assert len(settlement.due(SHOWING, use_report(device(), asked_ns=500), pods, 600)) == 1


def test_each_gpu_by_itself_and_slices_of_time_once() -> None:
    settlement = Settlement()
    pods = SomeBoundPods([bound(), bound("train-1")])
    shown = use_report(device(gpu="GPU-b"), device(), device("train-1", "GPU-c::2"), asked_ns=300)
    settlement.due(SHOWING, shown, pods, 200)
    found = settlement.due(SHOWING, shown, pods, 300)
    assert [(x.pod.name, x.gpu) for x in found] == [
        ("train-0", "GPU-a"),
        ("train-0", "GPU-b"),
        ("train-1", "GPU-c"),
    ]


def test_only_the_node_s_own_gpus_and_its_guarded_pods() -> None:
    pods = SomeBoundPods(
        [bound("elsewhere", node="gpu-2"), bound("plain", needs=None), bound("foreign")]
    )
    shown = use_report(
        device("elsewhere"),
        device("plain"),
        device("foreign", "GPU-of-another-node"),
        device("foreign", "pool/gpu-0"),
        device("unknown"),
        asked_ns=300,
    )
    settlement = Settlement()
    settlement.due(SHOWING, shown, pods, 200)
    assert settlement.due(SHOWING, shown, pods, 300) == ()


def test_a_node_s_gpus_are_those_of_its_accepted_inventory() -> None:
    cards = [
        gpu(0, "GPU-a", lost=True),
        gpu(1, "GPU-b", mig=True, mig_devices=[mig_slice("MIG-c")]),
    ]
    found = Showing.of(NODE, acceptance(hash_of("a"), cards))
    assert found == Showing(NODE, frozenset({"GPU-a", "GPU-b", "MIG-c"}))
