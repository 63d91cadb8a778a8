"""Hints of a whole controller: webhooks over TLS, a scorer over HTTP, a node that was attested."""

import re
from typing import Any

from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.hinted import H100_TYPE, PRODUCT, answer, hinted_pod, job_of
from tests.fakes.cluster import FakeCluster, Webhooks
from tests.fakes.eventually import eventually
from tests.fakes.scorer import fake_scorer

HINTS = "/mutate/hints?timeout=5s"
AVAILABLE = 'gpuwarden_hint_scorer_available{path="/v1/score"}'
RADIX_HINTS = "/mutate/radix-hints?timeout=5s"
JOBS: dict[str, Any] = {"resource": {"group": "batch", "version": "v1", "resource": "jobs"}}
SEED = hinted_pod(
    annotations={
        "gpu.mem.gi": "40Gi",
        "ml.batch_size": "32",
        "scheduler.radix.ai/tenant": "ml-platform",
    }
)
PODS = (
    SEED,
    hinted_pod(gpus=None),
    hinted_pod(annotations={"gpuwarden.dev/min-level": "L0"}),
    hinted_pod(None, labels={"app.kubernetes.io/job-type": "t"}, hostPID=True),
)


def prepare(cluster: FakeCluster) -> None:
    node = cluster.api.objects.get("nodes", "node-1")
    node["metadata"]["labels"] = {PRODUCT: "H100"}
    cluster.api.change("nodes", node)
    for name, value in (("gpu-ultra", 1000), ("gpu-high", 750)):
        document = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
        cluster.api.create("priorityclasses", document)


async def hinted(
    webhooks: Webhooks, pod: dict[str, Any], *, path: str = HINTS, **request: Any
) -> dict[str, Any]:
    """The object as it would be stored; it is admitted whatever happens."""
    found = await webhooks.post(path, review_json(pod, namespace="plain", **request))
    assert found["response"]["allowed"] is True
    made: dict[str, Any] = applied(pod, patch_of(found))
    return made


async def first_hint(webhooks: Webhooks) -> dict[str, Any]:
    """Once node-1 is attested and the classes are known."""

    async def there() -> dict[str, Any] | None:
        made = await hinted(webhooks, SEED)
        return made if "priorityClassName" in made["spec"] else None

    return await eventually(there, "a pod is hinted with a priority")


async def test_the_pod_and_the_job_of_the_seed_end_with_class_and_annotations(
    cluster: FakeCluster,
) -> None:
    prepare(cluster)
    async with (
        fake_scorer() as scorer,
        cluster.live(hints__schedulerUrl=scorer.url, hints__timeout="4s") as there,
    ):
        made = await first_hint(there.webhooks)
        spec, metadata = made["spec"], made["metadata"]
        assert (spec["priorityClassName"], spec["priority"]) == ("gpu-high", 750)
        assert spec["preemptionPolicy"] == "Never"
        (term,) = spec["affinity"]["nodeAffinity"].popitem()[1]
        assert term["preference"]["matchExpressions"] == [
            {"key": PRODUCT, "operator": "In", "values": ["H100"]}
        ]
        assert metadata["labels"] == {"app.kubernetes.io/job-type": "training"}
        assert metadata["annotations"]["scheduler.radix.ai/chosen-gpu"] == H100_TYPE
        assert metadata["annotations"]["scheduler.radix.ai/priority-score"] == "85"
        stamp = metadata["annotations"]["scheduler.radix.ai/decision-timestamp"]
        assert re.fullmatch(r"1[0-9]{9}", stamp)
        assert scorer.questions[-1] == {
            "job_type": "training",
            "features": {"tenant": "ml-platform", "gpu_mem_gb": 40.0, "batch_size": 32},
            "candidate_gpu_types": [H100_TYPE],
            "candidate_gpu_mem_gb": {H100_TYPE: 79.648},
            "colocated_job_types": [],
        }
        job = await hinted(there.webhooks, job_of(SEED), **JOBS)
        assert job["spec"]["template"]["spec"]["priorityClassName"] == "gpu-high"
        before = len(scorer.questions)
        pod = SEED | {x: job["spec"]["template"][x] for x in ("metadata", "spec")}
        assert await hinted(there.webhooks, pod) == pod
        assert len(scorer.questions) == before
        await there.controller.metric_is('gpuwarden_hints_total{result="decided"}', 1)
        assert await there.controller.metric(AVAILABLE) == 1
        plain = job_of(hinted_pod(None))
        assert await hinted(there.webhooks, plain, path=RADIX_HINTS, **JOBS) == plain
        await hinted(there.webhooks, plain, **JOBS)
        assert scorer.questions[before]["job_type"] == "plain/Job/train"


async def test_a_scorer_that_lies_is_slow_or_dead_changes_nothing(cluster: FakeCluster) -> None:
    prepare(cluster)
    async with (
        fake_scorer() as scorer,
        cluster.live(hints__schedulerUrl=scorer.url, hints__timeout="4s") as there,
    ):
        await first_hint(there.webhooks)

        async def changes_nothing(result: str) -> None:
            name = f'gpuwarden_hints_total{{result="{result}"}}'
            before = await there.controller.metric(name) or 0
            assert await hinted(there.webhooks, SEED) == SEED
            assert await there.controller.metric(name) == before + 1

        for lie, result in (
            (answer(H100_TYPE, 101), "out_of_range"),
            (answer("B200"), "unknown_type"),
            (b'{"priority_score": NaN}', "malformed"),
        ):
            scorer.lie = lie
            await changes_nothing(result)
        scorer.lie = None
        assert await hinted(there.webhooks, SEED) != SEED
        scorer.status = 503
        await changes_nothing("status")
        scorer.status = 200
        missing = answer(H100_TYPE, 10)
        scorer.lie = missing
        made = await hinted(there.webhooks, SEED)
        assert "priorityClassName" not in made["spec"]  # gpu-default does not exist
        name = 'gpuwarden_hints_left_out_total{reason="priority_class_missing"}'
        assert await there.controller.metric(name) == 1


async def test_pods_do_not_wait_for_a_slow_scorer_and_later_not_at_all(
    cluster: FakeCluster,
) -> None:
    prepare(cluster)
    async with fake_scorer() as scorer:
        url = scorer.url
        async with cluster.live(hints__schedulerUrl=url, hints__timeout="300ms") as there:
            await first_hint(there.webhooks)
            timeouts = 'gpuwarden_hints_total{result="timeout"}'
            before = await there.controller.metric(timeouts) or 0  # of a busy machine
            scorer.is_slow = True
            for _ in range(5):
                assert await hinted(there.webhooks, SEED) == SEED
            assert await there.controller.metric(timeouts) == before + 5
            asked = len(scorer.questions)
            assert await hinted(there.webhooks, SEED) == SEED
            name = 'gpuwarden_hints_total{result="breaker_open"}'
            assert await there.controller.metric(name) == 1
            assert len(scorer.questions) == asked
            assert await there.controller.metric(AVAILABLE) == 0
    async with cluster.live(hints__schedulerUrl=url) as there:

        async def dead() -> bool | None:
            assert await hinted(there.webhooks, SEED) == SEED
            name = 'gpuwarden_hints_total{result="connection"}'
            return bool(await there.controller.metric(name)) or None

        await eventually(dead, "nobody listens there")


async def test_off_it_is_as_it_was_and_on_the_other_webhooks_say_the_same(
    cluster: FakeCluster,
) -> None:
    """A cluster that is off asks for no priority classes: only granted calls are made."""

    async def answers(**settings: str) -> list[dict[str, Any]]:
        async with cluster.webhooks(**settings) as there:
            await there.know_namespaces()
            if not settings:
                async with there.session() as session:
                    url = f"https://{there.controller.addresses.admission}{HINTS}"
                    async with session.post(url, json=review_json(SEED)) as found:
                        assert found.status == 404
                assert await there.controller.metric(AVAILABLE) is None
            return [
                await there.ask(path, pod, namespace)
                for path in ("/mutate/pods", "/validate/pods")
                for namespace in ("plain", "strict")
                for pod in PODS
            ]

    off = await answers()
    assert await answers(hints__schedulerUrl="http://127.0.0.1:9") == off
    assert any(x["response"].get("patch") for x in off)
