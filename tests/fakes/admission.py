"""What the webhooks ask and tell, in memory."""

from dataclasses import dataclass, field
from typing import Any

from controller.admission.pod_webhooks import AdmissionDecision, PodWebhooks
from controller.admission.rules import AdmissionRules
from tests.fakes.listener import SeenConnections


@dataclass
class AdmissionWorld:
    """Namespaces that are enforced, decisions that were told."""

    enforced: set[str] = field(default_factory=set)
    decisions: list[AdmissionDecision] = field(default_factory=list)

    def webhooks(self, **options: Any) -> PodWebhooks:
        return PodWebhooks(
            AdmissionRules(),
            is_enforced=self.enforced.__contains__,
            note=self.decisions.append,
            **options,
        )


class AdmissionMeasurements(SeenConnections):
    """Remembers what the webhooks and their listener report."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[str, str]] = []
        self.failures: list[tuple[str, str]] = []

    def answered(self, path: str, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.answers.append((path, result))

    def failed(self, path: str, error: Exception | None) -> None:
        self.failures.append((path, "overdue" if error is None else type(error).__name__))
