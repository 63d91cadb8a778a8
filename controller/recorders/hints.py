"""Records what became of hints: metrics, and lines in the log that radix's users look for.

Must not decide anything.
"""

from collections.abc import Callable

from controller.admission.hints.webhook import HintDecision
from controller.runs.reporter import RunNote
from gpuwarden.telemetry import names
from gpuwarden.telemetry.limited import LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event


class HintRecorder:
    """One for the process."""

    def __init__(self, instruments: Instruments) -> None:
        self._hints = instruments.counter(names.HINTS)
        self._left_out = instruments.counter(names.HINTS_LEFT_OUT)
        self._runs = instruments.counter(names.HINT_RUNS)
        self._unsaved = instruments.gauge(names.HINT_RUNS_UNSAVED)
        self._scorer = instruments.gauge(names.HINT_SCORER)
        self._log = logger("hints")
        self._limited = LimitedLog(self._log, instruments)

    def watch(self, path: str, is_open: Callable[[], bool]) -> None:
        """Show whether the scorer answers at a path; `is_open` tells that it failed too often."""
        self._scorer.labels(path).set_function(lambda: float(not is_open()))

    def watch_unsaved(self, unsaved: Callable[[], float]) -> None:
        """Show how many runs the scorer has not saved."""
        self._unsaved.set_function(unsaved)

    def note(self, decision: HintDecision) -> None:
        """One decision."""
        self._hints.labels(decision.result).inc()
        for reason in decision.left_out:
            self._left_out.labels(reason.value).inc()
        pod, score = f"{decision.namespace}/{decision.name}", decision.score
        if score is not None:
            self._log.info(
                Event.HINTS_GIVEN,
                message="Mutated pod",
                pod=pod,
                score=score.shown,
                gpu_type=score.gpu_type,
                avoided=score.avoided,
                left_out=[x.value for x in decision.left_out],
            )
        elif decision.is_fault:
            self._limited.warning(
                Event.HINTS_UNAVAILABLE,
                key=decision.result,
                message="Scheduler unavailable",
                pod=pod,
                reason=decision.result,
                detail=decision.detail,
            )
        else:
            self._log.debug(
                Event.HINTS_UNTOUCHED, pod=pod, reason=decision.result, detail=decision.detail
            )

    def note_run(self, note: RunNote) -> None:
        """What became of the report of a run."""
        self._runs.labels(note.result).inc()
        pod = f"{note.ended.namespace}/{note.ended.name}"
        if note.is_fault:
            self._limited.warning(
                Event.HINTS_UNREPORTED,
                key=note.result,
                message="Scheduler unavailable",
                pod=pod,
                reason=note.result,
                detail=note.detail,
            )
        else:
            self._log.debug(Event.HINTS_RUN, pod=pod, result=note.result)
