"""A real Prometheus scrapes the sandbox: it takes every page, and every panel has an answer.

Prometheus (Debian: prometheus) is started once. A page as of NVIDIA's DCGM exporter stands beside
the controller's and the agent's, with the UUIDs of the simulated GPUs, to be joined with.
"""

import asyncio
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
import yaml

from sandbox.laptop import Laptop, Pace
from sandbox.nodes import LEGACY, simulated_nodes
from tests.deploy.test_monitoring_files import DASHBOARDS, queries, rules
from tests.fakes.eventually import eventually
from tests.hang import HANG_S

PACE: Final = Pace(interval_s=0.4, challenge_ttl_s=15.0, lease_s=60.0)
"""Often, and with so much time that no stream ends on a busy machine: a panel counts those."""
GHOST: Final = "ghost-0"
STEP: Final = "1s"
RANGE: Final = "30s"
PANELS: Final = [
    (f"{path.stem}: {title}", query) for path in DASHBOARDS for title, query in queries(path)
]
WITHOUT_A_CLUSTER: Final = {
    *("Confirmed reservations", "Unreserved use", "Webhook answers", "Refused pods by code"),
    *("Time to answer the API server (p99)", "Bindings by code", "Reservations by state"),
    *("Changes of reservations", "Use that disagrees with the ledger", "Drift of the ledger"),
    *("Evictions", "GPUs by use", "Idle reserved GPUs by namespace"),
    *("Idle GPU-hours by namespace", "Idle share of reserved GPU time by namespace"),
    *("Kubernetes API: requests", "Kubernetes API: age of what is known"),
    *("Hints by result", "Runs for the scorer by result", "Scorer: answers"),
    *("Kubernetes API: objects", "Kubernetes API: ended watches", "Events", "Ledger: writes"),
}
"""Of reservations, webhooks and the Kubernetes API: the sandbox has none."""
NOTHING_HAPPENED: Final = {
    *("Failure notices of drivers", "Failed NVML calls", "Ended streams by cause"),
    *("Failed TLS handshakes", "Time until certificates end", "Withheld log lines"),
    "GPUs that are not usable",
}
"""What counts faults."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What Prometheus found."""

    results: Mapping[str, list[dict[str, Any]]]
    targets: Mapping[str, str]
    """Job -> health."""
    exemplars: list[dict[str, Any]]
    series: int


def _get(address: str, path: str, **parameters: str) -> Any:
    url = f"http://{address}{path}?{urllib.parse.urlencode(parameters)}"
    found = json.loads(_open(url))
    assert found["status"] == "success", found
    return found["data"]


class Dcgm(BaseHTTPRequestHandler):
    """Serves one metric of the exporter for some UUIDs."""

    uuids: tuple[str, ...] = ()

    def do_GET(self) -> None:
        body = "".join(
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{x}",Hostname="h"}} 42\n' for x in self.uuids
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _configuration(targets: Mapping[str, tuple[str, str]]) -> str:
    scrapes = [
        {"job_name": job, "metrics_path": path, "static_configs": [{"targets": [address]}]}
        for job, (address, path) in targets.items()
    ]
    times = {"scrape_interval": STEP, "scrape_timeout": STEP, "evaluation_interval": STEP}
    found = {"global": times, "rule_files": ["rules.yaml"], "scrape_configs": scrapes}
    return yaml.safe_dump(found)


async def _filter(extender: str) -> None:
    pod = {
        "metadata": {
            "name": "job",
            "namespace": "research",
            "annotations": {"gpuwarden.dev/gpu-selector": "architecture=hopper"},
        },
        "spec": {"containers": [{"name": "c"}]},
    }
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": [LEGACY, GHOST]}).encode()
    request = urllib.request.Request(
        f"http://{extender}/filter",
        body,
        {
            "Content-Type": "application/json",
            "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01",
        },
    )
    await asyncio.to_thread(_open, request)


def _open(request: urllib.request.Request | str) -> bytes:
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:  # noqa: S310 - on loopback
        found: bytes = answer.read()
    return found


async def _watch(folder: Path, prometheus: str, collector: str) -> Answers:
    laptop = Laptop(folder, PACE, otlp=collector)
    dcgm = ThreadingHTTPServer(("127.0.0.1", 0), Dcgm)
    Thread(target=dcgm.serve_forever, daemon=True).start()
    server = None
    try:
        [node] = [node for node in simulated_nodes() if node.name == LEGACY]
        Dcgm.uuids = tuple(x.uuid for x in node.scenario.gpus)
        await laptop.start_controller((LEGACY, GHOST))
        await laptop.start_agent(node)
        listening = await laptop.programs[LEGACY].event("agent.listening", timeout_s=HANG_S)
        targets = {
            "gpuwarden-controller": (laptop.addresses.ops, "/metrics"),
            "gpuwarden-fleet": (laptop.addresses.ops, "/metrics/fleet"),
            "gpuwarden-agent": (listening["ops"], "/metrics"),
            "dcgm": (f"127.0.0.1:{dcgm.server_port}", "/metrics"),
        }
        (folder / "prometheus.yaml").write_text(_configuration(targets))
        (folder / "rules.yaml").write_text(
            yaml.safe_dump({"groups": [{"name": "gpuwarden", "rules": rules()}]})
        )
        await _filter(laptop.addresses.extender)
        server, address = await _started(folder, prometheus)
        results: dict[str, list[dict[str, Any]]] = {}

        async def answered() -> bool | None:
            """Scraped by all, and twice, so that there are rates."""
            await _filter(laptop.addresses.extender)
            for name, query in PANELS:
                if not results.get(name):
                    filled = query.replace("$__rate_interval", RANGE).replace("$__range", RANGE)
                    data = await asyncio.to_thread(_get, address, "/api/v1/query", query=filled)
                    results[name] = data["result"]
            missing = {x for x, found in results.items() if not found and _is_expected(x)}
            return None if missing else True

        await eventually(answered, "an answer for every panel")
        active = _get(address, "/api/v1/targets")["activeTargets"]
        exemplars = _get(
            address,
            "/api/v1/query_exemplars",
            query="gpuwarden_extender_request_seconds_bucket",
            start="0",
            end="9999999999",
        )
        series = _get(address, "/api/v1/series", **{"match[]": '{__name__=~"gpuwarden_.*"}'})
        health = {x["labels"]["job"]: f"{x['health']}{x['lastError']}" for x in active}
        return Answers(results, health, exemplars, len(series))
    finally:
        if server is not None:
            server.terminate()
            server.wait(HANG_S)
        dcgm.shutdown()
        dcgm.server_close()
        await laptop.close()


def _is_expected(panel: str) -> bool:
    return panel.partition(": ")[2] not in WITHOUT_A_CLUSTER | NOTHING_HAPPENED


async def _started(folder: Path, prometheus: str) -> tuple["subprocess.Popen[bytes]", str]:
    log = folder / "prometheus.log"
    command = (
        prometheus,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--enable-feature=exemplar-storage",
        "--log.format=json",
    )
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)  # noqa: ASYNC220 - it starts at once

    async def address() -> str | None:
        for line in log.read_text().splitlines():
            said = json.loads(line)
            if said.get("msg") == "Listening on":
                return str(said["address"])
        assert server.poll() is None, log.read_text()
        return None

    found = await eventually(address, "Prometheus listens")

    async def is_ready() -> bool | None:
        try:
            await asyncio.to_thread(_open, f"http://{found}/-/ready")
        except urllib.error.HTTPError:
            return None
        return True

    await eventually(is_ready, "Prometheus is ready")
    return server, found


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("prometheus is not here (Debian: prometheus)")
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        # Nobody listens there: spans are dropped, and their ids are exemplars all the same.
        yield asyncio.run(_watch(Path(name), prometheus, "http://127.0.0.1:9"))


def test_every_page_is_taken(answers: Answers) -> None:
    jobs = ("gpuwarden-controller", "gpuwarden-fleet", "gpuwarden-agent", "dcgm")
    assert answers.targets == dict.fromkeys(jobs, "up")
    assert answers.series > 100


@pytest.mark.parametrize("panel", [x for x, _ in PANELS], ids=str)
def test_every_panel_has_an_answer(answers: Answers, panel: str) -> None:
    assert bool(answers.results[panel]) is _is_expected(panel)


def test_what_is_left_out_is_a_panel() -> None:
    titles = {x.partition(": ")[2] for x, _ in PANELS} | {x.split(": ", 1)[1] for x, _ in PANELS}
    assert titles >= WITHOUT_A_CLUSTER | NOTHING_HAPPENED


def test_gpus_join_with_those_of_dcgm_by_uuid(answers: Answers) -> None:
    found = answers.results["gpuwarden-placement: Utilization by DCGM, with node and serial"]
    assert {(x["metric"]["UUID"], x["metric"]["node"]) for x in found} == {
        (uuid, LEGACY) for uuid in Dcgm.uuids
    }
    assert {x["value"][1] for x in found} == {"42"}


def test_request_times_have_exemplars_with_the_caller_s_trace(answers: Answers) -> None:
    traces = {y["labels"]["trace_id"] for x in answers.exemplars for y in x["exemplars"]}
    assert "ab" * 16 in traces
