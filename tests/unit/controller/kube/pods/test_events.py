from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from controller.binding.records import BindDecision
from controller.binding.use import UseFault, UseFaultKind
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.api.cache import Change
from controller.kube.api.resources import Entry
from controller.kube.pods.events import (
    BURST,
    FORGET_NS,
    MAX_KINDS,
    MAX_NOTE,
    MAX_PODS,
    MAX_VICTIMS,
    REASONS,
    REPEAT_NS,
    EventSeries,
    Notice,
    Regarding,
    Severity,
    Writing,
    binding_notice,
    placement_notice,
    trust_notices,
    use_notices,
)
from controller.kube.pods.pods import KnownPod, PodsByNode
from controller.ledger.record import PodRef
from controller.placement.filter_and_score import FilterDecision, Totals
from gpuwarden.reasons import ReasonCode, Refusal

# --- Events: the first at once, repeats as counts, never too many, never too long

_SECOND = 1_000_000_000
NOW = 100 * _SECOND
WALL = 1_800_000_000 * _SECOND
NODE = Regarding("Node", "gpu-1", "uid-1")
POD = Regarding("Pod", "train-0", "uid-2", "team")


def notice(about: Regarding = NODE, code: str = "SIG_INVALID", note: str = "why") -> Notice:
    return Notice(about, "EvidenceRefused", "Refuse", Severity.WARNING, code, note)


@pytest.fixture
def series() -> EventSeries:
    return EventSeries("gpuwarden.dev/controller", "controller-0")


def written(series: EventSeries, now_ns: int = NOW) -> Writing:
    writing = series.next_writing(now_ns)
    assert writing is not None
    series.wrote(writing.key, now_ns)
    return writing


def test_the_first_is_written_whole(series: EventSeries) -> None:
    assert series.add(notice(), "1a2b", NOW, WALL) == "queued"
    writing = written(series)
    assert (writing.namespace, writing.name, writing.is_new) == ("default", "gpu-1.1a2b", True)
    assert writing.body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "gpu-1.1a2b", "namespace": "default"},
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "reportingController": "gpuwarden.dev/controller",
        "reportingInstance": "controller-0",
        "action": "Refuse",
        "reason": "EvidenceRefused",
        "type": "Warning",
        "note": "gpuwarden: SIG_INVALID why",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "uid-1"},
    }
    assert series.next_writing(NOW) is None


def test_a_pods_event_stands_in_its_namespace(series: EventSeries) -> None:
    series.add(notice(POD), "x", NOW, WALL)
    writing = written(series)
    assert writing.namespace == "team"
    assert writing.body["regarding"]["namespace"] == "team"


def test_repeats_become_a_count_at_most_once_a_minute(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    for second in (1, 2):
        assert series.add(notice(note="again"), "y", NOW + second, WALL + _SECOND) == "merged"
    assert series.next_writing(NOW + REPEAT_NS - 1) is None
    writing = written(series, NOW + REPEAT_NS)
    assert (writing.name, writing.is_new) == ("gpu-1.x", False)
    assert writing.body == {
        "message": "gpuwarden: SIG_INVALID again",
        "series": {"count": 3, "lastObservedTime": "2027-01-15T08:00:01.000000Z"},
    }
    assert series.next_writing(NOW + 3 * REPEAT_NS) is None


def test_the_text_of_a_repeat_is_the_newest_and_bounded(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    for note in ("3 of 4 nodes", "2 of 4 nodes " + "x" * MAX_NOTE):
        series.add(notice(note=note), "x", NOW, WALL)
    text = written(series, NOW + REPEAT_NS).body["message"]
    assert text.startswith("gpuwarden: SIG_INVALID 2 of 4 nodes x")
    assert len(text) <= MAX_NOTE


def test_what_is_new_comes_before_repeats_and_these_by_age(series: EventSeries) -> None:
    first = notice(code="A")
    for number, one in enumerate((first, notice(code="B"))):
        series.add(one, "x", NOW, WALL)
        written(series, NOW + number)
    series.wrote(first.key, NOW + 2)
    for code in "ABC":
        series.add(notice(code=code), "x", NOW + 2, WALL)
    due_ns = NOW + 2 + REPEAT_NS
    assert [written(series, due_ns).key[2] for _ in range(3)] == ["C", "B", "A"]


def test_repeats_before_the_first_was_written_are_in_it(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    series.add(notice(), "y", NOW, WALL)
    assert written(series).body["series"]["count"] == 2


def test_another_code_or_object_is_another_event(series: EventSeries) -> None:
    for about, code in ((NODE, "A"), (NODE, "B"), (POD, "A")):
        assert series.add(notice(about, code), "x", NOW, WALL) == "queued"


def test_a_kind_that_was_silent_begins_again(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    assert series.add(notice(), "y", NOW + FORGET_NS, WALL) == "queued"


def test_few_kinds_are_remembered(series: EventSeries) -> None:
    for number in range(MAX_KINDS):
        assert series.add(notice(code=f"C{number}"), "x", NOW, WALL) == "queued"
    assert series.add(notice(code="one too many"), "x", NOW, WALL) == "dropped"
    assert series.clear() == MAX_KINDS
    assert series.next_writing(NOW) is None


def test_few_writes_are_made_in_a_second(series: EventSeries) -> None:
    for number in range(100):
        series.add(notice(code=f"C{number}"), "x", NOW, WALL)
    burst = 0
    while series.next_writing(NOW) is not None:
        burst += 1
    assert burst == BURST
    assert series.next_writing(NOW + _SECOND // 5) is not None
    assert series.next_writing(NOW + _SECOND // 5) is None


def test_texts_are_cleaned_and_bounded(series: EventSeries) -> None:
    note = "\x1b]0;evil\x07 bearer abcdefghijkl " + "x" * 5000
    series.add(notice(Regarding("Node", "n" * 253, "u"), note=note), "1a", NOW, WALL)
    body = written(series).body
    assert len(body["note"]) <= MAX_NOTE
    assert body["note"].isprintable()
    assert "abcdefghijkl" not in body["note"]
    assert len(body["metadata"]["name"]) <= 253


def test_a_failed_write_is_tried_again_three_times(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    for _ in range(2):
        writing = series.next_writing(NOW)
        assert writing is not None
        assert not series.failed(writing.key, is_gone=False)
    writing = series.next_writing(NOW)
    assert writing is not None
    assert series.failed(writing.key, is_gone=False)
    assert series.next_writing(NOW) is None
    assert not series.failed(writing.key, is_gone=False)


def test_an_event_that_expired_is_written_again(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    written(series)
    series.add(notice(), "x", NOW, WALL)
    writing = series.next_writing(NOW + REPEAT_NS)
    assert writing is not None
    series.failed(writing.key, is_gone=True)
    again = series.next_writing(NOW + REPEAT_NS)
    assert again is not None
    assert again.is_new


def test_what_is_no_longer_known_was_written(series: EventSeries) -> None:
    series.add(notice(), "x", NOW, WALL)
    writing = series.next_writing(NOW)
    assert writing is not None
    series.clear()
    series.wrote(writing.key, NOW)
    assert series.next_writing(NOW) is None


# --- Which change is told to whom

NODES = DirectorySnapshot({"gpu-1": KnownNode("uid-1"), "odd": KnownNode(None)})


def pod(name: str = "p", node: str = "gpu-1", **changed: bool) -> KnownPod:
    facts: dict[str, Any] = {"has_ended": False, "asks": True, "uses_gpus": True, **changed}
    return KnownPod("team", name, f"uid-{name}", node, **facts)


def entry(value: KnownPod) -> Entry[KnownPod]:
    return Entry("v", value.uid, value)


def none(_node: str) -> Iterable[KnownPod]:
    return ()


def test_a_quarantine_is_reported_on_the_node_and_its_managed_pods() -> None:
    change = TrustChange("gpu-1", ChangeKind.QUARANTINED, ReasonCode.DUPLICATE_AGENT, "two of them")
    node, on_pod = trust_notices([change], NODES, lambda _node: [pod()])
    assert node.regarding == Regarding("Node", "gpu-1", "uid-1")
    assert (node.reason, node.code, node.note) == (
        "NodeQuarantined",
        "DUPLICATE_AGENT",
        "two of them",
    )
    assert node.severity is Severity.WARNING
    assert on_pod.regarding == Regarding("Pod", "p", "uid-p", "team")
    assert on_pod.note == "node gpu-1: two of them"


def test_a_recovery_is_good_news() -> None:
    (notice,) = trust_notices([TrustChange("gpu-1", ChangeKind.RESTORED)], NODES, none)
    assert (notice.reason, notice.severity, notice.code) == ("NodeRecovered", Severity.NORMAL, "")


def test_a_lost_gpu_is_named() -> None:
    change = TrustChange("gpu-1", ChangeKind.GPU_LOST, detail="xid 79", gpu="GPU-a")
    (notice,) = trust_notices([change], NODES, lambda _node: [pod()])
    assert notice.note == "xid 79 GPU-a"


@pytest.mark.parametrize(
    "kind", [ChangeKind.RENEWED, ChangeKind.FIRST_ACCEPTED, ChangeKind.OUTDATED]
)
def test_a_quiet_round_says_nothing(kind: ChangeKind) -> None:
    assert list(trust_notices([TrustChange("gpu-1", kind)], NODES, none)) == []


@pytest.mark.parametrize("node", ["nobody", "odd"])
def test_a_node_that_the_cluster_does_not_have_has_no_events(node: str) -> None:
    assert list(trust_notices([TrustChange(node, ChangeKind.REVOKED)], NODES, none)) == []


def test_a_crowded_node_tells_some_of_its_pods() -> None:
    pods = [pod(str(n)) for n in range(200)]
    change = TrustChange("gpu-1", ChangeKind.REVOKED)
    assert len(list(trust_notices([change], NODES, lambda _node: pods))) == MAX_PODS + 1


def test_reasons_are_constant_words() -> None:
    assert all(x.isalpha() and x[0].isupper() and len(x) <= 128 for x in REASONS)


class TestPodsByNode:
    def test_it_follows_pods_to_and_from_nodes(self) -> None:
        pods = PodsByNode(lambda _namespace: False)
        unbound, bound = entry(pod(node="")), entry(pod())
        pods.observe((Change("team/p", None, unbound),), None)
        assert list(pods.managed("")) == [unbound.value]
        assert pods.any_waits()
        pods.observe((Change("team/p", unbound, bound),), None)
        assert not pods.any_waits()
        assert list(pods.managed("gpu-1")) == [bound.value]
        ended = entry(pod(has_ended=True))
        pods.observe((Change("team/p", bound, ended),), None)
        assert list(pods.managed("gpu-1")) == []
        pods.observe((Change("team/p", ended, None),), None)
        pods.observe((Change("team/p", None, bound),), None)
        pods.observe((Change("team/p", bound, None),), None)
        assert list(pods.managed("gpu-1")) == []
        assert pods._pods == {}

    def test_enforced_namespaces_guard_every_gpu_pod(self) -> None:
        enforced: set[str] = set()
        pods = PodsByNode(enforced.__contains__)
        plain = pod("a", asks=False)
        cpu_only = pod("b", asks=False, uses_gpus=False)
        pods.observe(tuple(Change(x.name, None, entry(x)) for x in (plain, cpu_only)), None)
        assert list(pods.managed("gpu-1")) == []
        enforced.add("team")
        assert list(pods.managed("gpu-1")) == [plain]


# --- Which disagreement is told on which object, and in what words

ONE_NODE = DirectorySnapshot({"gpu-1": KnownNode("uid-1")})
USE_POD = PodRef("team-a", "train-0", "uid-0")
ON_NODE, ON_POD = (
    Regarding("Node", "gpu-1", "uid-1"),
    Regarding("Pod", "train-0", "uid-0", "team-a"),
)


def told(
    kind: UseFaultKind,
    pod: PodRef | None = USE_POD,
    owner: str = "",
    node: str = "gpu-1",
    victims: tuple[PodRef, ...] = (),
) -> list[Notice]:
    fault = UseFault(kind, node, "GPU-a", pod, owner, victims)
    return list(use_notices([fault], ONE_NODE))


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
            UseFaultKind.SLICED_GPU,
            ON_POD,
            "GpuMismatch",
            "kubelet gave the pod slices of GPU-a, where it has asked for as many GPUs",
        ),
        (
            UseFaultKind.GONE_GPU,
            ON_POD,
            "GpuMismatch",
            "the pod has GPU-a, which its node shows no more: it was replaced or split again",
        ),
        (
            UseFaultKind.UNRESERVED,
            ON_POD,
            "GpuUnreserved",
            "the pod was bound without a reservation and sees no GPU",
        ),
        (
            UseFaultKind.UNRESERVED_USE,
            ON_NODE,
            "GpuUnreservedUse",
            "GPU-a is used by pod team-a/train-0, and no reservation explains it",
        ),
    ],
)
def test_about_whom(kind: UseFaultKind, about: Regarding, reason: str, note: str) -> None:
    (notice,) = told(kind)
    assert notice == Notice(about, reason, "Compare", Severity.WARNING, "", note)


def test_users_that_are_not_known() -> None:
    (unknown,) = told(UseFaultKind.UNRESERVED_USE, None, "uid-9")
    assert "by pod UID uid-9 (no live pod of this node)" in unknown.note
    (nobody,) = told(UseFaultKind.UNRESERVED_USE, None)
    assert "by a process of no pod" in nobody.note


def test_nothing_about_what_the_cluster_does_not_have() -> None:
    assert told(UseFaultKind.UNRESERVED_USE, node="gpu-9") == []
    assert told(UseFaultKind.OTHER_GPU, None) == []


# --- What report-only mode says in Events about Bindings and placement

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
REGARDED = Regarding("Pod", "train-0", "uid-0", "team-a")


def test_a_binding_that_would_be_denied_is_reported_on_its_pod() -> None:
    notice = binding_notice(BOUND)
    assert notice is not None
    assert (notice.regarding, notice.reason, notice.code) == (
        REGARDED,
        "BindingWouldBeDenied",
        "GPU_BUSY",
    )
    assert notice.note == "would be denied: none free (and 1 more)"


def test_a_pod_that_no_node_would_get_is_reported_why() -> None:
    notice = placement_notice(FILTERED, REJECTED)
    assert notice is not None
    assert (notice.regarding, notice.reason) == (REGARDED, "PodWouldNotBePlaced")
    assert notice.code == "NODE_NO_EVIDENCE"
    assert notice.note == "no node would be offered: 3 of 4 nodes, 1 GPU_BUSY"


def test_nothing_is_reported_where_nothing_would_be_denied() -> None:
    assert binding_notice(replace(BOUND, refusals=())) is None
    assert placement_notice(FILTERED, replace(REJECTED, passed=1)) is None
    assert placement_notice(FILTERED, Totals(0, {}, "d")) is None


def test_nothing_is_reported_of_what_is_carried_out() -> None:
    assert binding_notice(replace(BOUND, reported=False)) is None
    assert placement_notice(replace(FILTERED, reported=False), REJECTED) is None


VICTIM = PodRef("team-b", "victim-0", "uid-7")
USED = "GPU-a, of which this pod holds all or a part, is used by"


@pytest.mark.parametrize(
    ("pod", "owner", "user"),
    [
        (USE_POD, "", "pod team-a/train-0"),
        (None, "uid-9", "pod UID uid-9 (no live pod of this node)"),
        (None, "", "a process of no pod"),
    ],
)
def test_the_pod_whose_gpu_is_used_hears_of_it_in_its_namespace(
    pod: PodRef | None, owner: str, user: str
) -> None:
    first, second = told(UseFaultKind.UNRESERVED_USE, pod, owner, victims=(VICTIM,))
    assert first.regarding == ON_NODE
    assert second == Notice(
        Regarding("Pod", "victim-0", "uid-7", "team-b"),
        "GpuUnreservedUse",
        "Compare",
        Severity.WARNING,
        "",
        f"{USED} {user}",
    )


def test_a_gpu_that_many_hold_makes_few_events() -> None:
    many = tuple(PodRef("team-b", f"victim-{x}", f"uid-{x}") for x in range(MAX_VICTIMS + 5))
    found = told(UseFaultKind.UNRESERVED_USE, None, victims=many)
    assert len(found) == 1 + MAX_VICTIMS


def test_a_victim_hears_of_it_where_the_cluster_has_no_such_node() -> None:
    (notice,) = told(UseFaultKind.UNRESERVED_USE, None, node="gone", victims=(VICTIM,))
    assert notice.regarding.name == "victim-0"


# --- No Event is without a text, and none has a code twice


def notes_of(series: EventSeries, notices: Iterable[Notice]) -> list[str]:
    for number, one in enumerate(notices):
        series.add(one, str(number), NOW, WALL)
    found = []
    while (writing := series.next_writing(NOW + 60 * _SECOND)) is not None:
        series.wrote(writing.key, NOW)
        found.append(writing.body["note"])
    return found


@pytest.mark.parametrize("kind", ChangeKind)
@pytest.mark.parametrize("code", [None, ReasonCode.SIG_INVALID])
def test_a_change_without_a_detail_has_a_text(
    series: EventSeries, kind: ChangeKind, code: ReasonCode | None
) -> None:
    change = TrustChange("gpu-1", kind, code)
    pods = [pod("train-0")]
    notices = list(trust_notices([change], ONE_NODE, lambda _node: pods))
    for note in notes_of(series, notices):
        words = note.removeprefix("gpuwarden: ").replace("SIG_INVALID", "").strip()
        assert len(words.split()) >= 3
        assert note.count("SIG_INVALID") == (code is not None)


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ("the node is late", "gpuwarden: NODE_STALE the node is late"),
        ("3 NODE_STALE, 1 GPU_BUSY", "gpuwarden: 3 NODE_STALE, 1 GPU_BUSY"),
        ("NODE_STALE: late", "gpuwarden: NODE_STALE: late"),
        ("MY_NODE_STALE_X", "gpuwarden: NODE_STALE MY_NODE_STALE_X"),
    ],
)
def test_a_code_is_in_a_text_once(series: EventSeries, note: str, text: str) -> None:
    assert notes_of(series, [notice(code="NODE_STALE", note=note)]) == [text]
