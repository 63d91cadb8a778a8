"""The paths of the service: their shapes, and requests that cannot be meant."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from controller.scorer.http import score_app
from controller.scorer.recorder import ConnectionRecorder, ScoreRecorder
from controller.web.listener import ConnectionEnd
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.score_service import REFUSING, RUN, Running

SCORE = {
    "job_type": "train",
    "features": {"gpu_mem_gb": 24, "batch_size": 8},
    "candidate_gpu_types": ["A100-80GB", "L4-24GB"],
    "colocated_job_types": ["infer"],
}
LIMIT = 2048


class Served:
    """A service behind its paths."""

    def __init__(self, running: Running, client: TestClient) -> None:  # type: ignore[type-arg] # aiohttp's own default
        self.running = running
        self.client = client

    async def post(self, path: str, document: Any) -> tuple[int, dict[str, Any]]:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        answer = await self.client.post(path, data=body)
        assert answer.content_type == "application/json"
        return answer.status, await answer.json()

    async def samples(self) -> dict[tuple[str, ...], float]:
        text = await (await self.client.get("/metrics")).text()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    instruments = Instruments(Process.SCORE, "1")
    recorder = ScoreRecorder(instruments)
    running = Running(tmp_path / "s.db", sink=recorder)
    await running.saving.write()
    app = score_app(
        running.service,
        recorder,
        render_metrics=instruments.render,
        about={"service": "gpuwarden-score"},
        max_body=LIMIT,
    )
    async with TestClient(TestServer(app)) as client:
        yield Served(running, client)
    await running.end()


async def test_a_score_has_the_older_services_shape(served: Served) -> None:
    status, answer = await served.post("/v1/score", SCORE)
    assert status == 200
    assert answer["priority_score"] == 50.0
    assert answer["gpu_selector"] == {
        "nodeSelector": {"class": "L4-24GB"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    assert answer["avoid_co_locate_with"] == []
    terms = {"mu": 10.0, "sigma": 5.0, "ig": 2.56099, "penalty": 0.0, "cost": 9.70731}
    assert answer["terms"].items() >= {**terms, "chosen_gpu": "L4-24GB"}.items()
    assert answer["decision"] == "forced"
    assert [(x["gpu_type"], x["score"]) for x in answer["candidates"]] == [
        ("L4-24GB", 50.0),
        ("A100-80GB", 41.25),
    ]
    assert (answer["excluded"], answer["warnings"]) == ([], [])


async def test_what_is_left_out_and_ignored_is_said(served: Served) -> None:
    features = {"gpu_mem_gb": 40, "batch_size": "many"}
    _, answer = await served.post("/v1/score", {**SCORE, "features": features})
    assert answer["excluded"] == [{"gpu_type": "L4-24GB", "reason": "memory"}]
    assert answer["warnings"] == [
        'features.batch_size: "many" is ignored, expected a number above 0'
    ]


async def test_a_run_is_learned(served: Served) -> None:
    answers = [await served.post("/v1/observe", RUN) for _ in range(9)]
    assert answers == [(200, {"status": "ok", "learned": True, "saved": True})] * 9
    _, answer = await served.post("/v1/score", {**SCORE, "features": {}})
    assert answer["terms"]["chosen_gpu"] == "A100-80GB"
    assert answer["terms"]["mu"] == pytest.approx(100, abs=2)
    assert answer["priority_score"] > 90


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/score", {**SCORE, "candidate_gpu_types": []}, "candidate_gpu_types"),
        ("/v1/score", {**SCORE, "candidate_gpu_types": ["a", "a"]}, "candidate_gpu_types[1]"),
        ("/v1/score", {**SCORE, "features": {"gpu_mem_gb": 1000}}, "features.gpu_mem_gb"),
        ("/v1/observe", {**RUN, "measured_runtime_s": 0}, "measured_runtime_s"),
        ("/v1/observe", b'{"measured_runtime_s": NaN}', "measured_runtime_s"),
    ],
)
async def test_what_cannot_be_meant_is_400_and_names_the_field(
    served: Served, path: str, body: Any, field: str
) -> None:
    status, answer = await served.post(path, body)
    assert (status, answer["field"]) == (400, field)
    assert answer["error"].startswith(f"{field}: ")


async def test_bodies_that_are_none_and_paths_that_are_not_there(served: Served) -> None:
    assert (await served.post("/v1/score", b"{"))[0] == 400
    assert (await served.post("/v1/score", b" " * LIMIT))[0] == 400
    status, answer = await served.post("/v1/score", b" " * (LIMIT + 1))
    assert status == 413
    assert answer == {
        "error": f"body: request body is larger than {LIMIT} bytes (maxBody)",
        "field": "body",
    }
    assert (await served.post("/v1/no", {}))[0] == 404
    assert (await served.post("/healthz", {}))[0] == 405
    status, answer = await served.post("/v1/assign", {})
    assert (status, "SCHEDULER_ENABLE_SINKHORN" in answer["error"]) == (404, True)


async def test_readiness_says_what_is_wrong_with_the_file_and_answers_go_on(
    served: Served,
) -> None:
    answer = await served.client.get("/readyz")
    assert (answer.status, await answer.json()) == (200, {"ready": True, "reasons": []})
    served.running.sql(REFUSING)
    assert (await served.post("/v1/observe", RUN))[1]["saved"] is False
    answer = await served.client.get("/readyz")
    assert answer.status == 503
    assert (await answer.json())["reasons"] == [f"store: {served.running.path}: full"]
    assert (await served.post("/v1/score", SCORE))[0] == 200
    assert (await served.client.get("/healthz")).status == 200
    samples = await served.samples()
    assert samples["gpuwarden_score_store_available",] == 0
    served.running.sql("DROP TRIGGER full")
    await served.running.saving.write()
    assert (await served.samples())["gpuwarden_score_store_available",] == 1


async def test_probes_change_nothing(served: Served) -> None:
    before = await served.samples()
    for path in ("/", "/health", "/healthz", "/ready", "/readyz"):
        assert (await served.client.get(path)).status == 200
    after = await served.samples()
    ours = [x for x in before if x[0].startswith(("scheduler_", "gpuwarden_"))]
    assert {x: after[x] for x in ours} == {x: before[x] for x in ours}


async def test_what_happens_is_counted(served: Served) -> None:
    await served.post("/v1/observe", RUN)
    await served.post("/v1/observe", {**RUN, "gpu_type": "L4-24GB", "measured_runtime_s": 200})
    await served.post("/v1/observe", {**RUN, "status": "failed"})
    await served.post("/v1/score", {**SCORE, "candidate_gpu_types": ["L4-24GB"]})
    await served.post("/v1/score", {**SCORE, "candidate_gpu_types": ["L4-24GB", "A100-80GB"]})
    await served.post("/v1/score", {**SCORE, "dry_run": True})
    await served.post("/v1/score", {})
    found = await served.samples()
    assert found["scheduler_observe_events_total", "A100-80GB", "train"] == 2
    assert found["gpuwarden_score_runs_total", "failed"] == 1
    assert found["gpuwarden_score_runs_total", "learned"] == 2
    assert found["scheduler_decisions_total", "exploit", "L4-24GB"] == 1
    assert found["scheduler_decisions_total", "exploit", "A100-80GB"] == 1
    assert found["scheduler_exploration_ratio",] == 0
    assert 0 < found["scheduler_avg_uncertainty",] < 0.6
    assert found["scheduler_regret_estimate",] == 0
    assert found["gpuwarden_score_requests_total", "/v1/score", "200"] == 3
    assert found["gpuwarden_score_requests_total", "/v1/score", "400"] == 1
    assert found["scheduler_scoring_duration_seconds_count",] == 4


async def test_a_fault_is_500_without_details(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(served.running.service._scorer, "score", broken)
    status, answer = await served.post("/v1/score", SCORE)
    assert (status, answer) == (500, {"error": "the service failed; its log has why"})


def test_labels_that_callers_choose_are_bounded() -> None:
    instruments = Instruments(Process.SCORE, "1")
    recorder = ScoreRecorder(instruments)
    running = Running(Path("unused"), sink=recorder)
    for number in range(300):
        candidates = (f"gpu-{number}",)
        recorder.observed(running.observation(job_type=f"job-{number}"), saved=True)
        job, scored = running.scored(candidates)
        recorder.decided(job, scored, 0.0)
    recorder.repeated(running.observation(job_type="job-0"))
    connections = ConnectionRecorder("score", instruments)
    connections.connection_cut(ConnectionEnd.SLOW, "peer")
    connections.malformed("no HTTP")
    text = instruments.render().decode()
    assert text.count("\nscheduler_observe_events_total{") == 257
    assert 'scheduler_observe_events_total{gpu_type="other",job_type="other"} 44.0' in text
    assert 'gpuwarden_score_runs_total{result="repeated"} 1.0' in text
    assert text.count("\nscheduler_decisions_total{") == 65
    assert 'gpuwarden_connections_cut_total{cause="slow",listener="score"} 1.0' in text
    assert 'gpuwarden_requests_malformed_total{listener="score"} 1.0' in text


async def test_runs_that_nobody_can_keep_are_refused_until_somebody_can(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.scorer.service.MOST_WAITING", 1)
    served.running.sql(REFUSING)
    assert (await served.post("/v1/observe", RUN))[1]["saved"] is False
    status, answer = await served.post("/v1/observe", RUN)
    assert status == 503
    assert answer["error"].startswith("1 run waiting for the database: ")
    assert (await served.post("/v1/score", SCORE))[0] == 200
