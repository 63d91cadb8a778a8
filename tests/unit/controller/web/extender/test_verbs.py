import json
from dataclasses import replace
from typing import Any

import pytest

from controller.placement.explanation import FitReport
from controller.placement.filter_and_score import FilterDecision, HeldBack, Totals
from controller.placement.requirements import UNMANAGED, Requirements, RequirementsInvalid, describe
from controller.placement.snapshot import DeviceUse, no_use
from controller.placement.static_hashes import InsecureStaticHashes
from controller.policy import NodeMode, Policy
from controller.record import Record
from controller.recorders.http import FilterRecorder
from controller.web.extender.scheduler_messages import (
    ArgsError,
    Victims,
    decode_args,
    decode_preemption_args,
    encode_error,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)
from controller.web.extender.verbs import Answer, ExtenderVerbs
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    fleet,
    gpu,
    hash_of,
    healthy,
    node,
)
from tests.builders.pods import as_pod, pod_json
from tests.fakes.placement import World, args, victims
from tests.fakes.recording_audit import RecordingAudit

# --- The verbs from bytes to bytes, without HTTP

MANAGED = pod_json({"gpuwarden.dev/required-hash": hash_of("a")})
PLAIN = pod_json(gpus=1)


def call(verbs: ExtenderVerbs, pod: dict[str, Any], *names: str) -> dict[str, Any]:
    answer = verbs.filter(json.dumps(args(pod, *names)).encode())
    assert answer.status == 200
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def scores(verbs: ExtenderVerbs, pod: dict[str, Any], *names: str) -> Any:
    answer = verbs.prioritize(json.dumps(args(pod, *names)).encode())
    assert answer.status == 200
    return {entry["Host"]: entry["Score"] for entry in json.loads(answer.body)}


def test_every_rejection_is_unresolvable() -> None:
    busy = healthy("full", gpus=0)
    world = World(fleet(healthy("n1"), healthy("n2", "b"), busy))
    pod = pod_json({"gpuwarden.dev/required-hash": hash_of("a"), "gpuwarden.dev/gpu-count": "1"})
    found = call(world.verbs(), pod, "n1", "n2", "full")
    assert found["NodeNames"] == ["n1"]
    assert found["FailedNodes"] == {}
    assert found["FailedAndUnresolvableNodes"] == {
        "n2": "gpuwarden: HASH_MISMATCH attestation mismatch",
        "full": "gpuwarden: GPU_NO_MATCH too few GPUs are as the pod asks",
    }


def test_unmanaged_pods_pass_untouched_with_an_empty_fleet_and_while_not_ready() -> None:
    verbs = World(not_ready="first round").verbs()
    answer = verbs.filter(json.dumps(args(PLAIN, "n1", "n2")).encode())
    assert json.loads(answer.body)["NodeNames"] == ["n1", "n2"]
    assert (answer.result, answer.decision) == ("untouched", None)
    assert scores(verbs, PLAIN, "n1", "n1") == {"n1": 0}


def test_managed_pods_get_an_error_until_ready() -> None:
    world = World(fleet(healthy("n1")), not_ready="first round: 12 ms left")
    found = call(world.verbs(), MANAGED, "n1")
    assert found["Error"] == "gpuwarden: CONTROLLER_NOT_READY first round: 12 ms left"
    assert found["NodeNames"] is None
    assert scores(world.verbs(), MANAGED, "n1") == {"n1": 0}
    world.not_ready = None
    assert call(world.verbs(), MANAGED, "n1")["Error"] == ""
    assert scores(world.verbs(), MANAGED, "n1")["n1"] > 0


def test_invalid_requirements_fail_every_node_and_say_why() -> None:
    verbs = World(fleet(healthy("n1"))).verbs()
    found = call(verbs, pod_json({"gpuwarden.dev/required-hash": ""}), "n1", "n2")
    assert found["NodeNames"] == []
    texts = set(found["FailedAndUnresolvableNodes"].values())
    assert len(texts) == 1
    assert texts.pop().startswith("gpuwarden: REQ_INVALID gpuwarden.dev/required-hash: ")


def test_bad_requests() -> None:
    verbs = World().verbs()
    for answer in (verbs.filter(b"{"), verbs.prioritize(b'{"NodeNames":["n"]}')):
        assert (answer.status, answer.result) == (400, "bad")
        assert json.loads(answer.body)["Error"]
    assert b"missing pod in args" in verbs.filter(b"{}").body


def test_fleet_policy_and_time_are_read_at_each_request() -> None:
    world = World(fleet(healthy("n1")))
    verbs = world.verbs()
    assert call(verbs, MANAGED, "n1")["NodeNames"] == ["n1"]
    world.policy = Policy(allowed_hashes=frozenset())
    assert call(verbs, MANAGED, "n1")["NodeNames"] == []
    world.policy = Policy()
    world.now_ns += LEASE_NS
    assert call(verbs, MANAGED, "n1")["NodeNames"] == []
    world.fleet = fleet()
    world.now_ns -= LEASE_NS
    assert call(verbs, MANAGED, "n1")["NodeNames"] == []


def test_enforced_namespace() -> None:
    world = World(fleet(healthy("n1", mode=NodeMode.PLUGIN)), enforced=frozenset({"team-a"}))
    assert call(world.verbs(), PLAIN, "n1", "n2")["NodeNames"] == ["n1"]


STATIC = InsecureStaticHashes({"kind-worker": "abc123"})


def test_static_hashes_are_marked_in_every_reason() -> None:
    verbs = World().verbs(static=STATIC)
    pod = pod_json({"attestation-hash.my-company.com/required-hash": "abc123"}, gpus=1)
    found = call(verbs, pod, "kind-worker", "kind-worker2")
    assert found["NodeNames"] == ["kind-worker"]
    assert found["FailedAndUnresolvableNodes"] == {
        "kind-worker2": "gpuwarden: NODE_NO_EVIDENCE no attestation hash (insecure static hashes)"
    }
    assert verbs.insecure == ("static-hashes",)
    assert World().verbs().insecure == ()
    assert replace(verbs, evaluation=True).insecure == ("evaluation", "static-hashes")


def decided(answer: Answer) -> tuple[Record, dict[ReasonCode, int]]:
    audit = RecordingAudit()
    counts: dict[ReasonCode, int] = {}
    assert answer.decision is not None
    FilterRecorder(audit, counts.update).note(answer.decision)
    return audit.noted[0], counts


def test_report_only_offers_every_node_and_decides_all_the_same() -> None:
    world = World(fleet(healthy("n1"), healthy("n2", "b")))
    verbs = world.verbs(report=True)
    nowhere = pod_json({"gpuwarden.dev/required-hash": hash_of("c")})
    for pod, result, word in ((MANAGED, "passed", "passed"), (nowhere, "reported", "reported")):
        answer = verbs.filter(json.dumps(args(pod, "n1", "n2", "n3")).encode())
        found = json.loads(answer.body)
        assert found["NodeNames"] == ["n1", "n2", "n3"]
        assert found["FailedAndUnresolvableNodes"] == {}
        assert answer.result == result
        record, counts = decided(answer)
        same, enforced = decided(
            world.verbs().filter(json.dumps(args(pod, "n1", "n2", "n3")).encode())
        )
        assert counts == enforced
        assert record.codes == same.codes
        assert record.decision == word


def test_report_only_holds_nobody_back_while_not_ready() -> None:
    verbs = World(not_ready="first round").verbs(report=True)
    answer = verbs.filter(json.dumps(args(MANAGED, "n1")).encode())
    assert json.loads(answer.body)["NodeNames"] == ["n1"]
    assert json.loads(answer.body)["Error"] == ""
    assert (answer.result, answer.decision) == ("not_ready", None)


def test_who_is_to_tell_hears_of_every_decision() -> None:
    heard: list[tuple[str, int]] = []
    answer = World(fleet(healthy("n1"))).verbs().filter(json.dumps(args(MANAGED, "n1")).encode())
    assert answer.decision is not None
    FilterRecorder(
        RecordingAudit(),
        lambda _: None,
        lambda told, totals: heard.append((told.pod, totals.passed)),
    ).note(answer.decision)
    assert heard == [(answer.decision.pod, 1)]


def test_a_decision_leaves_a_bounded_record() -> None:
    world = World(fleet(healthy("n1")), policy=Policy(digest="d" * 64))
    pod = pod_json({"gpuwarden.dev/required-hash": hash_of("a")}, name="train-" + "0" * 1000)
    names = ["n1", *(f"m{i}" for i in range(5000))]
    record, counts = decided(world.verbs().filter(json.dumps(args(pod, *names)).encode()))
    assert record.kind is RecordKind.FILTER_DECISION
    assert record.actor == "kube-scheduler"
    assert record.subject.startswith("pod/team-a/train-000")
    assert record.decision == "passed"
    assert record.codes == ("NODE_NO_EVIDENCE",)
    digest = record.refs["nodesDigest"]
    assert record.refs == {
        "uid": "b7c9",
        "candidates": 5001,
        "passed": 1,
        "rejected": {"NODE_NO_EVIDENCE": 5000},
        "nodesDigest": digest,
        "policy": "d" * 64,
        "fleetVersion": 1,
        "insecure": [],
    }
    assert len(json.dumps(dict(record.refs))) < 1024
    assert counts == {ReasonCode.NODE_NO_EVIDENCE: 5000, ReasonCode.ACCEPTED: 1}


def test_a_rejection_is_recorded_and_says_what_it_rests_on() -> None:
    verbs = World().verbs(static=STATIC)
    record, _ = decided(verbs.filter(json.dumps(args(MANAGED, "n1")).encode()))
    assert record.decision == "rejected"
    assert record.refs["insecure"] == ["static-hashes"]
    nameless = pod_json({"gpuwarden.dev/required-hash": hash_of("a")}, name=None)
    del nameless["metadata"]["namespace"], nameless["metadata"]["uid"]
    record, _ = decided(verbs.filter(json.dumps(args(nameless, "n1")).encode()))
    assert record.subject == "pod//"


def test_fit() -> None:
    verbs = World(fleet(healthy("n1")), enforced=frozenset({"team-b"})).verbs()
    needs, report = verbs.fit(as_pod(MANAGED))
    assert isinstance(needs, Requirements)
    assert describe(needs)[0] == f"attestation hash: {hash_of('a')}"
    assert report is not None
    assert report.fits[0].refusal is None
    assert verbs.fit(as_pod(PLAIN)) == (UNMANAGED, None)
    elsewhere = {**PLAIN, "metadata": {**PLAIN["metadata"], "namespace": "team-b"}}
    needs, report = verbs.fit(as_pod(elsewhere))
    assert report is not None
    wrong = pod_json({"gpuwarden.dev/gpu-count": "x"})
    needs, report = verbs.fit(as_pod(wrong))
    assert isinstance(needs, RequirementsInvalid)
    assert report is not None
    assert verbs.fit(as_pod(wrong), placed=True) == (needs, report)


def test_fit_before_anything_is_decided() -> None:
    world = World(fleet(healthy("n1")), not_ready="first round")
    needs, report = world.verbs().fit(as_pod(MANAGED))
    assert isinstance(needs, Requirements)
    assert report == FitReport((), {}, Refusal(ReasonCode.CONTROLLER_NOT_READY, "first round"))
    assert world.verbs().fit(as_pod(PLAIN)) == (UNMANAGED, None)


def test_fit_on_the_node_of_the_map_alone() -> None:
    verbs = World(fleet(healthy("n1"), healthy("n2"))).verbs()
    asking = {"gpu-scheduling-map": "0=n2:0\n1=away:0", "gpuwarden.dev/ordinal": "0"}
    _, everywhere = verbs.fit(as_pod(pod_json(asking)))
    _, placed = verbs.fit(as_pod(pod_json(asking)), placed=True)
    assert everywhere is not None
    assert placed is not None
    assert [x.node for x in everywhere.fits] == ["n1", "n2"]
    assert placed.fits == everywhere.fits[1:]
    _, placed = verbs.fit(as_pod(pod_json(asking | {"gpuwarden.dev/ordinal": "1"})), placed=True)
    assert placed is not None
    (away,) = placed.fits
    assert away.node == "away"
    assert away.refusal is not None
    assert away.refusal.code is ReasonCode.NODE_NO_EVIDENCE
    _, unmapped = verbs.fit(as_pod(MANAGED), placed=True)
    assert unmapped is not None
    assert [x.node for x in unmapped.fits] == ["n1", "n2"]


def test_nothing_is_busy_without_reservations() -> None:
    assert no_use("uid", None) == DeviceUse()


REQUIREMENT = pod_json({"gpuwarden.dev/gpu-selector": "memory>=1Gi"})
UID = REQUIREMENT["metadata"]["uid"]


def test_what_the_ledger_holds_is_busy_but_for_its_own_pod() -> None:
    world = World(fleet=fleet(healthy("n1", gpus=1), healthy("n2", gpus=1)))
    assert call(world.verbs(), REQUIREMENT, "n1", "n2")["NodeNames"] == ["n1", "n2"]
    world.held = {"GPU-n1-0": "another", "GPU-n2-0": UID}
    found = call(world.verbs(), REQUIREMENT, "n1", "n2")
    assert found["NodeNames"] == ["n2"]
    assert found["FailedAndUnresolvableNodes"]["n1"].startswith("gpuwarden: GPU_BUSY ")
    points = scores(world.verbs(), REQUIREMENT, "n1", "n2")
    assert points["n1"] == 0 < points["n2"]


def test_what_the_binding_webhook_has_just_denied_is_left_out() -> None:
    world = World(fleet=fleet(healthy("n1"), healthy("n2"), healthy("n3")))
    world.denied = {UID: frozenset({"n2", "n9"})}
    names = ("n1", "n2", "n3", "n4")
    answer = world.verbs().filter(json.dumps(args(REQUIREMENT, *names)).encode())
    found = json.loads(answer.body)
    assert found["NodeNames"] == ["n1", "n3"]
    assert list(found["FailedAndUnresolvableNodes"]) == ["n2", "n4"]
    text = "gpuwarden: BINDING_DENIED_RECENTLY the binding was denied a moment ago"
    assert found["FailedAndUnresolvableNodes"]["n2"] == text
    assert answer.decision is not None
    totals = answer.decision.totals()
    assert totals.passed == 2
    assert totals.rejected == {
        ReasonCode.BINDING_DENIED_RECENTLY: 1,
        ReasonCode.NODE_NO_EVIDENCE: 1,
    }
    world.denied = {"another": frozenset({"n2"})}
    assert call(world.verbs(), REQUIREMENT, *names)["NodeNames"] == ["n1", "n2", "n3"]


def test_what_holds_the_pod_back_is_said_of_the_nodes_that_would_pass() -> None:
    asked: list[tuple[str, str, int]] = []

    def over(namespace: str, uid: str, count: int) -> HeldBack:
        asked.append((namespace, uid, count))
        return HeldBack(Refusal(ReasonCode.QUOTA_EXCEEDED, "4 of 4"))

    world = World(fleet=fleet(healthy("n1")))
    verbs = replace(world.verbs(), held_back=over)
    found = call(verbs, REQUIREMENT, "n1", "n2")
    assert found["NodeNames"] == []
    assert found["FailedAndUnresolvableNodes"]["n1"] == "gpuwarden: QUOTA_EXCEEDED 4 of 4"
    assert asked == [("team-a", UID, 1)]
    explained = verbs.explain(json.dumps(REQUIREMENT).encode())
    assert [x.code for x in explained.rejections] == [ReasonCode.QUOTA_EXCEEDED]
    assert preempted(verbs, REQUIREMENT, n1=["u1"])[0] == {}
    assert preempted(world.verbs(), REQUIREMENT, n1=["u1"])[0] == {"n1": of("u1")}
    pod = as_pod(REQUIREMENT)
    assert [x.code for x in verbs.why_waiting(pod).rejections] == [ReasonCode.QUOTA_EXCEEDED]
    assert (verbs.is_held_back(pod), world.verbs().is_held_back(pod)) == (True, False)


def test_fit_says_what_holds_the_pod_back_where_it_would_pass() -> None:
    over = HeldBack(Refusal(ReasonCode.QUOTA_EXCEEDED, "4 of 4"))
    world = World(fleet=fleet(healthy("n1"), node("n2")))
    verbs = replace(world.verbs(), held_back=lambda _namespace, _uid, _count: over)
    _, report = verbs.fit(as_pod(REQUIREMENT))
    assert report is not None
    assert [x.refusal and x.refusal.code for x in report.fits] == [
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.NODE_NO_EVIDENCE,
    ]
    assert report.totals == {ReasonCode.QUOTA_EXCEEDED: 1, ReasonCode.NODE_NO_EVIDENCE: 1}
    _, report = verbs.fit(as_pod(MANAGED))
    assert report is not None
    assert report.fits[0].refusal is None, "it asks for no GPU"


def test_the_denied_come_first_among_many_reasons() -> None:
    nodes = [healthy("late")]
    names = [f"unknown-{number}" for number in range(200)] + ["late"]
    world = World(fleet=fleet(*nodes), denied={UID: frozenset({"late"})})
    found = call(world.verbs(), REQUIREMENT, *names)
    assert found["NodeNames"] == []
    assert len(found["FailedAndUnresolvableNodes"]) == 100
    assert "late" in found["FailedAndUnresolvableNodes"]


def test_where_a_waiting_pod_would_pass() -> None:
    world = World(fleet(healthy("n1"), healthy("n2"), node("n3")))
    verbs = world.verbs()
    requiring = as_pod(pod_json({"gpuwarden.dev/gpu-count": "8"}))
    assert verbs.passing(requiring) == ["n1", "n2"]
    world.held = {"GPU-n1-0": "somebody"}
    assert verbs.passing(requiring) == ["n2"]
    assert verbs.passing(as_pod(pod_json({}))) == []
    wrong = pod_json({"gpuwarden.dev/gpu-count": "x"})
    assert verbs.passing(as_pod(wrong)) == []


def test_why_a_pod_waits_where_nobody_asks_filter() -> None:
    world = World(fleet(healthy("n1"), healthy("n2")), denied={UID: frozenset({"n2"})})
    document = pod_json({"gpuwarden.dev/gpu-count": "9"})
    document["metadata"]["uid"] = UID
    pod = as_pod(document)
    (rejection,) = world.verbs().why_waiting(pod).rejections
    assert (rejection.code, rejection.count) == (ReasonCode.GPU_NO_MATCH, 2)
    assert rejection.detail.endswith("needs 9 GPUs, node has 8, 8 free")
    document["metadata"]["annotations"]["gpuwarden.dev/gpu-count"] = "1"
    found = world.verbs().why_waiting(as_pod(document))
    assert (found.passing, found.examples) == (1, ("n1",))


def test_a_pod_that_got_gpus_at_its_creation_waits_for_that_node_alone() -> None:
    gone = node("n1", acceptance(gpus=[gpu(0, "GPU-n1-0")], issued_ns=NOW_NS - LEASE_NS))
    verbs = World(fleet(gone, healthy("n2"), healthy("n3"))).verbs()
    asked = {"gpuwarden.dev/gpu-count": "1", "gpuwarden.dev/node": "n1"}
    given = asked | {"gpuwarden.dev/reservation-id": "v1.k1.x"}
    found = verbs.explain(json.dumps(pod_json(given)).encode())
    assert (found.passing, found.promise) == (0, None)
    assert [(x.code, x.nodes) for x in found.rejections] == [(ReasonCode.NODE_STALE, ("n1",))]
    assert verbs.explain(json.dumps(pod_json(asked)).encode()).examples == ("n2", "n3")


# --- extender/v1 on the wire, as kube-scheduler and older callers write it

POD = pod_json({"a": "b"})
KEYS = ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]


def body(**args: Any) -> bytes:
    return json.dumps(args).encode()


def full_node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"é": "1"}},
        "status": {"images": [{"names": ["x"], "sizeBytes": 12345678901234567890}]},
    }


def go_node(name: str) -> bytes:
    """As Go writes it inside a list: compact, name first."""
    return json.dumps(full_node(name), separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "keys",
    [
        ("Pod", "Nodes", "NodeNames"),
        ("pod", "nodes", "nodenames"),
        ("pod", "nodes", "nodeNames"),
        ("POD", "NODES", "NODENAMES"),
        ("Pod", "nodes", "NodeNames"),
    ],
)
def test_keys_in_any_case_and_nulls(keys: tuple[str, str, str]) -> None:
    pod, nodes, names = keys
    args = decode_args(body(**{pod: POD, nodes: None, names: ["n1", "n2"]}))
    assert (args.names, args.nodes) == (["n1", "n2"], None)
    assert args.pod.annotations == {"a": "b"}
    listed = decode_args(body(**{pod: POD, nodes: {"items": [full_node("m")]}, names: None}))
    assert listed.names == ["m"]
    assert listed.nodes is not None


@pytest.mark.parametrize("args", [{"NodeNames": ["n"]}, {"nodenames": ["n"], "Nodes": None}])
def test_lists_may_be_absent(args: dict[str, Any]) -> None:
    assert decode_args(body(Pod=POD, **args)).names == ["n"]


def test_no_lists_at_all_is_an_empty_list_of_names() -> None:
    args = decode_args(body(Pod=POD, Nodes=None, NodeNames=None))
    assert (args.names, args.nodes) == ([], None)
    assert json.loads(encode_filter_result(args, [], {}))["NodeNames"] == []


def test_nodes_win_over_an_empty_list_of_names() -> None:
    args = decode_args(body(Pod=POD, Nodes={"items": [full_node("n")]}, NodeNames=[]))
    assert args.names == ["n"]
    assert args.nodes is not None
    empty = decode_args(body(Pod=POD, Nodes={"items": None}, NodeNames=None))
    assert (empty.names, empty.nodes) == ([], [])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "decode args"),
        (b"{", "decode args"),
        (b"[]", "decode args"),
        (b"null", "decode args"),
        (b'{"Pod":' + b"[" * 100_000, "decode args"),
        (b'{"Pod":{},"NodeNames":[1],"Nodes":null}', "decode args"),
        (b'{"Pod":{},"NodeNames":"n","Nodes":null}', "decode args"),
        (b'{"Pod":{},"NodeNames":["\xff"],"Nodes":null}', "decode args"),
        (b'{"Pod":{},"Nodes":{"items":[{"metadata":{}}]},"NodeNames":null}', "decode args"),
        (b'{"Pod":{},"Nodes":{"items":[7]},"NodeNames":null}', "decode args"),
        (b'{"Pod":{"metadata":{"annotations":{"a":1}}},"NodeNames":[]}', "not a Pod"),
        (b'{"pod":{},"POD":{},"nodenames":[]}', "repeated in another case"),
        (b'{"NodeNames":["n"],"Nodes":null}', "missing pod in args"),
        (b'{"Pod":null,"NodeNames":["n"],"Nodes":null}', "missing pod in args"),
        (json.dumps({"Pod": {}, "NodeNames": ["n" * 254]}).encode(), "length <= 253"),
        (json.dumps({"pod": {}, "nodenames": ["n" * 254]}).encode(), "length <= 253"),
        (
            json.dumps(
                {"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "n" * 254}}]}}
            ).encode(),
            "length <= 253",
        ),
        (json.dumps({"Pod": {}, "NodeNames": ["n"] * 100_001}).encode(), "more than 100000"),
    ],
)
def test_undecodable_bodies(data: bytes, expected: str) -> None:
    with pytest.raises(ArgsError) as error:
        decode_args(data)
    assert expected in str(error.value)


def test_answer_by_names_has_exactly_gos_keys() -> None:
    args = decode_args(body(Pod=POD, NodeNames=["n2", "n1"], Nodes=None))
    found = json.loads(encode_filter_result(args, ["n2"], {"n1": "why"}))
    assert list(found) == KEYS
    assert found == {
        "Nodes": None,
        "NodeNames": ["n2"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n1": "why"},
        "Error": "",
    }


def test_answer_with_nodes_echoes_their_bytes() -> None:
    nodes = [go_node("n1"), json.dumps(full_node("n2"), indent=1).encode(), go_node("n3")]
    data = b'{"Pod":%s,"Nodes":{"metadata":{},"items":[%s]},"NodeNames":null}' % (
        json.dumps(POD).encode(),
        b",".join(nodes),
    )
    args = decode_args(data)
    assert args.names == ["n1", "n2", "n3"]
    answer = encode_filter_result(args, ["n1", "n2"], {"n3": "why"})
    assert nodes[0] in answer
    assert nodes[1] in answer
    assert nodes[2] not in answer
    found = json.loads(answer)
    assert found["NodeNames"] is None
    assert found["Nodes"]["items"] == [full_node("n1"), full_node("n2")]
    assert json.loads(encode_filter_result(args, [], {}))["Nodes"]["items"] == []


@pytest.mark.parametrize("name", ["n-1", "n" * 253, "a\\u0062", "é"])
def test_name_of_a_node_is_read_as_json_would(name: str) -> None:
    node = b'{"metadata":{"name":"%s","uid":"u"}}' % name.encode()
    args = decode_args(b'{"Pod":{},"Nodes":{"items":[%s]},"NodeNames":null}' % node)
    assert args.names == [json.loads(node)["metadata"]["name"]]


def test_error_and_priorities() -> None:
    assert json.loads(encode_error("why"))["Error"] == "why"
    assert list(json.loads(encode_error(""))) == KEYS
    assert json.loads(encode_priorities({"n1": 7, "n2": 0})) == [
        {"Host": "n1", "Score": 7},
        {"Host": "n2", "Score": 0},
    ]
    assert encode_priorities({}) == b"[]"


def test_decoding_does_not_copy_out_of_a_writable_buffer() -> None:
    data = bytearray(body(Pod=POD, NodeNames=["n1"], Nodes=None))
    assert decode_args(data).names == decode_args(memoryview(data)).names == ["n1"]


# --- Preemption: which nodes may be emptied for a pod

URGENT = pod_json({"gpuwarden.dev/required-hash": hash_of("a"), "gpuwarden.dev/gpu-count": "2"})


def preempted(verbs: ExtenderVerbs, pod: dict[str, Any], **uids: list[str]) -> tuple[Any, Answer]:
    answer = verbs.preempt(json.dumps(victims(pod, **uids)).encode())
    assert answer.status == 200
    found = json.loads(answer.body)
    assert list(found) == ["NodeNameToMetaVictims"]
    return found["NodeNameToMetaVictims"], answer


def of(*uids: str, violations: int = 0) -> dict[str, Any]:
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}


def test_victims_are_kept_as_given_on_nodes_that_the_pod_could_pass() -> None:
    world = World(fleet(healthy("n1", gpus=2), healthy("n2", "b"), healthy("n3", gpus=2)))
    world.held = {"GPU-n1-0": "low-1", "GPU-n1-1": "low-2", "GPU-n3-0": "stays"}
    kept, answer = preempted(
        world.verbs(), URGENT, n4=["low-4"], n3=["low-3"], n2=["low-5"], n1=["low-2", "low-1"]
    )
    assert kept == {"n1": of("low-2", "low-1")}
    assert answer.result == "passed"
    record, counts = decided(answer)
    assert record.kind is RecordKind.FILTER_DECISION
    assert (record.decision, record.subject) == ("passed", "pod/team-a/train-0")
    assert record.refs["verb"] == "preempt"
    assert (record.refs["candidates"], record.refs["passed"]) == (4, 1)
    assert record.refs["rejected"] == {
        "GPU_BUSY": 1,
        "HASH_MISMATCH": 1,
        "NODE_NO_EVIDENCE": 1,
    }
    assert counts[ReasonCode.ACCEPTED] == 1


def test_nobody_is_evicted_for_a_pod_that_no_node_would_take() -> None:
    world = World(fleet(healthy("n1"), healthy("n2")))
    nowhere = pod_json({"gpuwarden.dev/required-hash": hash_of("c")})
    kept, answer = preempted(world.verbs(), nowhere, n1=["u1"], n2=["u2"])
    assert (kept, answer.result) == ({}, "rejected")
    assert decided(answer)[0].decision == "rejected"
    invalid = pod_json({"gpuwarden.dev/required-hash": ""})
    assert preempted(world.verbs(), invalid, n1=["u1"])[0] == {}


def test_a_pod_is_not_sent_on_while_its_nominated_node_becomes_free() -> None:
    nodes = fleet(healthy("n1", gpus=2), healthy("n2", gpus=2))
    world = World(nodes, held={"GPU-n1-0": "low-1"}, leaving=frozenset({"low-1"}))
    nominated = URGENT | {"status": {"phase": "Pending", "nominatedNodeName": "n1"}}
    kept, answer = preempted(world.verbs(), nominated, n2=["low-2"])
    assert (kept, answer.result) == ({}, "rejected")
    assert decided(answer)[0].refs["rejected"] == {"GPU_BUSY": 1}
    assert preempted(world.verbs(), URGENT, n2=["low-2"])[0] == {"n2": of("low-2")}
    world.leaving = frozenset()
    assert preempted(world.verbs(), nominated, n2=["low-2"])[0] == {"n2": of("low-2")}
    world.denied = {"b7c9": frozenset({"n1"})}
    assert preempted(world.verbs(), nominated, n2=["low-2"])[0] == {}
    assert preempted(world.verbs(), URGENT, n1=["low-1"], n2=["low-2"])[0] == {"n2": of("low-2")}


def test_pods_that_are_not_managed_evict_as_if_nobody_was_asked() -> None:
    verbs = World(not_ready="first round").verbs()
    kept, answer = preempted(verbs, PLAIN, n1=["u1", "u2"], n2=["u3"])
    assert kept == {"n1": of("u1", "u2"), "n2": of("u3")}
    assert (answer.result, answer.decision) == ("untouched", None)


def test_while_nothing_can_be_decided_nobody_is_evicted() -> None:
    world = World(fleet(healthy("n1")), not_ready="first round")
    kept, answer = preempted(world.verbs(), MANAGED, n1=["u1"])
    assert (kept, answer.result, answer.decision) == ({}, "not_ready", None)
    kept, answer = preempted(world.verbs(report=True), MANAGED, n1=["u1"])
    assert (kept, answer.result, answer.decision) == ({"n1": of("u1")}, "not_ready", None)


def test_report_only_changes_no_eviction_and_reports_no_pod_as_not_placed() -> None:
    verbs = World(fleet(healthy("n1"), healthy("n2", "b"))).verbs(report=True)
    nowhere = pod_json({"gpuwarden.dev/required-hash": hash_of("c")})
    for pod, result in ((MANAGED, "passed"), (nowhere, "reported")):
        kept, answer = preempted(verbs, pod, n1=["u1"], n2=["u2"])
        assert kept == {"n1": of("u1"), "n2": of("u2")}
        assert answer.result == result
        assert answer.decision is not None
        audit = RecordingAudit()
        FilterRecorder(audit, lambda _: None, _never_reported).note(answer.decision)
        assert [x.decision for x in audit.noted] == [result]


def _never_reported(decision: FilterDecision, totals: Totals) -> None:
    raise AssertionError(f"{decision.pod} was reported: {totals}")


WHOLE = {"metadata": {"name": "low-1", "uid": "u1"}, "spec": {"containers": [{}]}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"Pod": PLAIN, "NodeNameToMetaVictims": {"n": of("u1", violations=2)}},
            of("u1", violations=2),
        ),
        (
            {"pod": PLAIN, "nodenametometavictims": {"n": {"pods": [{"uid": "u1"}]}}},
            of("u1"),
        ),
        (
            {
                "Pod": PLAIN,
                "NodeNameToVictims": {"n": {"Pods": [WHOLE], "NumPDBViolations": 1}},
                "NodeNameToMetaVictims": None,
            },
            of("u1", violations=1),
        ),
        (
            {
                "Pod": PLAIN,
                "NodeNameToVictims": {"n": {"Pods": [WHOLE]}},
                "NodeNameToMetaVictims": {"n": of("u2")},
            },
            of("u2"),
        ),
        (
            {
                "Pod": PLAIN,
                "NodeNameToVictims": {"n": {"Pods": [WHOLE], "NumPDBViolations": None}},
                "NodeNameToMetaVictims": {},
                "Further": 1,
            },
            of("u1"),
        ),
        ({"Pod": PLAIN, "NodeNameToMetaVictims": {"n": {"Pods": None}}}, of()),
        (
            {
                "Pod": PLAIN,
                "NodeNameToMetaVictims": {"n": {"Pods": None, "NumPDBViolations": 3}},
            },
            of(violations=3),
        ),
        (
            {
                "Pod": PLAIN,
                "NodeNameToMetaVictims": {
                    "n": {"Pods": [{"UID": "u1", "More": 1}], "NumPDBViolations": 2, "More": 1}
                },
            },
            of("u1", violations=2),
        ),
        (
            {
                "Pod": PLAIN,
                "NodeNameToMetaVictims": {"n": {"pods": [{"UID": "u1"}], "NumPDBViolations": 1}},
            },
            of("u1", violations=1),
        ),
    ],
)
def test_both_forms_of_victims_are_read_and_answered_by_uid(
    body: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = World().verbs().preempt(json.dumps(body).encode())
    assert (answer.status, answer.result) == (200, "untouched")
    assert json.loads(answer.body) == {"NodeNameToMetaVictims": {"n": expected}}


@pytest.mark.parametrize("nothing", [{}, {"NodeNameToVictims": None, "NodeNameToMetaVictims": {}}])
def test_no_victims_are_none(nothing: dict[str, Any]) -> None:
    for pod in (PLAIN, MANAGED):
        answer = World().verbs().preempt(json.dumps({"Pod": pod, **nothing}).encode())
        assert json.loads(answer.body) == {"NodeNameToMetaVictims": {}}


LONG = "x" * 254


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "decode args"),
        (b"[]", "decode args"),
        (b"{}", "missing pod in args"),
        (b'{"Pod":null}', "missing pod in args"),
        (b'{"Pod":{},"pod":{}}', "key pod is repeated"),
        (b'{"Pod":1}', "not a Pod"),
        (b'{"Pod":{},"NodeNameToMetaVictims":[]}', "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":null}}', "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":{}}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{}]}}}', "a victim has no UID"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":""}]}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":1}]}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u","uid":"v"}]}}}', "key uid"),
        (
            (
                b'{"Pod":{},"NodeNameToMetaVictims":'
                b'{"n":{"Pods":[],"pods":[{"UID":"u"}],"NumPDBViolations":0}}}'
            ),
            "key pods is repeated",
        ),
        (
            b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"%s"}]}}}' % LONG.encode(),
            "decode",
        ),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"%s":{}}}' % LONG.encode(), "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"NumPDBViolations":"1"}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"NumPDBViolations":1e99}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToVictims":{"n":{"Pods":[{}]}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToVictims":{"n":{"Pods":[{"metadata":{"uid":""}}]}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToVictims":{"n":{"Pods":[{"metadata":{}}]}}}', "decode args"),
        (b'{"Pod":{},"NodeNameToVictims":{"\xff":{}}}', "decode args"),
    ],
)
def test_bodies_that_are_no_preemption_args(body: bytes, expected: str) -> None:
    answer = World().verbs().preempt(body)
    assert (answer.status, answer.result, answer.decision) == (400, "bad", None)
    assert expected in json.loads(answer.body)["Error"]


def test_more_nodes_than_any_cluster_has_are_refused() -> None:
    body: dict[str, Any] = {"Pod": {}, "NodeNameToMetaVictims": {}}
    body["NodeNameToMetaVictims"] = {f"n{number}": {} for number in range(100_000)}
    assert len(decode_preemption_args(json.dumps(body).encode()).victims) == 100_000
    body["NodeNameToMetaVictims"]["one-more"] = {}
    with pytest.raises(ArgsError, match="more than 100000 nodes"):
        decode_preemption_args(json.dumps(body).encode())


def test_the_answer_has_go_s_names() -> None:
    assert encode_preemption_result({}) == b'{"NodeNameToMetaVictims":{}}'
    assert encode_preemption_result({"n": Victims(("u",), 3)}) == (
        b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u"}],"NumPDBViolations":3}}}'
    )


# --- A hint's choice


def test_the_choice_that_a_pod_is_annotated_with_moves_nodes_by_the_policys_weight() -> None:
    small = node("l4", acceptance(hash_of("a"), (gpu(0, "GPU-l4", product="NVIDIA L4"),)))
    nodes = fleet(healthy("h100"), small)
    asked = {"gpuwarden.dev/required-hash": hash_of("a"), "gpuwarden.dev/gpu-count": "1"}
    plain = pod_json(asked)
    hinted = pod_json(asked | {"scheduler.radix.ai/chosen-gpu": "NVIDIA-H100-80GB-HBM3"})
    both = pod_json(asked | {"gpuwarden.dev/chosen-gpus": "NVIDIA-H100-80GB-HBM3=100,NVIDIA-L4=50"})
    for weight, pod, expected in (
        (0, hinted, {"h100": 4, "l4": 10}),
        (60, plain, {"h100": 4, "l4": 10}),
        (60, hinted, {"h100": 7, "l4": 4}),
        (60, both, {"h100": 7, "l4": 7}),
    ):
        verbs = World(nodes, policy=Policy(hint_weight=weight)).verbs()
        assert scores(verbs, pod, "h100", "l4") == expected
        assert call(verbs, pod, "h100", "l4")["NodeNames"] == ["h100", "l4"]
