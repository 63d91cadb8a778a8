"""How long a pod ran, and how it ended, by its status."""

from typing import Any

import pytest

from controller.runs.pod_run import PodRun, RunEnd, Unreported
from gpuwarden.moment import NS_PER_S
from tests.builders.runs import (
    BEGIN_NS,
    DIGEST,
    OTHER_DIGEST,
    pod_with_run,
    read_run,
    status_of,
)


def ns(second: int) -> int:
    return BEGIN_NS + second * NS_PER_S


def run(**parts: Any) -> PodRun:
    return PodRun(**{"job_type": "training", "by_kubelet": True, "image": DIGEST, **parts})


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
DELETED = {"deletionTimestamp": "2026-05-01T10:00:30Z"}


def test_a_run_lasts_from_the_start_of_its_container_to_its_end() -> None:
    assert read_run(pod_with_run(status_of(began=None), phase="Pending")) == run()
    assert read_run(pod_with_run(status_of())) == run(began_ns=ns(0))
    found = read_run(pod_with_run(status_of(began=5, ended=95), phase="Succeeded"))
    assert found == run(began_ns=ns(5), ended_ns=ns(95), end=RunEnd.SUCCEEDED)
    assert found is not None
    assert found.seconds == 90.0


@pytest.mark.parametrize(
    ("began_ns", "ended_ns", "seconds"),
    [(None, None, 0), (None, ns(9), 0), (ns(9), None, 0), (ns(9), ns(8), 0), (ns(8), ns(9), 1)],
)
def test_what_is_not_known_has_no_length(
    began_ns: int | None, ended_ns: int | None, seconds: float
) -> None:
    assert run(began_ns=began_ns, ended_ns=ended_ns).seconds == seconds


@pytest.mark.parametrize(
    "pod",
    [
        pod_with_run(status_of(), node=""),
        pod_with_run(status_of(), job_type=None),
        pod_with_run(status_of(), job_type="no label"),
        pod_with_run(status_of(), gpus=("0",)),
        pod_with_run(status_of(), gpus=("many",)),
        pod_with_run(
            status_of(), gpus=(None,), metadata={"annotations": {"gpuwarden.dev/min-level": "L0"}}
        ),
    ],
    ids=["not bound", "no job type", "no label value", "no GPU", "unreadable", "node alone"],
)
def test_others_have_no_run(pod: dict[str, Any]) -> None:
    assert read_run(pod) is None


def test_containers_that_ask_for_gpus_count_alone() -> None:
    late = status_of("second", began=20, ended=80, image=f"x@{OTHER_DIGEST}")
    statuses = (status_of(began=0, ended=100), late, status_of("third", began=30, ended=90))
    found = read_run(pod_with_run(*statuses, gpus=(None, "1", "1"), phase="Succeeded"))
    assert found == run(began_ns=ns(20), ended_ns=ns(90), end=RunEnd.SUCCEEDED, image=OTHER_DIGEST)
    running = (statuses[0], late, status_of("third", began=30))
    found = read_run(pod_with_run(*running, gpus=(None, "1", "1")))
    assert found == run(began_ns=ns(20), image=OTHER_DIGEST)


def test_where_gpuwarden_gives_the_gpus_all_containers_count() -> None:
    statuses = (status_of(began=10, ended=50), status_of("second", began=20, ended=80))
    count = {"annotations": {"gpuwarden.dev/gpu-count": "2"}}
    pod = pod_with_run(*statuses, gpus=(None, None), phase="Succeeded", metadata=count)
    assert read_run(pod) == run(
        by_kubelet=False, began_ns=ns(10), ended_ns=ns(80), end=RunEnd.SUCCEEDED
    )


@pytest.mark.parametrize(
    ("image", "digest"),
    [
        (f"docker-pullable://example.org/a@{DIGEST}", DIGEST),
        (DIGEST, DIGEST),
        ("example.org/a:1", ""),
        ("", ""),
    ],
)
def test_the_image_is_known_by_its_digest(image: str, digest: str) -> None:
    found = read_run(pod_with_run(status_of(image=image)))
    assert found is not None
    assert found.image == digest


@pytest.mark.parametrize(
    ("parts", "status", "end"),
    [
        ({}, {"began": 0, "ended": 9}, RunEnd.SUCCEEDED),
        ({"phase": "Failed"}, {"began": 0, "ended": 9}, RunEnd.FAILED),
        ({"phase": "Failed"}, {"began": 0, "ended": 0, "restarts": 3}, RunEnd.FAILED),
        ({"phase": "Failed"}, {"began": None, "ended": 9}, Unreported.UNMEASURED),
        ({"phase": "Failed"}, {"began": None}, Unreported.UNMEASURED),
        ({}, {"began": 0, "ended": 0}, Unreported.UNMEASURED),
        ({}, {"began": None, "ended": 9}, Unreported.UNMEASURED),
        ({}, {"began": 0}, Unreported.UNMEASURED),
        ({}, {"began": 0, "ended": 9, "restarts": 1}, Unreported.RESTARTED),
        ({"metadata": DELETED}, {"began": 0, "ended": 9}, Unreported.DELETED),
        ({"conditions": [DISRUPTED]}, {"began": 0, "ended": 9}, Unreported.DISRUPTED),
        (
            {"conditions": [DISRUPTED], "phase": "Failed"},
            {"began": 0, "ended": 9},
            Unreported.DISRUPTED,
        ),
        (
            {"conditions": [{**DISRUPTED, "status": "False"}, {"type": "Ready", "status": "True"}]},
            {"began": 0, "ended": 9},
            RunEnd.SUCCEEDED,
        ),
    ],
)
def test_how_it_ended(
    parts: dict[str, Any], status: dict[str, Any], end: RunEnd | Unreported
) -> None:
    found = read_run(pod_with_run(status_of(**status), **{"phase": "Succeeded", **parts}))
    assert found is not None
    assert found.end is end


def test_a_pod_that_kubelet_never_took_has_no_times() -> None:
    pod = pod_with_run(phase="Failed")
    pod["status"]["containerStatuses"] = pod["status"]["conditions"] = None
    assert read_run(pod) == run(end=Unreported.UNMEASURED, image="")
