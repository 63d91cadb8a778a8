from typing import Any

from controller.explain.gpu_history import GpuHistory, history
from gpuwarden.audit.record import LogRecord

G = frozenset({"GPU-a", "MIG-a"})


def record(seq: int, kind: str, subject: str, decision: str = "", **refs: Any) -> LogRecord:
    return LogRecord(
        v="gpuwarden.dev/audit/v1",
        seq=seq,
        ts=f"2026-03-01T12:00:{seq:02}.000Z",
        boot="b",
        origin="o",
        instance="i",
        kind=kind,
        actor="a",
        subject=subject,
        decision=decision,
        codes=(),
        refs=refs,
        prev="0" * 64,
    )


def shown(seq: int, node: str, *gpus: str) -> LogRecord:
    return record(seq, "evidence.accepted", f"node/{node}", gpus=list(gpus), evidence=f"e{seq}")


def had(seq: int, kind: str, pod: str = "team-a/train-0", gpu: Any = "GPU-a") -> LogRecord:
    gpus = gpu if isinstance(gpu, dict) else [gpu]
    refs = {"gpus": gpus, "node": "gpu-1", "uid": "u", "reservation": f"r-{pod}"}
    return record(seq, f"reservation.{kind}", f"pod/{pod}", kind, **refs)


def places(found: GpuHistory) -> list[tuple[str, int, str]]:
    return [(x.node, x.record, x.until[-7:-5]) for x in found.places]


def test_a_gpu_that_moves_has_been_at_two_places() -> None:
    found = history([shown(1, "gpu-1", "GPU-a"), shown(2, "gpu-2", "GPU-a", "GPU-b")], G)
    assert places(found) == [("gpu-2", 2, ""), ("gpu-1", 1, "02")]
    assert found.places[0].evidence_digest == "e2"
    assert found.records_since.endswith(":01.000Z")


def test_a_gpu_that_its_node_no_longer_shows_has_left_it() -> None:
    found = history([shown(1, "gpu-1", "GPU-a"), shown(2, "gpu-1", "GPU-b")], G)
    assert places(found) == [("gpu-1", 1, "02")]
    again = history([shown(1, "gpu-1", "GPU-a"), shown(2, "gpu-1"), shown(3, "gpu-1", "GPU-a")], G)
    assert places(again) == [("gpu-1", 3, ""), ("gpu-1", 1, "02")]


def test_evidence_of_other_nodes_changes_nothing() -> None:
    found = history([shown(1, "gpu-1", "GPU-a"), shown(2, "gpu-2", "GPU-b")], G)
    assert places(found) == [("gpu-1", 1, "")]
    same = history([shown(1, "gpu-1", "GPU-a"), shown(2, "gpu-1", "GPU-a")], G)
    assert places(same) == [("gpu-1", 1, "")]


def test_who_had_it_and_until_when() -> None:
    found = history(
        [
            had(1, "reserved"),
            had(2, "confirmed"),
            had(3, "releasing"),
            had(4, "released"),
            had(5, "reserved", "team-b/x", "MIG-a"),
            had(6, "reserved", "team-c/y", "GPU-z"),
        ],
        G,
    )
    assert [(x.namespace, x.pod, x.record, x.ended_as) for x in found.holdings] == [
        ("team-b", "x", 5, ""),
        ("team-a", "train-0", 1, "released"),
    ]
    assert found.holdings[1].until.endswith(":04.000Z")
    assert (found.holdings[1].node, found.holdings[1].uid) == ("gpu-1", "u")


def test_a_list_that_was_too_long_is_looked_at_as_far_as_it_goes() -> None:
    found = history([had(1, "reserved", gpu={"count": 9, "first": ["GPU-a"]})], G)
    assert [x.pod for x in found.holdings] == ["train-0"]
    assert history([had(1, "reserved", gpu={"count": 9})], G).holdings == []


def test_an_end_without_a_beginning_says_nothing() -> None:
    assert history([had(1, "released")], G).holdings == []
