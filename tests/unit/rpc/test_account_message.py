"""Accounts of pods as messages."""

from dataclasses import replace
from typing import Any

from controller.audit.reading import Recent
from controller.ledger.record import HolderState
from controller.messages import account_message
from gpuwarden.audit.record import decode_record
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.builders.accounts import (
    GPU,
    MADE,
    OTHER_GPU,
    OTHER_UID,
    SCHEDULED,
    UID,
    account,
    held,
    node_of,
    pod_document,
    process,
    waiting_document,
)
from tests.builders.audit_log import GENESIS, line

WALL_NS = 1_800_000_000 * 1_000_000_000


def told(*args: Any, **more: Any) -> pb.ExplainPodResponse:
    found = account(*args, **more)
    assert found is not None
    return account_message(found, WALL_NS)


def test_a_bound_pod() -> None:
    found = told(pod_document(), held(), node=node_of(process()))
    assert (found.namespace, found.name, found.uid, found.phase) == (
        "team-a",
        "train-0",
        UID,
        "Running",
    )
    assert found.guarded
    assert not found.wrong
    assert found.stations[2] == pb.Station(
        name="bound",
        state="reached",
        at=SCHEDULED,
        source="pod, by the API server",
        gpus=[GPU],
        findings=["node gpu-1", "its reservation id is ours, for this pod, node and GPUs"],
    )
    assert found.stations[4].evidence_digest == "e" * 64
    assert (found.guarantee_given, found.guarantee, found.guarantee_limit) == (
        "node",
        "node",
        "protection is off",
    )
    assert not found.rejections


def test_a_waiting_pod_says_which_nodes_reject_it_and_why() -> None:
    stale = replace(node_of(), acceptance=None)
    found = told(waiting_document(), node=stale)
    assert (found.passing, list(found.passing_nodes)) == (0, [])
    (rejection,) = found.rejections
    assert (rejection.code, rejection.count, list(rejection.nodes)) == (
        "NODE_NO_EVIDENCE",
        1,
        ["gpu-1"],
    )
    assert rejection.detail
    assert (found.guarantee, found.guarantee_limit) == ("", "")


def test_a_waiting_pod_that_could_go_somewhere() -> None:
    found = told(waiting_document())
    assert (found.passing, list(found.passing_nodes), found.guarantee) == (1, ["gpu-1"], "node")


def test_a_pod_that_is_refused_itself() -> None:
    broken = waiting_document()
    broken["metadata"]["annotations"] = {"gpuwarden.dev/min-level": "L9"}
    found = told(broken)
    assert found.code == "REQ_INVALID"
    assert "gpuwarden.dev/min-level" in found.detail
    assert found.wrong


def test_a_pod_that_is_gone_has_its_records_and_what_others_hold() -> None:
    refs = {"uid": UID, "node": "gpu-1", "gpus": [GPU, 7]}
    one = line(5, GENESIS, kind="bind.decision", decision="allowed", codes=["X"], refs=refs)
    odd = line(6, GENESIS, refs={"uid": None, "gpus": "none"})
    records = tuple(decode_record(x.removesuffix(b"\n")) for x in (one, odd))
    earlier = held(HolderState.RELEASING, OTHER_GPU, OTHER_UID, reservation="v1.k1.a")
    found = told(None, held(), earlier, recent=Recent(records, "2026-03-01T12:00:00.000Z"))
    assert (found.phase, found.guarded, found.uid) == ("", False, UID)
    assert list(found.records) == [
        pb.PodRecord(
            seq=5,
            at="2026-03-01T12:00:00.000Z",
            kind="bind.decision",
            decision="allowed",
            codes=["X"],
            node="gpu-1",
            gpus=[GPU],
            uid=UID,
        ),
        pb.PodRecord(seq=6, at="2026-03-01T12:00:00.000Z", kind="node.state", decision="eligible"),
    ]
    assert [(x.id, x.made_at) for x in found.earlier] == [("v1.k1.a", MADE)]
