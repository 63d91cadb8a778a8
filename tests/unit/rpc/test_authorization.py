"""The table covers exactly what is registered, and the documentation shows all of it."""

import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from controller.access import (
    ALLOWED_CALLERS,
    KIND_OF_ROLE,
    CallerKind,
    authorize,
)
from gpuwarden.identity.spiffe_id import Role
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import (
    attestation_pb2,
    fleet_pb2,
    operator_pb2,
    placement_pb2,
    support_pb2,
)
from tests.docs_pages.authorization import authorization_page

_FILES = (
    attestation_pb2.DESCRIPTOR,
    fleet_pb2.DESCRIPTOR,
    operator_pb2.DESCRIPTOR,
    placement_pb2.DESCRIPTOR,
    support_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)

AGENT = CallerKind.AGENT
INSPECTOR = CallerKind.INSPECTOR
_READERS = {INSPECTOR, CallerKind.OPERATOR, CallerKind.LOCAL}
_OPERATORS = {CallerKind.OPERATOR, CallerKind.LOCAL}


_EXPECTED = {
    "gpuwarden.wire.v1.AttestationService/Attest": {AGENT},
    "gpuwarden.wire.v1.FleetService/ListNodes": _READERS,
    "gpuwarden.wire.v1.FleetService/GetNode": _READERS,
    "gpuwarden.wire.v1.FleetService/WatchNodes": _READERS,
    "gpuwarden.wire.v1.FleetService/ListGpus": _READERS,
    "gpuwarden.wire.v1.FleetService/ListClasses": _READERS,
    "gpuwarden.wire.v1.FleetService/GetClass": _READERS,
    "gpuwarden.wire.v1.FleetService/ExplainNode": _READERS,
    "gpuwarden.wire.v1.FleetService/FitPod": _READERS,
    "gpuwarden.wire.v1.OperatorService/AcceptNode": _OPERATORS,
    "gpuwarden.wire.v1.OperatorService/QuarantineNode": _OPERATORS,
    "gpuwarden.wire.v1.OperatorService/ReleaseNode": _OPERATORS,
    "gpuwarden.wire.v1.OperatorService/ReleaseGpu": _OPERATORS,
    "gpuwarden.wire.v1.PlacementService/ListReservations": _READERS,
    "gpuwarden.wire.v1.PlacementService/ExplainPod": _READERS,
    "gpuwarden.wire.v1.SupportService/Collect": _READERS,
    "grpc.health.v1.Health/Check": {AGENT, *_READERS},
    "grpc.health.v1.Health/List": {AGENT, *_READERS},
    "grpc.health.v1.Health/Watch": {AGENT, *_READERS},
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {INSPECTOR},
}


def _methods(file: FileDescriptor) -> list[str]:
    return [
        f"{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    ]


_ALL_METHODS = [method for file in _FILES for method in _methods(file)]


def test_every_method_of_every_service_has_an_expectation() -> None:
    assert sorted(_ALL_METHODS) == sorted(_EXPECTED)


def test_the_table_names_no_method_that_does_not_exist() -> None:
    assert {method.removeprefix("/") for method in ALLOWED_CALLERS} <= set(_ALL_METHODS)


@pytest.mark.parametrize("caller", list(CallerKind))
@pytest.mark.parametrize("method", _ALL_METHODS)
def test_matrix(method: str, caller: CallerKind) -> None:
    refusal = authorize(f"/{method}", caller)
    if caller in _EXPECTED[method]:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.code is ReasonCode.ROLE_DENIED
        assert caller in refusal.detail


@pytest.mark.parametrize("caller", list(CallerKind))
@pytest.mark.parametrize(
    "method",
    ["", "/", "/gpuwarden.wire.v1.FleetService/DropAll", "gpuwarden.wire.v1.FleetService/GetNode"],
)
def test_what_is_not_listed_is_denied_to_everybody(method: str, caller: CallerKind) -> None:
    refusal = authorize(method, caller)
    assert refusal is not None
    assert refusal.code is ReasonCode.ROLE_DENIED


def test_every_role_has_a_caller_kind() -> None:
    assert set(KIND_OF_ROLE) == set(Role)


def test_the_documentation_has_every_method_and_every_caller() -> None:
    document = authorization_page()
    for method in _ALL_METHODS:
        assert f"| `/{method}` |" in document
    for kind in CallerKind:
        assert f" {kind} |" in document
