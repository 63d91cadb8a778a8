"""`python -m tests.hardware`, or `make hardware`: every check that needs a real NVIDIA GPU.

Runs the NVML contract and the tests of this folder, then the demo with this machine as a node,
and writes what was read and measured to `--report`. Needs the NVIDIA driver (libnvidia-ml,
libcuda, nvidia-smi) and no other software on the GPU; changes no setting of it. As root,
processes are seen in a pod's cgroup as well.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from sandbox.laptop import ROOT, has_real_nvml
from tests.hardware.report import written

CHECKS: Final = {
    "contract and tests": (
        *("pytest", "-p", "no:cacheprovider", "-v", "-k", "real or hardware"),
        *("tests/contracts/test_nvml_contract.py", "tests/contracts/test_nvml_edges.py"),
        "tests/hardware",
    ),
    "demo": ("sandbox", "demo"),
}
_CHECK_S: Final = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hardware", description=__doc__)
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "hardware" / "report.json")
    parser.add_argument("--idle", type=float, default=60.0, help="how long to measure, s (60)")
    parsed = parser.parse_args()
    if not has_real_nvml():
        sys.stderr.write("hardware: this machine has no NVIDIA GPU, or no driver for it\n")
        return 2
    failed = [name for name, command in CHECKS.items() if not _holds(command)]
    found = written(parsed.report, parsed.idle)
    if found["read"]["nvidia_smi_disagrees"] or found["read"]["failed_reads_that_matter"]:
        failed.append("report")
    verdict = f"failed: {', '.join(failed)}" if failed else "all checks hold"
    sys.stdout.write(f"hardware: {parsed.report}\nhardware: {verdict}\n")
    return 1 if failed else 0


def _holds(command: tuple[str, ...]) -> bool:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False, timeout=_CHECK_S)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
