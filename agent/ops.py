"""What `/healthz`, `/readyz` and `/metrics` of the agent answer.

Alive means: the event loop turns (or there would be no answer) and no NVML call is
stuck. Ready means: there is an SVID and one controller's acceptance still holds.
Reads values only.
"""

import json
import time
from dataclasses import asdict
from http import HTTPStatus
from typing import Protocol

from agent.gpu.source import StuckCall
from agent.health import JSON, Answer, Route
from agent.standing import ReplicaReport, Standing
from gpuwarden.identity.svid_watcher import SvidFacts
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import CONTENT_TYPE, Instruments


class StuckProbe(Protocol):
    """Knows whether an NVML call is stuck."""

    def stuck(self, now: float) -> StuckCall | None:
        """The call that will never return; `now` is `time.monotonic()`."""


class IdentityFacts(Protocol):
    """Knows about the SVID."""

    def state(self) -> str:
        """One line: which one, or why there is none."""

    def facts(self) -> SvidFacts:
        """Numbers for metrics."""


class Ops:
    """The three answers."""

    def __init__(
        self,
        instruments: Instruments,
        standing: Standing,
        gpus: StuckProbe,
        identity: IdentityFacts,
    ) -> None:
        self._instruments = instruments
        self._standing = standing
        self._gpus = gpus
        self._identity = identity
        self._counted = SvidFacts(0.0, 0, 0, 0, watching=False)

    def routes(self) -> dict[str, Route]:
        """For the health server."""
        return {"/healthz": self.healthz, "/readyz": self.readyz, "/metrics": self.metrics}

    def healthz(self) -> Answer:
        """Liveness."""
        stuck = self._gpus.stuck(time.monotonic())
        if stuck is None:
            return Answer(HTTPStatus.OK, b"ok\n")
        text = f"NVML call {stuck.call} has not returned for {stuck.seconds:.0f} s\n"
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, text.encode())

    def readyz(self) -> Answer:
        """Readiness with a reason and with the last verdict of every replica."""
        readiness = self._standing.readiness()
        body = {
            "ready": readiness.ready,
            "reasons": list(readiness.reasons),
            "identity": self._identity.state(),
            "alarms": list(readiness.alarms),
            "replicas": [_shown(replica) for replica in readiness.replicas],
        }
        status = HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, json.dumps(body).encode() + b"\n", JSON)

    def metrics(self) -> Answer:
        """Prometheus' text format."""
        self._standing.refresh()
        self._count(self._identity.facts())
        return Answer(HTTPStatus.OK, self._instruments.render(), CONTENT_TYPE)

    def _count(self, facts: SvidFacts) -> None:
        before, self._counted = self._counted, facts
        updates = self._instruments.counter(names.SVID_UPDATES)
        updates.labels("taken").inc(facts.generation - before.generation)
        updates.labels("failed").inc(facts.failures - before.failures)
        restarts = self._instruments.counter(names.SVID_SOURCE_RESTARTS)
        restarts.inc(max(0, facts.rebuilds - 1) - max(0, before.rebuilds - 1))
        self._instruments.gauge(names.SVID_EXPIRY).set(facts.svid_expires_seconds)


def _shown(replica: ReplicaReport) -> dict[str, object]:
    fields = asdict(replica)
    fields["state"] = fields.pop("condition")
    return {_CAMEL.get(name, name): value for name, value in fields.items()}


_CAMEL = {"attestation_hash": "attestationHash", "fresh_for_s": "freshForSeconds"}
