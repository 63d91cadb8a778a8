"""A tenant sees which nodes pass, and no text that counts the pods of others."""

import pytest

from controller.explain.fit import PodFit
from controller.explain.tenant_view import fits_for_tenant, for_tenant
from controller.placement.explanation import FitReport, NodeFit
from controller.placement.node_verdict import Promise
from controller.placement.requirements import Guarantee
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Refusal, Stage
from tests.builders.pods import requirements

COUNTS = "needs 2 GPUs, node has 8, 1 free, GPU-a is another pod's"


@pytest.mark.parametrize("code", list(ReasonCode))
def test_only_texts_about_the_pod_itself_stay(code: ReasonCode) -> None:
    own = {ReasonCode.REQ_INVALID, ReasonCode.CLASS_UNKNOWN, ReasonCode.QUOTA_EXCEEDED}
    found = for_tenant(Refusal(code, COUNTS))
    assert found.code is code
    is_own = code in own or EXPLANATIONS[code].stage is Stage.BYPASS
    assert found.detail == (COUNTS if is_own else EXPLANATIONS[code].cause)


def test_verdicts_have_no_score_and_no_numbers() -> None:
    promise = Promise(Guarantee.EXACT)
    busy = Refusal(ReasonCode.GPU_BUSY, COUNTS)
    report = FitReport(
        (NodeFit("a", None, 7, promise), NodeFit("b", busy, 0, None)),
        {ReasonCode.GPU_BUSY: 1},
        Refusal(ReasonCode.GPU_LOST, COUNTS),
    )
    one = PodFit("p", requirements(), (busy,), ("a warning",), report)
    (shown,) = fits_for_tenant([one])
    assert COUNTS not in str(shown)
    assert (shown.name, shown.needs, shown.warnings) == (one.name, one.needs, one.warnings)
    assert [x.code for x in shown.refusals] == [ReasonCode.GPU_BUSY]
    assert shown.report is not None
    assert shown.report.fits[0] == NodeFit("a", None, 0, promise)
    assert [(x.node, x.refusal and x.refusal.code) for x in shown.report.fits] == [
        ("a", None),
        ("b", ReasonCode.GPU_BUSY),
    ]
    assert shown.report.pod_refusal is not None
    assert shown.report.pod_refusal.code is ReasonCode.GPU_LOST


def test_a_pod_that_no_node_is_asked_about() -> None:
    one = PodFit("", requirements(), (), (), None)
    assert fits_for_tenant([one]) == (one,)
    whole = PodFit("", requirements(), (), (), FitReport((), {}, None))
    assert fits_for_tenant([whole]) == (whole,)
