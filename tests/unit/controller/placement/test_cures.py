from controller.placement.cures import CURES
from controller.placement.refusals import REFUSALS
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Stage


def test_every_code_that_a_waiting_pod_can_get_has_a_cure() -> None:
    by_stage = {x for x in ReasonCode if EXPLANATIONS[x].stage in _AT_PLACEMENT}
    at_creation = {ReasonCode.RESERVATION_PENDING}
    assert CURES.keys() >= (by_stage | REFUSALS.keys()) - at_creation
    shared = {"AUDIT_UNAVAILABLE", "RESERVATION_CONFLICT", "RESERVATION_EXPIRED"}
    assert {x.value for x in CURES.keys() - by_stage - REFUSALS.keys()} <= shared


_AT_PLACEMENT = {Stage.PLACEMENT, Stage.BINDING_WEBHOOK, Stage.BYPASS}
