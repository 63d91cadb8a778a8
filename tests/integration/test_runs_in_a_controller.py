"""Runs of pods that end become scores: a whole controller and the real scoring service."""

from typing import Any

import aiohttp

from controller.runs.reporter import UNSAVED_NS
from tests.builders.hinted import H100_TYPE
from tests.builders.runs import status_of
from tests.fakes.cluster import FakeCluster, LiveCluster
from tests.fakes.eventually import eventually
from tests.fakes.score_program import address_of, full_disk, gpuwarden_score, killed, started
from tests.fakes.scorer import fake_scorer

WEB = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "name": "web",
    "uid": "u",
    "controller": True,
}
LABELS = {"app.kubernetes.io/job-type": "training"}
UNSAVED = "gpuwarden_hint_runs_unsaved"
REPORTED = 'gpuwarden_hint_runs_total{result="reported"}'


async def runs_of(url: str, job_type: str = "training") -> dict[str, Any]:
    """Terms of the type on which the job ran."""
    question = {"job_type": job_type, "candidate_gpu_types": [H100_TYPE], "dry_run": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/score", json=question) as answer,
    ):
        found: dict[str, Any] = await answer.json()
        terms: dict[str, Any] = found["terms"]
        return terms


async def ran(there: LiveCluster, name: str, seconds: int, *, phase: str = "Succeeded") -> None:
    """A pod with a job type gets a GPU, runs and ends."""
    there.create(name, LABELS)
    await there.bound(name)
    change(there, name, "Running", status_of(began=0))
    change(there, name, phase, status_of(began=0, ended=seconds))


def change(there: LiveCluster, name: str, phase: str, status: dict[str, Any]) -> None:
    pod = there.api.objects.get("pods", f"team-a/{name}")
    pod["status"] = {"phase": phase, "containerStatuses": [status]}
    there.api.change("pods", pod)


async def learned(url: str, count: float) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        terms = await runs_of(url)
        return terms if terms["runs"] == count else None

    return await eventually(there, f"{count:g} runs are learned")


async def test_a_run_that_ends_is_learned_and_nobody_reports_it(cluster: FakeCluster) -> None:
    """Once: neither a controller that starts again nor a run that failed adds a run."""
    async with gpuwarden_score(cluster.folder) as url:
        assert (await runs_of(url))["runs"] == 0.0
        async with cluster.live(hints__schedulerUrl=url) as there:
            await ran(there, "train-0", 1000)
            terms = await learned(url, 1.0)
            assert 500 < terms["mu"] < 2000
            await ran(there, "train-1", 1, phase="Failed")
            await there.controller.metric_is(REPORTED, 2)
            assert await runs_of(url) == terms
        async with cluster.live(hints__schedulerUrl=url) as there:
            await ran(there, "train-2", 1000)
            await there.controller.metric_is(REPORTED, 1)
            assert (await runs_of(url))["runs"] == 2.0


async def test_a_run_on_a_full_disk_outlives_the_scorer(cluster: FakeCluster) -> None:
    """It is not in any file when the scorer is killed: the controller tells it again."""
    scorer = await started(cluster.folder)
    address = await address_of(scorer)
    url = f"http://{address}"
    async with cluster.live(hints__schedulerUrl=url) as there:
        with full_disk(scorer):
            await ran(there, "train-0", 1000)
            await there.controller.metric_is(UNSAVED, 1)
            assert (await runs_of(url))["runs"] == 1.0, "in memory"
            await killed(scorer)
        assert await there.controller.metric(REPORTED) in {None, 0}
        again = await started(cluster.folder, "again", address)
        assert await address_of(again) == address
        assert (await runs_of(url))["runs"] == 0.0
        there.controller.clock.ahead_ns += UNSAVED_NS
        await there.controller.metric_is(REPORTED, 1)
        assert await there.controller.metric(UNSAVED) == 0
        await killed(again)
    last = await started(cluster.folder, "last")
    assert (await runs_of(f"http://{await address_of(last)}"))["runs"] == 1.0
    await killed(last)


async def test_what_is_told_is_what_the_evidence_says(cluster: FakeCluster) -> None:
    async with fake_scorer() as scorer, cluster.live(hints__schedulerUrl=scorer.url) as there:
        uid = there.create("train-0", LABELS)["metadata"]["uid"]
        await there.bound("train-0")
        change(there, "train-0", "Running", status_of(began=0))
        there.create("serve-0", {"app.kubernetes.io/job-type": "serving"})
        there.create("web-0", ownerReferences=[WEB])
        for name in ("serve-0", "web-0"):
            await there.bound(name)
            change(there, name, "Running", status_of(began=20))
        node = there.api.objects.get("nodes", "node-1")
        node["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-L4"}
        there.api.change("nodes", node)
        change(there, "train-0", "Succeeded", status_of(began=0, ended=60))
        await there.controller.metric_is(REPORTED, 1)
        (told,) = scorer.runs
        assert told.pop("image").startswith("sha256:")
        assert told == {
            "job_type": "training",
            "gpu_type": H100_TYPE,
            "measured_runtime_s": 60.0,
            "colocated_job_types": ["serving", "team-a/StatefulSet/web"],
            "status": "succeeded",
            "driver": "570.86.10",
            "run_id": uid,
        }
        change(there, "web-0", "Succeeded", status_of(began=20, ended=70))
        await there.controller.metric_is(REPORTED, 2)
        assert scorer.runs[1]["job_type"] == "team-a/StatefulSet/web"
        assert scorer.runs[1]["colocated_job_types"] == ["serving", "training"]


async def test_with_observe_false_nothing_is_told(cluster: FakeCluster) -> None:
    async with fake_scorer() as scorer:
        url = scorer.url
        async with cluster.live(hints__schedulerUrl=url, hints__observe="false") as there:
            await ran(there, "train-0", 60)
            await there.agent.some_rounds()
            assert await there.controller.metric(REPORTED) in {None, 0}
        assert scorer.runs == []
