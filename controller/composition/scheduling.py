"""What answers the scheduler: the verbs, the extender in front of them, hints on nodes.

Connects alone: where a pod may go is decided in controller/scheduling.
"""

from dataclasses import replace

from controller.admission.assembly import is_report_only
from controller.audit.durable_log import DurableLog
from controller.binding.assembly import BindingParts
from controller.composition.surroundings import enforced_by, wish_rules
from controller.conditions import Conditions
from controller.extender_journal import ExtenderJournal
from controller.kube.cluster import Cluster
from controller.kube.node_hints import NodeHints
from controller.scheduling.decision import NotedDecisions
from controller.scheduling.extender import Extender, ExtenderLimits, ExtenderServer
from controller.scheduling.scenes import Scenes
from controller.scheduling.serving_tls import TlsFiles
from controller.scheduling.verbs import ExtenderVerbs, NoGpuUse, Surroundings
from controller.settings import ControllerSettings, ExtenderTlsSettings, Scheduling
from gpuwarden.telemetry.metrics import Instruments


def extender_verbs(
    settings: ControllerSettings,
    conditions: Conditions,
    scenes: Scenes,
    cluster: Cluster | None,
    binding: BindingParts | None,
) -> ExtenderVerbs:
    """Filter and prioritize, with what the gate holds and lately refused."""
    around = Surroundings(
        scenes=scenes,
        not_ready=conditions.not_ready,
        use=NoGpuUse() if binding is None else binding.use,
        rules=wish_rules(settings),
        is_enforced=enforced_by(cluster),
        report=is_report_only(settings),
    )
    if binding is not None:
        denials, boottime_ns = binding.denials, conditions.clock.boottime_ns
        around = replace(around, denied=lambda uid: denials.nodes(uid, boottime_ns()))
    return ExtenderVerbs(around)


def extender_server(
    settings: ControllerSettings,
    verbs: ExtenderVerbs,
    audit: DurableLog,
    instruments: Instruments,
    cluster: Cluster | None,
) -> ExtenderServer:
    """The listener for the scheduler, which notes each decision."""
    journal = ExtenderJournal(instruments)
    tell = None if cluster is None else cluster.tell_placement
    limits = ExtenderLimits(body_bytes=settings.limits.filter_bytes)
    return ExtenderServer(
        Extender(
            verbs,
            sink=NotedDecisions(audit, journal.count_nodes, tell),
            metrics=journal,
            limits=limits,
        ),
        address=settings.listen.extender,
        tls=_tls_files(settings.extender.tls),
        metrics=journal,
        limits=limits,
    )


def node_hints(
    settings: ControllerSettings,
    cluster: Cluster | None,
    verbs: ExtenderVerbs,
    conditions: Conditions,
) -> NodeHints | None:
    """None unless pods reach their nodes by affinity."""
    if cluster is None or settings.scheduling is not Scheduling.AFFINITY:
        return None
    return cluster.hints(verbs.passing, conditions.not_ready)


def _tls_files(tls: ExtenderTlsSettings) -> TlsFiles | None:
    if tls.cert is None or tls.key is None:
        return None
    return TlsFiles(tls.cert, tls.key, tls.client_ca)
