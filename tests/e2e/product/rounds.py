"""Rounds of attestation as one replica of the controller numbers them, and all that it tells."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.fleet.tally import metrics_of
from tests.e2e.lab.waiting import until
from tests.e2e.product.deployed import Deployed

_MORE = 3
_SERIES = re.compile(
    r'^(gpuwarden_[a-z_]+_total)\{(?:cause|code)="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was counted since the replica's start."""

    challenges: int
    """Number of the last challenge."""
    judged: Mapping[str, int]
    """Messages and streams by reason code."""
    offered: Mapping[str, int]
    """Nodes in answers to the scheduler by reason code."""

    @property
    def unanswered(self) -> int:
        """Challenges without acceptance; one may be under way."""
        return self.challenges - self.judged["ACCEPTED"]


def rounds_of(ops: str) -> Rounds:
    """Now, from `/metrics` at this address."""
    found: dict[str, Counter[str]] = {}
    for name, label, value in _SERIES.findall(metrics_of(ops)):
        found.setdefault(name, Counter())[label] = int(float(value))
    return Rounds(
        found["gpuwarden_challenges_total"].total(),
        found["gpuwarden_evidence_total"],
        found.get("gpuwarden_extender_nodes_total", Counter()),
    )


def settled_rounds(ops: str) -> Rounds:
    """One moment of the next few rounds at which none is under way, if there is such a one."""
    first = least = rounds_of(ops)

    def is_later() -> bool:
        nonlocal least
        least = min(least, now := rounds_of(ops), key=lambda x: x.unanswered)
        return now.challenges >= first.challenges + _MORE

    until(f"{_MORE} more rounds at {ops}", is_later, timeout_s=60)
    return least


class Told:
    """Everything that `gpuwarden nodes --watch` says in a controller's pod, until `end`."""

    def __init__(self, cluster: Deployed, replica: int, file: Path) -> None:
        self._node = cluster.lab.node.name
        self._file = file
        with file.open("wb") as output:
            self._process = subprocess.Popen(
                cluster.kubectl_command(
                    "exec",
                    f"gpuwarden-controller-{replica}",
                    "--",
                    *("gpuwarden", "nodes", "--watch", "--output", "json"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
        until("it tells of the node", self.all, timeout_s=60)

    def all(self) -> list[dict[str, Any]]:
        """The node each time that something about it was new."""
        lines = self._file.read_text().splitlines(keepends=True)
        told = [json.loads(x).get("node", {}) for x in lines if x.endswith("\n")]
        return [x for x in told if x.get("name") == self._node]

    def end(self) -> list[dict[str, Any]]:
        """Everything; it must not have ended by itself."""
        assert self._process.poll() is None
        self.close()
        return self.all()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
