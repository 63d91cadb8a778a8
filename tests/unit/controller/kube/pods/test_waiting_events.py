"""Events on pods that wait for a label that no node has: why, in numbers, and not too often."""

from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from typing import Any

from msgspec.structs import replace

from controller.admission.pod import AdmittedPod
from controller.binding.turns import OTHERS_FIRST
from controller.kube.pods.events import Notice, Regarding, Severity
from controller.kube.pods.waiting_events import (
    AGAIN_NS,
    MOST_PODS,
    AskWhy,
    WaitingPodEvents,
    waiting_notice,
)
from controller.placement.explanation import PodExplanation, Rejection
from controller.placement.filter_and_score import HeldBack
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements
from controller.placement.snapshot import NO_USE, DeviceUse, Scene, Scenes
from controller.policy import DEFAULT_POLICY
from controller.web.extender.verbs import ExtenderVerbs
from gpuwarden.moment import Moment
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admitted_pods import admitted, new_pod
from tests.builders.fleet_views import NOW_NS, fleet, healthy
from tests.unit.controller.kube.nodes.test_node_hints import waiting

R = ReasonCode
Known = MutableMapping[Hashable, PodExplanation]
NEEDS = Requirements(managed=True)
BUSY = Rejection(R.GPU_BUSY, "a: too few: needs 2 GPUs, node has 8, 1 free", 3, ("a", "b", "c"))
LOW = Rejection(R.LEVEL_TOO_LOW, "L2 required, node has L1", 1, ("d",))


def pod(requirement: str = "H100", uid: str = "u-1", name: str = "train-0") -> AdmittedPod:
    found = waiting(requirement)
    named = replace(found.metadata, name=name, uid=uid)
    return replace(found, metadata=named)


def in_namespace(namespace: str, uid: str) -> AdmittedPod:
    found = admitted(new_pod(annotations={"gpuwarden.dev/gpu-count": "1"}))
    named = replace(found.metadata, namespace=namespace, uid=uid)
    return replace(found, metadata=named)


def explained(*rejections: Rejection, **more: Any) -> PodExplanation:
    return PodExplanation(needs=NEEDS, rejections=rejections, **more)


def test_the_reasons_come_in_their_order_and_each_has_its_numbers() -> None:
    assert waiting_notice(pod(), explained(BUSY, LOW)) == Notice(
        Regarding("Pod", "train-0", "u-1", "team-a"),
        "PodNotPlaced",
        "Filter",
        Severity.WARNING,
        "GPU_BUSY",
        "3 of 4 nodes (a: too few: needs 2 GPUs, node has 8, 1 free);"
        " 1 LEVEL_TOO_LOW (L2 required, node has L1)",
    )


def test_what_is_wrong_with_the_pod_itself_is_said_alone() -> None:
    refusal = Refusal(R.CLASS_UNKNOWN, "attestation class is not in the policy: gold")
    found = waiting_notice(pod(), explained(BUSY, refusal=refusal))
    assert found is not None
    assert (found.code, found.note) == ("CLASS_UNKNOWN", refusal.detail)


def test_nothing_is_said_where_a_node_is_offered() -> None:
    assert waiting_notice(pod(), explained(BUSY, passing=1)) is None


def test_that_there_is_no_node_is_said_too() -> None:
    found = waiting_notice(pod(), explained())
    assert found is not None
    assert (found.code, found.note) == ("NODE_NO_EVIDENCE", "no node has shown any evidence")


@dataclass
class World:
    pods: list[AdmittedPod] = field(default_factory=list)
    found: PodExplanation = field(default_factory=lambda: explained(BUSY))
    why: AskWhy | None = None
    asked: list[str] = field(default_factory=list)
    kept: list[Known] = field(default_factory=list)
    not_ready: str | None = None
    leads: bool = True
    now_ns: int = 0
    said: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events = WaitingPodEvents(
            waiting=lambda: self.pods,
            explain=self._explain,
            not_ready=lambda: self.not_ready,
            leads=lambda: self.leads,
            say=self.said.extend,
            boottime_ns=lambda: self.now_ns,
        )

    def _explain(self, one: AdmittedPod, known: Known) -> PodExplanation:
        self.asked.append(one.metadata.uid or "")
        self.kept.append(known)
        return self.found if self.why is None else self.why(one, known)

    def look(self, times: int = 1) -> list[str]:
        """What is said: UID and code."""
        self.said.clear()
        for _ in range(times):
            self.events.look()
        return [f"{x.regarding.uid} {x.code}" for x in self.said]


def test_a_pod_that_has_just_come_may_be_bound_yet() -> None:
    world = World([pod()])
    assert world.look() == []
    assert world.look() == ["u-1 GPU_BUSY"]


def test_the_same_is_said_again_after_a_while_and_something_else_at_once() -> None:
    world = World([pod()])
    assert world.look(3) == ["u-1 GPU_BUSY"]
    world.now_ns = AGAIN_NS - 1
    assert world.look() == []
    world.now_ns = AGAIN_NS
    assert world.look(2) == ["u-1 GPU_BUSY"]
    world.found = explained(LOW)
    assert world.look(2) == ["u-1 LEVEL_TOO_LOW"]


def test_other_numbers_are_said_at_once_and_once() -> None:
    world = World([pod()])
    world.look(2)
    world.found = explained(BUSY, LOW, dataclass_replace(BUSY, code=R.GPU_NO_MATCH, count=2))
    assert world.look(2) == ["u-1 GPU_BUSY"]
    (said,) = world.said
    assert said.note.startswith("3 of 6 nodes")


def test_a_pod_that_was_gone_begins_again() -> None:
    one = pod()
    world = World([one])
    world.look(2)
    world.pods = []
    assert world.look() == []
    world.pods = [one]
    assert world.look() == []
    assert world.look() == ["u-1 GPU_BUSY"]


def test_what_was_found_is_kept_for_one_look() -> None:
    world = World([pod(uid="u-1"), pod(uid="u-2")])
    world.look(3)
    assert world.asked == ["u-1", "u-2"] * 2
    first, second = world.kept[:2], world.kept[2:]
    assert first[0] is first[1]
    assert second[0] is second[1]
    assert first[0] is not second[0]


def quota(namespace: str) -> HeldBack:
    return HeldBack(Refusal(R.QUOTA_EXCEEDED, f"{namespace} holds 8 GPUs and may hold 8"))


def test_each_pod_is_told_what_stands_against_itself() -> None:
    """Its namespace's quota, its lost turn, refused Bindings and GPUs; the rest is asked once."""
    held = {"u-a": quota("team-a"), "u-lost": HeldBack(OTHERS_FIRST)}
    denied = {"u-denied": frozenset({"gpu-1"})}
    gpus = frozenset({"GPU-gpu-1-0"})
    uses = {"u-early": DeviceUse(own=gpus), "u-sharing": DeviceUse(shared=gpus)}
    counted: list[str] = []

    class Counting(Scenes):
        def now(self, use: DeviceUse = NO_USE) -> Scene:
            counted.append("judged")
            return super().now(use)

    here, moment = fleet(healthy("gpu-1")), Moment(NOW_NS, 0)
    verbs = ExtenderVerbs(
        scenes=Counting(lambda: here, lambda: DEFAULT_POLICY, lambda: moment),
        not_ready=lambda: None,
        use=lambda uid, _share: uses.get(uid or "", NO_USE),
        rules=RequirementRules(),
        denied=lambda uid: denied.get(uid, frozenset()),
        held_back=lambda _namespace, uid, _count: held.get(uid),
    )
    uids = ("u-a", "u-b", "u-lost", "u-denied", "u-c", "u-early", "u-sharing")
    for order in (uids, uids[::-1]):
        counted.clear()
        world = World([in_namespace(f"team-{uid[2:]}", uid) for uid in order])
        world.why = verbs.why_waiting
        assert sorted(world.look(2)) == [
            "u-a QUOTA_EXCEEDED",
            "u-denied BINDING_DENIED_RECENTLY",
            "u-lost RESERVATION_EXPIRED",
        ]
        assert ["team-a holds" in x.note for x in world.said].count(True) == 1
        assert len(counted) == 6  # u-b and u-c are one question


def test_one_look_tells_a_bounded_number() -> None:
    world = World([pod(uid=str(number)) for number in range(MOST_PODS + 1)])
    assert len(world.look(2)) == MOST_PODS


def test_only_the_leader_speaks_and_only_once_it_may_decide() -> None:
    world = World([pod()])
    world.leads = False
    assert world.look(3) == []
    world.leads, world.not_ready = True, "first round"
    assert world.look(3) == []
    world.not_ready = None
    assert world.look() == []
    assert world.look() == ["u-1 GPU_BUSY"]
