"""`python -m tests.chart.manifests FILE`: all of an overlay in one file, for `kubectl apply`."""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.deploy.manifests import KUSTOMIZE, kubectl

_RENDER_S = 120


def main(arguments: list[str] | None = None) -> int:
    """Write it; 1 with what kubectl says where an overlay cannot be rendered."""
    parser = argparse.ArgumentParser(prog="python -m tests.chart.manifests", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--overlay", type=Path, default=KUSTOMIZE / "overlays" / "dev")
    parsed = parser.parse_args(arguments)
    done = subprocess.run(
        [kubectl(), "kustomize", parsed.overlay],
        capture_output=True,
        text=True,
        timeout=_RENDER_S,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(f"manifests: {done.stderr}")
        return 1
    parsed.file.parent.mkdir(parents=True, exist_ok=True)
    parsed.file.write_text(done.stdout)
    sys.stdout.write(f"{parsed.file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
