"""Fails where branch coverage is below its floor: `python -m tests.coverage_floors`.

Reads the data file that the test run left (COVERAGE_FILE) and compares each package
with its floor. What runs in child processes, or only in tests that `tests.measured` leaves
out, does not count.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

from coverage import Coverage

FLOORS = {
    "gpuwarden/evidence/": 100.0,
    "gpuwarden/identity/": 100.0,
    "gpuwarden/audit/": 100.0,
    "controller/verifier/": 100.0,
    "controller/audit/": 100.0,
    "controller/ledger/": 100.0,
    "controller/admission/": 100.0,
    "controller/binding/asked_rounds.py": 100.0,
    "controller/binding/decision.py": 100.0,
    "controller/binding/reconciliation.py": 100.0,
    "controller/binding/records.py": 100.0,
    "controller/binding/request.py": 100.0,
    "controller/binding/use.py": 100.0,
    "controller/certificates/": 100.0,
    "": 90.0,
}
"""Path prefix -> least covered share of lines and branches together, in percent."""


def report() -> dict[str, dict[str, int]]:
    """Summary per file, as `coverage json` gives it."""
    coverage = Coverage()
    coverage.load()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "coverage.json"
        coverage.json_report(outfile=str(target))
        files = json.loads(target.read_text())["files"]
    return {name: entry["summary"] for name, entry in files.items()}


def shortfalls(files: dict[str, dict[str, int]]) -> list[str]:
    """One line for each package below its floor, with the files that lack something."""
    lines = []
    for prefix, floor in FLOORS.items():
        mine = {name: s for name, s in files.items() if name.startswith(prefix)}
        total = sum(s["num_statements"] + s.get("num_branches", 0) for s in mine.values())
        hit = sum(s["covered_lines"] + s.get("covered_branches", 0) for s in mine.values())
        share = 100.0 * hit / total if total else 0.0
        sys.stdout.write(f"coverage {prefix or 'all':24} {share:6.2f} % (floor {floor:g} %)\n")
        if share < floor:
            gaps = sorted(n for n, s in mine.items() if s["covered_lines"] < s["num_statements"])
            lines.append(f"{prefix or 'all'}: {share:.2f} % < {floor:g} %: {', '.join(gaps[:20])}")
    return lines


if __name__ == "__main__":
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)
    if below := shortfalls(report()):
        sys.exit("coverage below its floor\n" + "\n".join(below))
