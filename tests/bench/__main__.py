"""`python -m tests.bench [--only NAME …]`: measure, and write what `docs` has of it.

These are benchmarks.md, benchmarks.json, benchmarks-growth.svg and reference/benchmarks.md. The
part `hints` simulates, and writes into learned-scores.md. With `--only` the chosen parts replace
theirs in the last results; the others stay.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.bench import (
    admission_rows,
    agent_rows,
    audit_rows,
    binding_rows,
    console_rows,
    core_rows,
    export_rows,
    filter_rows,
    ingest_rows,
    preempt_rows,
    ready_rows,
    release_rows,
    start_rows,
)
from tests.bench.child import ROOT
from tests.bench.go_peers import build_peers
from tests.bench.growth import growth
from tests.bench.hints.compare import write_comparison
from tests.bench.machine import describe
from tests.bench.page import merged, missed, page, table
from tests.bench.plot import svg
from tests.bench.results import Report, Row
from tests.go_toolchain import NoGoError

DOCS = ROOT / "docs"
PAGE, NUMBERS, PLOT = DOCS / "benchmarks.md", DOCS / "benchmarks.json", "benchmarks-growth.svg"
RESULTS = DOCS / "reference" / "benchmarks.md"
CACHE = ROOT / "build" / "bench"
GROWTH = "growth"
HINTS = "hints"


def parts(folder: Path, peers: Path) -> dict[str, Callable[[], list[Row]]]:
    """What can be measured, in the order of the page."""
    return {
        "filter": lambda: filter_rows.filter_rows(folder, peers),
        "preempt": lambda: preempt_rows.preempt_rows(folder, peers),
        "core": core_rows.core_rows,
        "admission": lambda: admission_rows.admission_rows(folder, peers),
        "binding": lambda: binding_rows.binding_rows(folder),
        "release": lambda: release_rows.release_rows(folder),
        "ingest": lambda: ingest_rows.ingest_rows(folder, peers),
        "audit": lambda: audit_rows.audit_rows(folder),
        "agent": lambda: agent_rows.agent_rows(folder, CACHE),
        "ready": lambda: ready_rows.ready_rows(folder, peers),
        "console": lambda: console_rows.console_rows(folder),
        "export": lambda: export_rows.export_rows(folder),
        "start": start_rows.start_rows,
    }


def main() -> int:
    """Measure; exit status 0 where everything was measured, whether or not the goals hold."""
    names = [*parts(Path(), Path()), GROWTH, HINTS]
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    chosen = parser.parse_args().only
    if HINTS in chosen:
        write_comparison(DOCS)
    if chosen == [HINTS]:
        return 0
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        peers = build_peers(CACHE)
    except NoGoError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    try:
        measure(chosen, folder, peers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(chosen: list[str], folder: Path, peers: Path) -> None:
    """Each part by itself; what is there is kept after each."""
    report = msgspec.structs.replace(known(), machine=describe(CACHE))
    for name, rows_of in parts(folder, peers).items():
        if name in chosen:
            rows = rows_of()
            sys.stdout.write(table(rows) + "\n")
            sys.stdout.flush()
            groups = {row.group for row in rows}
            others = tuple(row for row in report.rows if row.group not in groups)
            report = msgspec.structs.replace(report, rows=(*others, *rows))
            keep(report)
    if GROWTH in chosen:
        keep(msgspec.structs.replace(report, curves=tuple(growth(folder, peers))))


def known() -> Report:
    """The last results."""
    if not NUMBERS.exists():
        return Report({}, (), ())
    return msgspec.json.decode(NUMBERS.read_bytes(), type=Report)


def keep(report: Report) -> None:
    """Write pages, numbers and plot."""
    order = [
        module.GROUP
        for module in (
            filter_rows,
            preempt_rows,
            core_rows,
            admission_rows,
            binding_rows,
            release_rows,
            ingest_rows,
            audit_rows,
            agent_rows,
            ready_rows,
            console_rows,
            export_rows,
            start_rows,
        )
    ]
    measured = (row for row in report.rows if row.group in order)  # a former group leaves the page
    rows = tuple(sorted(measured, key=lambda row: order.index(row.group)))
    report = msgspec.structs.replace(report, rows=rows)
    NUMBERS.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    if report.curves:
        (DOCS / PLOT).write_text(svg(report.curves))
    RESULTS.write_text(merged(RESULTS.read_text(), page(report, f"../{PLOT}")))
    PAGE.write_text(merged(PAGE.read_text(), missed(report.rows)))


if __name__ == "__main__":
    sys.exit(main())
