"""A whole controller that exports: what arrives, what is noted in the cluster, and how it ends."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.export.records import ExportRecord, read_json
from tests.fakes.cluster import CARDS, FakeCluster
from tests.fakes.eventually import eventually
from tests.fakes.http_receiver import Receiver, raw_server, receiver, says


def settings(folder: Path, url: str, exporters: str = "http") -> dict[str, Any]:
    return {
        "export__exporters": exporters,
        "export__deadLetter__dir": str(folder / "export"),
        "export__http__endpoint": url,
    }


async def arrived(found: Receiver, count: int) -> list[ExportRecord]:
    async def there() -> list[ExportRecord] | None:
        return list(found.records.values()) if len(found.records) >= count else None

    return await eventually(there, f"{count} records arrive")


async def test_accepted_evidence_arrives_and_survives_a_restart(cluster: FakeCluster) -> None:
    node = cluster.api.objects.get("nodes", "node-1")
    cluster.api.change("nodes", node | {"spec": {"providerID": "aws:///us-west-2a/i-0123"}})
    async with receiver() as found:
        values = settings(cluster.folder, found.url)
        async with cluster.controller(**values) as here, here.client() as agent:
            assert await here.refusal("node-2") == "NODE_UNKNOWN"
            verdict = await agent.accepted(CARDS)
            records = await arrived(found, len(CARDS.gpus))
            await here.metric_is('gpuid_export_success_total{exporter="http"}', 1)
            await here.metric_is('gpuwarden_export_waiting_records{exporter="http"}', 0)
        assert {x.uuid for x in records} == {x.uuid for x in CARDS.gpus}
        assert {(x.cluster, x.node, x.machine, x.level, x.change) for x in records} == {
            ("test", "node-1", "i-0123", "L0", 1)
        }
        assert {x.class_hash for x in records} == {verdict.attestation_hash}
        assert {x.source for x in records} == {"spiffe://example.org/gpuwarden/agent/node-1"}
        sent = len(found.requests)
        texts = [
            json.loads(x["data"]["document"])
            for x in cluster.api.objects.all("configmaps").values()
            if x["metadata"]["name"].startswith("gpuwarden-export-http-")
        ]
        assert {uuid for text in texts for uuid in text} == {x.uuid for x in records}
        async with cluster.controller(**values) as here, here.client() as agent:
            await agent.accepted(CARDS)
            await here.metric_is('gpuwarden_export_waiting_records{exporter="http"}', 0)
            assert await here.metric('gpuid_export_success_total{exporter="http"}') == 0
        assert [x.method for x in found.requests[sent:]] in ([], ["HEAD"])


async def test_refused_evidence_is_not_exported(cluster: FakeCluster) -> None:
    async with receiver() as found:
        async with (
            cluster.controller(**settings(cluster.folder, found.url)) as here,
            here.client() as agent,
        ):
            challenge = await agent.admitted()
            await agent.answer(challenge, nonce="0" * 64)
            await here.metric_is('gpuwarden_evidence_total{code="INNER_NONCE_MISMATCH"}', 1)
        assert found.records == {}


async def test_a_destination_that_is_down_is_a_warning_and_keeps_nobody_waiting(
    cluster: FakeCluster,
) -> None:
    async with raw_server(says("503 Down")) as down:
        values = settings(cluster.folder, down.url)
        async with cluster.controller(**values) as here, here.client() as agent:
            await agent.accepted()

            async def warned() -> str | None:
                found = [x for x in await here.warnings() if x.startswith("export: http")]
                return found[0] if found else None

            assert "HTTP 503" in await eventually(warned, "the warning")
            assert not [x for x in await here.reasons() if "export" in x]
            assert await here.metric('gpuwarden_export_healthy{exporter="http"}') == 0
        assert not (cluster.folder / "export" / "http.ndjson").exists()


async def test_what_waits_is_delivered_before_the_end(cluster: FakeCluster) -> None:
    """The receiver is busy at first; the controller is told to end while records wait."""
    async with receiver() as found:
        found.is_busy = True
        values = settings(cluster.folder, found.url)
        async with cluster.controller(**values) as here, here.client() as agent:
            await agent.accepted()
            await found.was_busy.wait()
            found.is_busy = False
        assert len(found.records) > 0


async def test_an_eligible_node_has_labels_until_its_lease_ends(cluster: FakeCluster) -> None:
    node = cluster.api.objects.get("nodes", "node-1")
    labels = {"gpuid.github.com/gpu-9": "stale", "team": "a"}
    node["metadata"]["labels"] = labels
    cluster.api.change("nodes", node)

    async def labelled(*keys: str) -> dict[str, str]:
        async def there() -> dict[str, str] | None:
            found = cluster.api.objects.get("nodes", "node-1")["metadata"].get("labels", {})
            return found if set(found) == {*keys, "team"} else None

        return await eventually(there, f"the labels {keys}")

    async with (
        cluster.controller(kubernetes__inventoryLabels="true") as here,
        here.client() as agent,
    ):
        await agent.accepted(CARDS)
        here.clock.ahead_ns += 43_000_000_000
        await here.reason("first round", wanted=False)
        own = [f"inventory.gpuwarden.dev/{x}" for x in ("class", "gpu-count", "level")]
        gpus = [f"gpuid.github.com/gpu-{n}" for n in range(len(CARDS.gpus))]
        assert (await labelled(*own, *gpus))[own[1]] == str(len(CARDS.gpus))
        here.clock.ahead_ns += 50_000_000_000
        await labelled()


async def test_lines_of_standard_output_are_records(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(cluster.folder, "http://127.0.0.1:9/", "stdout")
    async with cluster.controller(**values) as here, here.client() as agent:
        await agent.accepted(CARDS)
        await here.metric_is('gpuid_export_success_total{exporter="stdout"}', 1)
    sys.stdout.flush()
    lines = [x for x in capsys.readouterr().out.splitlines() if '"key"' in x]
    assert {read_json(x).uuid for x in lines} == {x.uuid for x in CARDS.gpus}
