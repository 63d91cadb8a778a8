"""What report-only mode says in Events about Bindings and placement."""

from dataclasses import replace

from controller.binding.records import BindDecision
from controller.kube.events import Regarding, binding_notice, placement_notice
from controller.placement.verbs import FilterDecision, Totals
from gpuwarden.reasons import ReasonCode, Refusal

REFUSALS = (Refusal(ReasonCode.GPU_BUSY, "none free"), Refusal(ReasonCode.GPU_LOST, "one lost"))
BOUND = BindDecision("team-a", "train-0", "uid-0", "gpu-1", "jane", REFUSALS, reported=True)
REJECTED = Totals(0, {ReasonCode.GPU_BUSY: 1, ReasonCode.NODE_NO_EVIDENCE: 3}, "d")
FILTERED = FilterDecision(
    namespace="team-a",
    pod="train-0",
    uid="uid-0",
    candidates=4,
    policy_digest="",
    fleet_version=1,
    insecure=(),
    totals=lambda: REJECTED,
    reported=True,
)
POD = Regarding("Pod", "train-0", "uid-0", "team-a")


def test_a_binding_that_would_be_denied_is_told_on_its_pod() -> None:
    notice = binding_notice(BOUND)
    assert notice is not None
    assert (notice.regarding, notice.reason, notice.code) == (
        POD,
        "BindingWouldBeDenied",
        "GPU_BUSY",
    )
    assert notice.note == "would be denied: none free (and 1 more)"


def test_a_pod_that_no_node_would_get_is_told_why() -> None:
    notice = placement_notice(FILTERED, REJECTED)
    assert notice is not None
    assert (notice.regarding, notice.reason) == (POD, "PodWouldNotBePlaced")
    assert notice.code == "NODE_NO_EVIDENCE"
    assert notice.note == "no node would be offered: 3 NODE_NO_EVIDENCE, 1 GPU_BUSY"


def test_nothing_is_told_where_nothing_would_be_denied() -> None:
    assert binding_notice(replace(BOUND, refusals=())) is None
    assert placement_notice(FILTERED, replace(REJECTED, passed=1)) is None
    assert placement_notice(FILTERED, Totals(0, {}, "d")) is None


def test_nothing_is_told_of_what_is_carried_out() -> None:
    assert binding_notice(replace(BOUND, reported=False)) is None
    assert placement_notice(replace(FILTERED, reported=False), REJECTED) is None
