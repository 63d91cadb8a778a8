"""What people are told in Events about pods in report-only mode. Pure.

About the object that made the pod, else about the pod; at its creation that has no UID. A refusal
that is carried out needs no Event of ours: whoever created the pod gets it as an error, and the
scheduler says why it does not bind one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from controller.admission.decision import AdmissionDecision
from controller.binding.records import BindDecision
from controller.kube.event_series import Notice, Regarding, Severity
from controller.scheduling.decision import FilterDecision
from controller.scheduling.filter import Totals
from gpuwarden.reasons import ReasonCode, Refusal

REASON: Final = "PodWouldBeDenied"
BINDING_REASON: Final = "BindingWouldBeDenied"
PLACEMENT_REASON: Final = "PodWouldNotBePlaced"


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
    return _denied(about, REASON, "Admit", decision.refusals)


def binding_notice(decision: BindDecision) -> Notice | None:
    """The same about a Binding."""
    if not (decision.reported and decision.refusals):
        return None
    about = Regarding("Pod", decision.pod, decision.uid, decision.namespace)
    return _denied(about, BINDING_REASON, "Bind", decision.refusals)


def placement_notice(decision: FilterDecision, totals: Totals) -> Notice | None:
    """That no node would pass, with the commonest reason first; None where one would."""
    if totals.passed or not (decision.reported and totals.rejected):
        return None
    about = Regarding("Pod", decision.pod, decision.uid, decision.namespace)
    codes = _by_count(totals.rejected)
    counts = ", ".join(f"{totals.rejected[code]} {code.value}" for code in codes)
    note = f"no node would be offered: {counts}"
    return Notice(about, PLACEMENT_REASON, "Filter", Severity.WARNING, codes[0].value, note)


def _denied(about: Regarding, reason: str, action: str, refusals: Sequence[Refusal]) -> Notice:
    first, *more = refusals
    rest = f" (and {len(more)} more)" if more else ""
    note = f"would be denied: {first.detail}{rest}"
    return Notice(about, reason, action, Severity.WARNING, first.code.value, note)


def _by_count(counts: Mapping[ReasonCode, int]) -> list[ReasonCode]:
    return sorted(counts, key=lambda code: (-counts[code], code.value))
