"""What people are told in Events about pods in report-only mode. Pure.

About the object that made the pod, else about the pod by its name: at its creation it has no
UID. A refusal that is carried out needs no Event: whoever created the pod gets it as an error.
"""

from typing import Final

from controller.admission.decision import AdmissionDecision
from controller.kube.event_series import Notice, Regarding, Severity

REASON: Final = "PodWouldBeDenied"
_ACTION: Final = "Admit"


def admission_notice(decision: AdmissionDecision) -> Notice | None:
    """`would be denied: …`, or None where the pod is let in anyway."""
    if not (decision.reported and decision.refusals):
        return None
    owner = decision.owner
    if owner is None:
        about = Regarding("Pod", decision.pod, "", decision.namespace)
    else:
        about = Regarding(
            owner.kind, owner.name, owner.uid, decision.namespace, owner.api_version or "v1"
        )
    first, *more = decision.refusals
    rest = f" (and {len(more)} more)" if more else ""
    note = f"would be denied: {first.detail}{rest}"
    return Notice(about, REASON, _ACTION, Severity.WARNING, first.code.value, note)
