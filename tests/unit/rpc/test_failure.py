import grpc
import pytest

from controller.rpc.calls import status_of
from gpuwarden.reasons import ReasonCode


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ReasonCode.LIMIT_RATE, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ReasonCode.TLS_RESUMED, grpc.StatusCode.UNAUTHENTICATED),
        (ReasonCode.SVID_EXPIRED, grpc.StatusCode.UNAUTHENTICATED),
        (ReasonCode.NODE_NAME_INVALID, grpc.StatusCode.PERMISSION_DENIED),
        (ReasonCode.ROLE_DENIED, grpc.StatusCode.PERMISSION_DENIED),
        (ReasonCode.NODE_DENIED, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.DOOR_ENV, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.AUDIT_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_reason_has_a_fitting_status(code: ReasonCode, status: grpc.StatusCode) -> None:
    assert status_of(code) is status


def test_no_refusal_looks_like_success_or_a_crash() -> None:
    statuses = {status_of(code) for code in ReasonCode if code is not ReasonCode.ACCEPTED}
    assert not statuses & {
        grpc.StatusCode.OK,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
