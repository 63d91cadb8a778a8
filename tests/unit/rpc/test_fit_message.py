from controller.messages import fit_message, unreadable_pod
from controller.placement.node_verdict import Promise
from controller.placement.requirements import Requirements, RequirementsInvalid
from controller.placement.texts import Finding, Guarantee, Limit
from controller.placement.verbs import FitReport, NodeFit
from controller.policy import Level
from gpuwarden.reasons import ReasonCode, Refusal

NEEDS = Requirements(guarded=True, min_level=Level.L1, count=2)


def test_an_unguarded_pod_has_no_verdicts() -> None:
    message = fit_message(Requirements(), None)
    assert (message.guarded, message.code, list(message.fits)) == (False, "", [])


def test_every_node_with_its_verdict() -> None:
    report = FitReport(
        (
            NodeFit("a", None, 7, Promise(Guarantee.EXACT)),
            NodeFit("b", Refusal(ReasonCode.GPU_BUSY, "too few"), 0, None),
            NodeFit("c", None, 1, Promise(Guarantee.NODE, Limit.NO_TAINT)),
        ),
        {ReasonCode.GPU_BUSY: 1},
        None,
    )
    message = fit_message(NEEDS, report)
    assert message.guarded
    assert list(message.requirements) == ["evidence level: L1 or higher", "number of GPUs: 2"]
    assert [(fit.node, fit.passes, fit.code, fit.score, fit.guarantee) for fit in message.fits] == [
        ("a", True, "", 7, "exact"),
        ("b", False, "GPU_BUSY", 0, ""),
        ("c", True, "", 1, "node"),
    ]
    assert [fit.detail for fit in message.fits] == [
        "",
        "too few",
        "no more is promised: the node lacks the taint gpuwarden.dev/managed:NoExecute",
    ]


def test_a_pod_whose_wishes_cannot_be_read() -> None:
    invalid = RequirementsInvalid((Finding("gpuwarden.dev/min-level", "L9", "L0 to L3"),))
    report = FitReport((), {}, Refusal(ReasonCode.REQ_INVALID, "the same in other words"))
    message = fit_message(invalid, report)
    assert (message.guarded, message.code) == (True, "REQ_INVALID")
    assert "gpuwarden.dev/min-level" in message.detail


def test_a_pod_that_is_refused_as_a_whole() -> None:
    report = FitReport((), {}, Refusal(ReasonCode.CLASS_UNKNOWN, "no class gold"))
    message = fit_message(NEEDS, report)
    assert (message.code, message.detail) == ("CLASS_UNKNOWN", "no class gold")


def test_bytes_that_are_no_pod() -> None:
    message = unreadable_pod("not a Pod: x")
    assert (message.guarded, message.code, message.detail) == (True, "REQ_INVALID", "not a Pod: x")
