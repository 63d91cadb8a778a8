"""What Prometheus and the log are told about hints."""

import structlog

from controller.admission.hints.patch import LeftOut
from controller.admission.hints.score import Score
from controller.admission.hints.webhook import HintDecision
from controller.recorders.hints import HintRecorder
from controller.runs.reporter import RunNote
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.runs import ended_run

LEFT_OUT = (LeftOut.NO_LABEL, LeftOut.PRIORITY_KEPT)


def test_each_decision_counts_and_the_seeds_words_are_in_the_log() -> None:
    instruments = Instruments(Process.CONTROLLER, "0")
    recorder = HintRecorder(instruments)
    with structlog.testing.capture_logs() as logs:
        score = Score(85.0, "NVIDIA-L4", ("serving",))
        recorder.note(HintDecision("n", "p", "hinted", score=score, left_out=LEFT_OUT))
        recorder.note(HintDecision("n", "p", "timeout", "no answer within 1 s"))
        recorder.note(HintDecision("n", "p", "breaker_open"))
        recorder.note(HintDecision("n", "p", "no_gpus"))

    def value(name: str, **labels: str) -> float | None:
        return instruments.registry.get_sample_value(f"gpuwarden_{name}_total", labels)

    for result in ("hinted", "timeout", "breaker_open", "no_gpus"):
        assert value("hints", result=result) == 1
    assert value("hints_left_out", reason="no_label") == 1
    assert value("hints_left_out", reason="priority_kept") == 1
    assert [(x["event"], x["log_level"], x.get("message"), x["pod"]) for x in logs] == [
        ("hints.given", "info", "Mutated pod", "n/p"),
        ("hints.unavailable", "warning", "Scheduler unavailable", "n/p"),
        ("hints.unavailable", "warning", "Scheduler unavailable", "n/p"),
        ("hints.untouched", "debug", None, "n/p"),
    ]
    given, slow, left_alone, untouched = logs
    assert (given["score"], given["gpu_type"]) == ("85", "NVIDIA-L4")
    assert given["left_out"] == ["no_label", "priority_kept"]
    assert (slow["reason"], slow["detail"]) == ("timeout", "no answer within 1 s")
    assert (left_alone["reason"], untouched["reason"]) == ("breaker_open", "no_gpus")


def test_each_report_of_a_run_counts_and_the_scorers_faults_are_warnings() -> None:
    instruments = Instruments(Process.CONTROLLER, "0")
    recorder = HintRecorder(instruments)
    with structlog.testing.capture_logs() as logs:
        for result in ("reported", "timeout", "refused", "lost", "unsaved", "deleted"):
            recorder.note_run(RunNote(ended_run(uid="a"), result, "why"))
    for result in ("reported", "timeout", "refused", "lost", "unsaved", "deleted"):
        found = instruments.registry.get_sample_value(
            "gpuwarden_hint_runs_total", {"result": result}
        )
        assert found == 1
    assert [(x["event"], x["log_level"], x["pod"]) for x in logs] == [
        ("hints.run", "debug", "team-a/pod-a"),
        ("hints.unreported", "warning", "team-a/pod-a"),
        ("hints.unreported", "warning", "team-a/pod-a"),
        ("hints.unreported", "warning", "team-a/pod-a"),
        ("hints.unreported", "warning", "team-a/pod-a"),
        ("hints.run", "debug", "team-a/pod-a"),
    ]
    assert [x.get("reason", x.get("result")) for x in logs] == [
        "reported",
        "timeout",
        "refused",
        "lost",
        "unsaved",
        "deleted",
    ]
    assert (logs[1]["message"], logs[1]["detail"]) == ("Scheduler unavailable", "why")


def test_one_cause_fills_no_log() -> None:
    recorder = HintRecorder(Instruments(Process.CONTROLLER, "0"))
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            recorder.note_run(RunNote(ended_run(uid="a"), "timeout"))
        recorder.note_run(RunNote(ended_run(uid="a"), "connection"))
    assert 0 < sum(x["reason"] == "timeout" for x in logs) < 100
    assert logs[-1]["reason"] == "connection"


def test_what_is_watched_is_shown_as_it_is_now() -> None:
    instruments = Instruments(Process.CONTROLLER, "0")
    recorder = HintRecorder(instruments)

    def value(name: str, **labels: str) -> float | None:
        return instruments.registry.get_sample_value(f"gpuwarden_{name}", labels)

    assert value("hint_scorer_available", path="/v1/score") is None
    fails: list[str] = []
    recorder.watch("/v1/score", lambda: bool(fails))
    recorder.watch_unsaved(lambda: float(len(fails)))
    assert value("hint_scorer_available", path="/v1/score") == 1
    assert value("hint_runs_unsaved") == 0
    fails.append("it fails")
    assert value("hint_scorer_available", path="/v1/score") == 0
    assert value("hint_runs_unsaved") == 1
