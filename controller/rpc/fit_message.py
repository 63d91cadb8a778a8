"""What /filter and /prioritize would say about a pod, as FleetService tells it. Pure."""

from controller.scheduling.description import describe
from controller.scheduling.fit import FitReport, NodeFit
from controller.scheduling.promise import Promise
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb


def fit_message(
    needs: Requirements | RequirementsInvalid, report: FitReport | None
) -> pb.FitPodResponse:
    """All verdicts; `report` is None for a pod that asks for nothing of ours."""
    if isinstance(needs, RequirementsInvalid):
        message = pb.FitPodResponse(
            guarded=True, code=ReasonCode.REQ_INVALID, detail=needs.detail()
        )
    else:
        message = pb.FitPodResponse(guarded=needs.guarded, requirements=describe(needs))
    if report is None:
        return message
    if report.pod_refusal is not None and not message.code:
        message.code, message.detail = report.pod_refusal.code, report.pod_refusal.detail
    message.fits.extend(_fit(fit) for fit in report.fits)
    return message


def unreadable_pod(error: str) -> pb.FitPodResponse:
    """The bytes are no pod."""
    return pb.FitPodResponse(guarded=True, code=ReasonCode.REQ_INVALID, detail=error)


def _fit(fit: NodeFit) -> pb.Fit:
    if fit.refusal is not None:
        return pb.Fit(node=fit.node, code=fit.refusal.code, detail=fit.refusal.detail)
    message = pb.Fit(node=fit.node, passes=True, score=fit.score)
    if fit.promise is not None:
        message.guarantee = fit.promise.guarantee.value
        message.detail = limit_text(fit.promise)
    return message


def limit_text(promise: Promise) -> str:
    """Why no more is promised; empty where there is nothing to say."""
    return "" if promise.limit is None else f"no more is promised: {promise.limit}"
