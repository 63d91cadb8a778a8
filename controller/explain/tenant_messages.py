"""What a tenant is shown of a pod and of reservations: nothing about other namespaces. Pure.

Each answer is written from the fields that are listed here, so that a field that is added
later is not shown by oversight. Must not decide whose pods a tenant may ask about.
"""

from typing import Final

from controller.explain.stages import ITS_GPU, StageName
from controller.explain.tenant_view import for_tenant
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import placement_pb2 as pb

_ELSEWHERE: Final = "what else is on these GPUs is shown to inspectors"
_OWN_FINDINGS: Final = frozenset(
    {StageName.REQUIRED, StageName.RESERVED, StageName.BOUND, StageName.KUBELET}
)
"""Stages whose findings are about the pod and its own reservation."""


def shown_trace(found: pb.ExplainPodResponse) -> pb.ExplainPodResponse:
    """The allocation trace without other pods: neither their names nor how many there are."""
    detail = ""
    if found.code:
        detail = for_tenant(Refusal(ReasonCode(found.code), found.detail)).detail
    return pb.ExplainPodResponse(
        namespace=found.namespace,
        name=found.name,
        uid=found.uid,
        phase=found.phase,
        managed=found.managed,
        stages=map(_stage, found.stages),
        wrong=found.wrong,
        code=found.code,
        detail=detail,
        passing=found.passing,
        passing_nodes=found.passing_nodes,
        rejections=[
            pb.Rejection(code=x.code, count=x.count, nodes=x.nodes) for x in found.rejections
        ],
        guarantee_given=found.guarantee_given,
        guarantee=found.guarantee,
        guarantee_limit=found.guarantee_limit,
        records=found.records,
        records_since=found.records_since,
        earlier=map(_reservation, found.earlier),
        report_only=found.report_only,
    )


def _stage(one: pb.Stage) -> pb.Stage:
    findings = list(one.findings)
    if one.name not in _OWN_FINDINGS and findings:
        findings = [*(x for x in findings if x.startswith(ITS_GPU)), _ELSEWHERE]
    return pb.Stage(
        name=one.name,
        state=one.state,
        at=one.at,
        source=one.source,
        evidence_digest=one.evidence_digest,
        gpus=one.gpus,
        findings=findings,
    )


def shown_reservations(found: pb.ListReservationsResponse) -> pb.ListReservationsResponse:
    """Reservations of the tenant's namespace."""
    return pb.ListReservationsResponse(
        reservations=map(_reservation, found.reservations), next_after=found.next_after
    )


def _reservation(one: pb.Reservation) -> pb.Reservation:
    """Holders are counted within a share group alone, which is of one namespace."""
    counts = bool(one.share_group)
    return pb.Reservation(
        id=one.id,
        namespace=one.namespace,
        pod=one.pod,
        uid=one.uid,
        node=one.node,
        gpus=[
            pb.ReservedGpu(uuid=x.uuid, state=x.state, holders=x.holders if counts else 1)
            for x in one.gpus
        ],
        state=one.state,
        origin=one.origin,
        made_at=one.made_at,
        age_s=one.age_s,
        share_group=one.share_group,
        restored=one.restored,
    )
