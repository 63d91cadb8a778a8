"""Of an exposition, declared metrics leave in their declared form, and nothing else."""

import pytest

from gpuwarden.support.exposition import metrics_part
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import METRICS, Process


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_every_sample_of_ours_is_kept(process: Process) -> None:
    instruments = Instruments(process, "0.1.0")
    for metric in METRICS:
        if metric.process in {process, Process.BOTH} and metric.labels:
            made = instruments._get(metric, object)  # type: ignore[type-var]
            if metric.name != "gpuwarden_build_info":
                made.labels(*("/gpuwarden.wire.v1.A/B" for _ in metric.labels))  # type: ignore[attr-defined]
    rendered = instruments.render().decode()
    ours = {line for line in rendered.splitlines() if line.startswith("gpuwarden_")}
    part = metrics_part("metrics.prom", rendered.encode())
    kept = (part.content or b"").decode().splitlines()
    assert {line for line in kept if line.startswith("gpuwarden_")} == ours
    assert "process_open_fds" in (part.content or b"").decode()


@pytest.mark.parametrize(
    "line",
    [
        "somebody_elses_total 1.0",
        'gpuwarden_ready{password="hunter2"} 1.0',
        'gpuwarden_evidence_total{code="hunter 2"} 1.0',
        'gpuwarden_evidence_total{code="\x1b[2J"} 1.0',
        'gpuwarden_evidence_total{code="a"} hunter2',
        "gpuwarden_ready 1.0 # hunter2",
        'process_open_fds{a="b"} 1.0',
        'python_info{implementation="hunter2"} 1.0',
        "\xff\xfe",
    ],
)
def test_what_is_not_declared_is_counted_and_not_kept(line: str) -> None:
    text = f"# HELP gpuwarden_ready hunter2\ngpuwarden_ready 1.0\n{line}\n"
    part = metrics_part("metrics.prom", text.encode("latin-1"))
    assert part.content == b"gpuwarden_ready 1.0\n"
    assert part.left_out == 1
