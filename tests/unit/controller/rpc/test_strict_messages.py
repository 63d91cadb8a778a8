"""Requests are bounded as they are on the wire, and hold nothing that nobody knows."""

import pytest
from google.protobuf.message import DecodeError as WireError
from grpc_health.v1 import health_pb2

from controller.rpc.strict_messages import Deserialize, MessageTooLargeError, strictly
from gpuwarden.wire.v1 import attestation_pb2 as pb

ATTEST = "/gpuwarden.wire.v1.AttestationService/Attest"
REQUEST = pb.AttestRequest(
    evidence=pb.Evidence(nonce=b"n" * 32, envelope=pb.Envelope(payload=b"p", payload_type="t"))
)


def field(number: int, data: bytes) -> bytes:
    """A field of wire type 2, up to 127 bytes long."""
    return bytes([number << 3 | 2, len(data)]) + data


def attest(max_bytes: int = 4096) -> Deserialize:
    return strictly(pb.AttestRequest.FromString, ATTEST, max_bytes)


def test_a_known_message_is_decoded() -> None:
    assert attest()(REQUEST.SerializeToString()) == REQUEST


@pytest.mark.parametrize(
    "data",
    [
        REQUEST.SerializeToString() + field(15, b"more"),
        field(15, b"more"),
        field(2, REQUEST.evidence.SerializeToString() + field(9, b"more")),
        field(2, field(4, REQUEST.evidence.envelope.SerializeToString() + field(9, b""))),
    ],
    ids=["beside", "alone", "in a message", "deeper"],
)
def test_unknown_fields_are_refused_at_any_depth(data: bytes) -> None:
    pb.AttestRequest.FromString(data)
    with pytest.raises(WireError, match="fields that are not known"):
        attest()(data)


def test_the_whole_message_is_bounded_before_it_is_decoded() -> None:
    data = REQUEST.SerializeToString()
    assert attest(len(data))(data) == REQUEST
    with pytest.raises(MessageTooLargeError, match=f"has {len(data)} bytes, at most"):
        attest(len(data) - 1)(data)
    with pytest.raises(MessageTooLargeError):
        attest(3)(b"\xff" * 4)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(WireError):
        attest()(b"\xff\xff\xff")


def test_messages_that_anybody_writes_may_have_unknown_fields() -> None:
    request = health_pb2.HealthCheckRequest(service="x")
    decode = strictly(request.FromString, "/grpc.health.v1.Health/Check", 100)
    assert decode(request.SerializeToString() + field(15, b"more")) == request
    with pytest.raises(MessageTooLargeError):
        decode(b"x" * 101)
