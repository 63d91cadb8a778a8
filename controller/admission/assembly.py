"""Puts the webhooks of a controller together from its settings. Starts nothing.

Other parts of the controller hand in handlers for paths of their own, such as the binding
gate's; all of them are served by the one listener.
"""

from collections.abc import Mapping
from typing import Final

from controller.admission.pods import PodPorts, pod_handlers
from controller.admission.review import AdmissionHandler
from controller.admission.rules import AdmissionRules
from controller.admission.webhook import AdmissionLimits, AdmissionMetrics, AdmissionWebhooks
from controller.http_server import HttpServer
from controller.scheduling.serving_tls import TlsFiles
from controller.scheduling.wish_keys import WishRules
from controller.settings import ControllerSettings, Enforcement, Scheduling

OPEN_TO_THE_NETWORK: Final = (
    "admission.tls.clientCa is not set: whoever reaches listen.admission can call the webhooks,"
    " so only the network keeps others from it"
)


def admission_rules(settings: ControllerSettings, wishes: WishRules) -> AdmissionRules:
    """The rules that mutation, validation and gate share."""
    return AdmissionRules(
        wishes,
        settings.scheduler_name,
        by_affinity=settings.scheduling is Scheduling.AFFINITY,
        runtime_classes=settings.admission.runtime_classes,
        host_paths=frozenset(settings.admission.host_paths),
    )


def is_report_only(settings: ControllerSettings) -> bool:
    """Whether decisions are shown and not carried out."""
    return settings.enforcement is Enforcement.REPORT


def admission_server(
    settings: ControllerSettings,
    ports: PodPorts,
    *,
    metrics: AdmissionMetrics,
    others: Mapping[str, AdmissionHandler],
) -> HttpServer | None:
    """The listener of all webhooks, or None without `admission.tls`.

    `others`: further handlers by path. Raises TlsFilesError for files that cannot serve.
    """
    tls = settings.admission.tls
    if tls.cert is None or tls.key is None:
        return None
    limits = AdmissionLimits()
    webhooks = AdmissionWebhooks(
        {**pod_handlers(ports), **others},
        metrics=metrics,
        limits=limits,
        report=is_report_only(settings),
    )
    return HttpServer(
        webhooks.application(),
        address=settings.listen.admission,
        tls=TlsFiles(tls.cert, tls.key, tls.client_ca),
        limits=limits,
        certificate_changed=metrics.certificate_changed,
    )
