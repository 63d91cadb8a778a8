"""Makes the webhook for hints from the settings, where a scorer is configured. Starts nothing."""

from dataclasses import dataclass

from controller.admission.hint_patch import Bucket
from controller.admission.hint_webhook import HintRules, HintSources, HintWebhook
from controller.operations.readiness import Conditions
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import Scenes
from controller.recorders.hints import HintRecorder
from controller.settings import ControllerSettings
from controller.web.scorer import HttpScorer
from controller.wiring.binding import is_report_only
from controller.wiring.cluster import Cluster
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry.metrics import Instruments


@dataclass(frozen=True, slots=True)
class HintParts:
    """The webhook, and the way to the scorer, which is closed at the end."""

    webhook: HintWebhook
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
    scorer = HttpScorer(hints.scheduler_url, hints.timeout.seconds)
    sources = HintSources(
        ask=scorer.ask,
        scene=scenes.now,
        not_ready=conditions.not_ready,
        is_enforced=cluster.namespaces.is_enforced,
        colocated=cluster.hinted.job_types.of,
        priority_classes=cluster.hinted.priority_classes.all,
        note=HintRecorder(instruments).note,
        boottime_ns=conditions.clock.boottime_ns,
        epoch_s=lambda: conditions.clock.wall_ns() // NS_PER_S,
    )
    rules = HintRules(
        requirements,
        tuple(Bucket(x.least, x.priority_class) for x in hints.priority_buckets),
        hints.class_labels,
    )
    return HintParts(HintWebhook(sources, rules, report=is_report_only(settings)), scorer)
