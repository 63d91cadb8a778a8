"""Logs and metrics of the scoring service. Must not decide anything."""

from collections import deque
from collections.abc import Hashable
from typing import Final

from controller.scoring.learned import Observation
from controller.scoring.score import Job, Scored
from controller.web.handshakes import HandshakeFailure
from controller.web.listener import ConnectionEnd
from gpuwarden.telemetry import names, score_names
from gpuwarden.telemetry.limited import LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

LISTENER: Final = "score"
_OTHER: Final = "other"
_GPU_TYPES: Final = 64
_PAIRS: Final = 256
_LAST: Final = 200
"""Decisions over which means are taken."""


class _FirstFew:
    """Bounds the values of labels: callers choose them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[Hashable] = set()

    def has(self, value: Hashable) -> bool:
        """Whether it is one of the first `most`."""
        if value not in self._known and len(self._known) < self._most:
            self._known.add(value)
        return value in self._known


class ScoreRecorder:
    """Implements `ScoreSink` and `RequestSink`."""

    def __init__(self, instruments: Instruments) -> None:
        self._log = logger("score")
        self._limited = LimitedLog(self._log, instruments)
        self._decisions = instruments.counter(score_names.SCORE_DECISIONS)
        self._exploration = instruments.gauge(score_names.SCORE_EXPLORATION)
        self._uncertainty = instruments.gauge(score_names.SCORE_UNCERTAINTY)
        self._regret = instruments.gauge(score_names.SCORE_REGRET)
        self._observations = instruments.counter(score_names.SCORE_OBSERVATIONS)
        self._seconds = instruments.histogram(score_names.SCORE_SECONDS)
        self._requests = instruments.counter(score_names.SCORE_REQUESTS)
        self._runs = instruments.counter(score_names.SCORE_RUNS)
        self._stored = instruments.gauge(score_names.SCORE_STORED)
        self._forgotten = instruments.counter(score_names.SCORE_FORGOTTEN)
        self._gpu_types = _FirstFew(_GPU_TYPES)
        self._pairs = _FirstFew(_PAIRS)
        self._last: deque[tuple[float, float]] = deque(maxlen=_LAST)
        self._fails = False

    # --- the service

    def decided(self, job: Job, scored: Scored, ratio: float) -> None:
        """A job was scored, and counts."""
        chosen = scored.chosen
        label = chosen.gpu_type if self._gpu_types.has(chosen.gpu_type) else _OTHER
        self._decisions.labels(label, scored.decision.value).inc()
        self._exploration.set(ratio)
        best = min(x.estimate.mu for x in scored.candidates)
        self._last.append((chosen.estimate.spread, chosen.estimate.mu / best - 1))
        self._uncertainty.set(sum(x for x, _ in self._last) / len(self._last))
        self._regret.set(sum(x for _, x in self._last) / len(self._last))
        self._log.debug(
            Event.SCORE_DECIDED,
            job_type=job.job_type,
            gpu_type=chosen.gpu_type,
            score=round(chosen.score, 2),
            decision=scored.decision.value,
        )

    def observed(self, seen: Observation, *, saved: bool) -> None:
        """A run was reported."""
        pair = (seen.job_type, seen.gpu_type)
        self._observations.labels(*(pair if self._pairs.has(pair) else (_OTHER, _OTHER))).inc()
        self._runs.labels("learned" if seen.succeeded else "failed").inc()
        self._log.debug(
            Event.SCORE_OBSERVED, job_type=seen.job_type, gpu_type=seen.gpu_type, saved=saved
        )

    def repeated(self, seen: Observation) -> None:
        """A run was reported once more, and not learned again."""
        self._runs.labels("repeated").inc()
        self._log.debug(Event.SCORE_REPEATED, job_type=seen.job_type, run_id=seen.run_id)

    def forgotten(self, rows: int) -> None:
        """Rows went because there were too many."""
        self._forgotten.inc(rows)

    def store_changed(self, problem: str) -> None:
        """The database takes everything again, or does not."""
        self._stored.set(not problem)
        if problem:
            if not self._fails:
                self._log.error(Event.SCORE_STORE_FAILED, reason=problem)
        else:
            self._log.info(Event.SCORE_STORE_AVAILABLE)
        self._fails = bool(problem)

    def read_whole(self, before: int, after: int) -> None:
        """All rows were read: at the start, or because the database is not what it was."""
        told = self._log.warning if after < before else self._log.info
        told(Event.SCORE_STORE_READ, rows_before=before, rows=after)

    # --- requests

    def answered(self, path: str, status: int, seconds: float) -> None:
        """One answer."""
        self._requests.labels(path, str(status)).inc()
        if path == "/v1/score":
            self._seconds.observe(seconds)

    def refused(self, path: str, reason: str) -> None:
        """A request that could not be meant."""
        self._limited.warning(Event.SCORE_REFUSED, key=path, path=path, reason=reason)

    def failed(self, path: str, error: Exception | None) -> None:
        """No answer."""
        if error is None:
            self._limited.error(Event.SCORE_FAILED, key=path, path=path, reason="not in time")
        else:
            self._limited.error(
                Event.SCORE_FAILED, key=(path, type(error)), path=path, exc_info=error
            )


class ConnectionRecorder:
    """Implements `ListenerObserver` for one of the listeners, which speak no TLS."""

    def __init__(self, listener: str, instruments: Instruments) -> None:
        self._listener = listener
        self._limited = LimitedLog(logger("score"), instruments)
        self._cuts = instruments.counter(names.CONNECTIONS_CUT)
        self._malformed = instruments.counter(names.REQUESTS_MALFORMED).labels(listener)

    def certificate_changed(self, error: str | None) -> None:
        """The listener has none."""

    def handshake_completed(self) -> None:
        """It makes none."""

    def handshake_failed(self, cause: HandshakeFailure, peer: str, reason: str) -> None:
        """It makes none."""

    def connection_cut(self, cause: ConnectionEnd, peer: str) -> None:
        """The listener ended a connection."""
        self._cuts.labels(self._listener, cause.value).inc()
        if cause is not ConnectionEnd.IDLE:
            self._limited.warning(
                Event.CONNECTIONS_CUT,
                key=cause,
                listener=self._listener,
                cause=cause.value,
                peer=peer,
            )

    def malformed(self, reason: str) -> None:
        """The framing of a request could not be read."""
        self._malformed.inc()
        self._limited.warning(
            Event.REQUEST_MALFORMED, listener=self._listener, reason=reason.splitlines()[0]
        )
