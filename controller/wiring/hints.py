"""Makes the webhook for hints, and what reports runs, where a scorer is configured.

Starts nothing.
"""

from dataclasses import dataclass

from controller.admission.hints.patch import Bucket
from controller.admission.hints.webhook import HintRules, HintSources, HintWebhook
from controller.fleet.view import NodeView
from controller.kube.pods.pod_runs import PodRuns
from controller.operations.readiness import Conditions
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import Scenes
from controller.recorders.hints import HintRecorder
from controller.runs.reporter import RunReporter, RunSources
from controller.settings import ControllerSettings
from controller.web.scorer import OBSERVE_PATH, SCORE_PATH, HttpScorer
from controller.wiring.binding import is_report_only
from controller.wiring.cluster import Cluster
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry.metrics import Instruments


@dataclass(frozen=True, slots=True)
class HintParts:
    """The webhook, what reports runs, and the way to the scorer, which is closed at the end."""

    webhook: HintWebhook
    runs: RunReporter | None
    """None where the scorer is not told."""
    scorer: HttpScorer


def hint_parts(
    settings: ControllerSettings,
    cluster: Cluster | None,
    scenes: Scenes,
    conditions: Conditions,
    instruments: Instruments,
    *,
    requirements: RequirementRules,
) -> HintParts | None:
    """None without a scorer, or without a cluster."""
    hints = settings.hints
    if hints.scheduler_url is None or cluster is None or cluster.hinted is None:
        return None
    clock, recorder = conditions.clock, HintRecorder(instruments)
    scorer = HttpScorer(
        hints.scheduler_url, hints.timeout.seconds, ca=hints.ca, token=hints.auth_token
    )
    runs = _run_reporter(cluster, scenes, scorer, recorder, clock) if hints.observe else None
    sources = HintSources(
        ask=scorer.ask,
        scene=scenes.now,
        not_ready=conditions.not_ready,
        is_enforced=cluster.namespaces.is_enforced,
        colocated=cluster.hinted.job_types.of,
        priority_classes=cluster.hinted.priority_classes.all,
        note=recorder.note,
        boottime_ns=clock.boottime_ns,
        epoch_s=lambda: clock.wall_ns() // NS_PER_S,
    )
    rules = HintRules(
        requirements,
        tuple(Bucket(x.least, x.priority_class) for x in hints.priority_buckets),
        hints.class_labels,
    )
    webhook = HintWebhook(sources, rules, report=is_report_only(settings))
    recorder.watch(SCORE_PATH, lambda: webhook.is_open)
    return HintParts(webhook, runs, scorer)


def _run_reporter(
    cluster: Cluster, scenes: Scenes, scorer: HttpScorer, recorder: HintRecorder, clock: Clock
) -> RunReporter:
    def gpus(pod_uid: str) -> tuple[str, ...]:
        parts = cluster.reservations.snapshot().parts_of(pod_uid)
        return tuple(entry.record.gpu for entry, _ in parts)

    def node(name: str) -> NodeView | None:
        return scenes.now().fleet.nodes.get(name)

    reporter = RunReporter(
        RunSources(
            tell=scorer.tell,
            node=node,
            gpus=gpus,
            leads=cluster.leadership.leads,
            note=recorder.note_run,
            boottime_ns=clock.boottime_ns,
        )
    )
    recorder.watch(OBSERVE_PATH, lambda: reporter.is_open)
    recorder.watch_unsaved(lambda: float(reporter.unsaved))
    cluster.follow_pods(PodRuns(reporter.ended, clock.wall_ns).observe)
    return reporter
