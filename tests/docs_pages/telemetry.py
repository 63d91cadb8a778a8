"""docs/reference/telemetry.md, made from `names`. Pure."""

from collections.abc import Iterable, Iterator

from gpuwarden.telemetry.every_metric import METRICS, OF_SCORE_TOO
from gpuwarden.telemetry.names import FLEET_PAGE, PAGE, Event, Metric, Span

_INTRO = """\
# Telemetry

Generated from the code (`gpuwarden/telemetry`); a test fails when it is out of date.

Metrics are served at `/metrics` of the ops listener, beside Python's `process_` and `python_`
metrics. Labels hold reason codes, states and other closed sets, never pods, hashes or serial
numbers. To a scraper that asks for OpenMetrics, as Prometheus does, the controller's histograms
of requests and of evidence carry exemplars with the `trace_id` of a sampled trace.

With `metrics.fleet: true` a controller serves a second page, `/metrics/fleet`, with series for each
node and GPU. Each scrape makes a new one, so what is gone has no series. Every replica serves the
same: take one of them, for example with `max by (UUID, node) (gpuwarden_gpu_info)`. `UUID` is spelt
as by NVIDIA's DCGM exporter, so its metrics can be joined:

```promql
DCGM_FI_DEV_GPU_UTIL
  * on (UUID) group_left (node, serial) max by (UUID, node, serial) (gpuwarden_gpu_info)
```

Logs go to standard error, one JSON object per line (`log.format: text` for people):
`timestamp` (RFC 3339, UTC), `level`, `event`, `component`, `service` and what belongs to the
event. Secrets are replaced by `<redacted>`, control characters are escaped, long values are
cut. `event` is one of the names below and nothing else, so that you can filter by it. What a
library or Python itself has to say is `library.message`, with its text in `message` and its logger
in `component`. Messages about settings that cannot be used come before the format is known: they
are plain text on standard error, and the exit code is 2.

Standard output carries the copies of the audit log, and `agent.listening`. gRPC's core writes to
neither: `GRPC_VERBOSITY` is `NONE` unless the environment sets it (`INFO` to look into
connections).

Traces are sent by OTLP over HTTP when `telemetry.otlp` is set; `OTEL_*` variables for
sampling and resources are honoured. With values that OpenTelemetry refuses the process runs
without traces and logs `telemetry.tracing.off`.

With `telemetry.logs: true` a controller sends audit records and changes of nodes there as log
records ([what they hold](../operations.md#log-records))."""


def telemetry_page() -> str:
    """Return the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRO
    yield from ("", "## Metrics", "")
    yield from _table(x for x in METRICS if x.page == PAGE)
    yield from ("", "## Metrics of the fleet", "")
    yield from (f"At `{FLEET_PAGE}`, with `metrics.fleet: true`.", "")
    yield from _table(x for x in METRICS if x.page == FLEET_PAGE)
    yield from ("", "## Log events", "", "| event | meaning |", "|---|---|")
    yield from (f"| `{event.value}` | {event.meaning} |" for event in Event)
    yield from ("", "## Spans", "", "| span | covers |", "|---|---|")
    yield from (f"| `{span.value}` | {span.meaning} |" for span in Span)


def _table(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| name | type | process | labels | meaning |"
    yield "|---|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        also = ", score" if metric in OF_SCORE_TOO else ""
        process = metric.process.value + also
        cells = (f"`{metric.name}`", metric.type.value, process, labels, metric.help)
        yield f"| {' | '.join(cells)} |"
