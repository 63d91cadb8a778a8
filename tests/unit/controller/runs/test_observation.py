"""What the scorer is told of a run, by the ledger and the evidence."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controller.fleet.view import NodeView
from controller.runs.observation import is_saved, observation, observation_body
from controller.runs.pod_run import RunEnd, Unreported
from controller.scoring.documents import read_document, read_observation
from controller.scoring.learned import Observation
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import LEASE_NS, NOW_NS, acceptance, gpu, mig_slice, node, past
from tests.builders.hinted import H100, H100_TYPE, L4, L4_TYPE
from tests.builders.runs import DIGEST, ended_run

UNIFORM = node("node-1", acceptance(gpus=(gpu(0, "GPU-a"), gpu(1, "GPU-b"))))
MIXED = node(
    "node-1",
    acceptance(gpus=(gpu(0, "GPU-a"), gpu(1, "GPU-b", product=L4), gpu(2, "GPU-c", product=None))),
)
SPLIT = node(
    "node-1", acceptance(gpus=(gpu(0, "GPU-a", mig=True, mig_devices=[mig_slice("MIG-1")]),))
)
FRESH_NS = NOW_NS + LEASE_NS - 1


def seen(**parts: Any) -> Observation:
    values: dict[str, Any] = {
        "job_type": "training",
        "gpu_type": H100_TYPE,
        "runtime_s": 100.0,
        "driver": "570.86.10",
        "image": DIGEST,
        "run_id": "u",
    }
    return Observation(**values | parts)


def test_a_run_is_reported_with_what_it_ran_on() -> None:
    found = observation(ended_run(beside=("serving",)), (), UNIFORM, FRESH_NS)
    assert found == seen(colocated=("serving",))
    reserved = ended_run(by_kubelet=False)
    assert observation(reserved, ("gpu-A", "GPU-b"), UNIFORM, FRESH_NS) == seen()


def test_a_run_that_failed_tells_no_time() -> None:
    found = observation(ended_run(RunEnd.FAILED, beside=("serving",)), (), UNIFORM, FRESH_NS)
    assert found == seen(succeeded=False, runtime_s=0.0)


def test_of_a_mixed_node_the_reserved_gpus_tell_the_type() -> None:
    assert H100 != L4
    for gpus, expected in (
        (("GPU-a",), seen()),
        (("GPU-b",), seen(gpu_type=L4_TYPE)),
        (("GPU-a", "GPU-b"), Unreported.UNKNOWN_TYPE),
        (("GPU-c",), Unreported.UNKNOWN_TYPE),
        (("GPU-a", "GPU-gone"), Unreported.UNKNOWN_TYPE),
        ((), Unreported.UNKNOWN_TYPE),
    ):
        assert observation(ended_run(), gpus, MIXED, FRESH_NS) == expected


def test_parts_of_gpus_are_not_learned() -> None:
    for gpus in (("MIG-1",), ("GPU-a", "mig-1"), ()):
        assert observation(ended_run(), gpus, SPLIT, FRESH_NS) is Unreported.MIG
    assert observation(ended_run(), ("GPU-a",), SPLIT, FRESH_NS) == seen()


def test_without_a_driver_version_none_is_told() -> None:
    bare = node("node-1", acceptance(gpus=(gpu(0),), driver=None))
    assert observation(ended_run(), (), bare, FRESH_NS) == seen(driver="")


@pytest.mark.parametrize(
    ("view", "now_ns"),
    [
        (None, FRESH_NS),
        (node("node-1"), FRESH_NS),
        (UNIFORM, NOW_NS + LEASE_NS),
        (replace(UNIFORM, blocked=past(ReasonCode.INVENTORY_CHANGED)), FRESH_NS),
    ],
    ids=["unknown", "never accepted", "stale", "blocked"],
)
def test_without_valid_evidence_nothing_is_reported(view: NodeView | None, now_ns: int) -> None:
    assert observation(ended_run(), ("GPU-a",), view, now_ns) is Unreported.NOT_ATTESTED


def test_a_pod_without_gpus_is_not_reported() -> None:
    bare = ended_run(by_kubelet=False)
    assert observation(bare, (), UNIFORM, FRESH_NS) is Unreported.NO_GPUS


@pytest.mark.parametrize("end", [Unreported.DELETED, Unreported.RESTARTED])
def test_an_end_that_says_nothing_is_not_reported(end: Unreported) -> None:
    assert observation(ended_run(end), (), UNIFORM, FRESH_NS) is end


def test_a_scorer_reads_what_is_written() -> None:
    for sent in (
        seen(colocated=("a", "b")),
        seen(succeeded=False, runtime_s=0.0),
        seen(driver="", image="", run_id=""),
    ):
        assert read_observation(read_document(observation_body(sent))) == sent


def test_the_fields_are_those_of_radix() -> None:
    assert json.loads(observation_body(seen(colocated=("serving",)))) == {
        "job_type": "training",
        "gpu_type": H100_TYPE,
        "measured_runtime_s": 100.0,
        "colocated_job_types": ["serving"],
        "status": "succeeded",
        "driver": "570.86.10",
        "image": DIGEST,
        "run_id": "u",
    }
    failed = json.loads(observation_body(seen(succeeded=False)))
    assert failed["status"] == "failed"
    assert "measured_runtime_s" not in failed


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"status": "ok", "learned": true, "saved": false}', False),
        (b'{"status": "ok", "learned": true, "saved": true}', True),
        (b'{"status": "ok"}', True),
        (b'{"saved": "no"}', True),
        (b"", True),
        (b"\xff", True),
        (b"[" * 10_000, True),
    ],
)
def test_only_a_scorer_that_says_so_has_not_saved_a_run(answer: bytes, expected: bool) -> None:
    assert is_saved(answer) is expected
