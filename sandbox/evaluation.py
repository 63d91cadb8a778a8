"""`python -m sandbox.evaluation ARGUMENTS…`: the agent with made-up GPUs, for evaluations.

The only program of the image gpuwarden-agent-evaluation. Each node gets GPUs of its own, by its
name: two nodes with the same would be refused. Nothing that they show is proven.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import VARIABLE, Scenario, write

STATE: Final = Path("/var/lib/gpuwarden")
GPUS: Final = 2
WARNING: Final = (
    "INSECURE: evaluation: this agent shows made-up GPUs, and nothing that it shows is proven"
)
Execute = Callable[[str, tuple[str, ...], Mapping[str, str]], object]


def main(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    state: Path = STATE,
    execute: Execute = os.execve,
) -> int:
    """Become the agent; 2 where it has no node's name."""
    node = environment.get("NODE_NAME")
    if not node:
        sys.stderr.write(
            "NODE_NAME is not set, expected the node's name: its GPUs are made from it\n"
        )
        return 2
    sys.stderr.write(f"{WARNING}\n")
    file = state / "evaluation.scenario"
    write(file, scenario(node))
    command = (sys.executable, "-I", "-m", "agent", *arguments)
    execute(sys.executable, command, {**environment, VARIABLE: str(file)})
    return 0


def scenario(node: str) -> Scenario:
    """The node's GPUs: the same whenever it starts."""
    return Scenario(gpus=tuple(h100_sxm(n, f"evaluation {node}") for n in range(GPUS)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
