"""Verdicts as a tenant sees them: which nodes pass, and nothing that counts others' pods. Pure.

A verdict's text can say how many GPUs of a node are free, or that a GPU is another pod's. Texts
about the pod itself stay; each other one becomes the cause that the code always has.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from controller.explain.fit import PodFit
from controller.placement.explanation import NodeFit
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Refusal, Stage

_OWN: Final = frozenset(
    {
        ReasonCode.REQ_INVALID,
        ReasonCode.CLASS_UNKNOWN,
        ReasonCode.QUOTA_EXCEEDED,
        *(code for code, text in EXPLANATIONS.items() if text.stage is Stage.BYPASS),
    }
)
"""What the pod itself, or its own namespace, is the cause of."""


def for_tenant(refusal: Refusal) -> Refusal:
    """The same code, with a text that says nothing about other namespaces."""
    if refusal.code in _OWN:
        return refusal
    return Refusal(refusal.code, EXPLANATIONS[refusal.code].cause)


def fits_for_tenant(pods: Iterable[PodFit]) -> tuple[PodFit, ...]:
    """Without the texts, and without scores: they follow from how full a node is."""
    return tuple(_of_pod(one) for one in pods)


def _of_pod(one: PodFit) -> PodFit:
    report = one.report
    if report is not None:
        against = report.pod_refusal
        report = replace(
            report,
            fits=tuple(_of_node(x) for x in report.fits),
            pod_refusal=None if against is None else for_tenant(against),
        )
    return replace(one, refusals=tuple(for_tenant(x) for x in one.refusals), report=report)


def _of_node(one: NodeFit) -> NodeFit:
    refusal = None if one.refusal is None else for_tenant(one.refusal)
    return replace(one, refusal=refusal, score=0)
