"""Step 10: whether the peer speaks our protocol and is the process that answers for the node.

Hello is not signed; TLS says whose it is and the challenge binds its digest. A process
that was superseded is not refused for saying hello: only its answer to a challenge
issued afterwards proves that it lives beside its successor.
"""

import re
from typing import Final

import msgspec

from controller.fleet.enrollment import EnrollmentRecord
from controller.verifier.context import StreamState
from gpuwarden.evidence.errors import DecodeError
from gpuwarden.evidence.model import PROTOCOL, Hello
from gpuwarden.evidence.strict_json import decode, quote
from gpuwarden.reasons import ReasonCode, Refusal

MAX_HELLO_BYTES: Final = 64 * 1024
_INSTANCE: Final = re.compile(r"[0-9a-f]{32}")
_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,128}")


class _Protocol(msgspec.Struct, frozen=True):
    """The one field that every version of Hello has."""

    protocol: int


def read_hello(data: bytes, node: str) -> Hello | Refusal:
    """The document in `data`, or why it is none; later protocols may have other fields."""
    if len(data) > MAX_HELLO_BYTES:
        return Refusal(ReasonCode.MSG_TOO_LARGE, f"Hello has {len(data)} bytes")
    try:
        protocol = decode(data, _Protocol, max_bytes=MAX_HELLO_BYTES).protocol
        if protocol != PROTOCOL:
            return Refusal(
                ReasonCode.PROTOCOL_UNSUPPORTED, f"protocol {protocol}, {PROTOCOL} is expected"
            )
        hello = decode(data, Hello, max_bytes=MAX_HELLO_BYTES)
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"Hello: {error}")
    return _malformed(hello, node) or hello


def superseded(record: EnrollmentRecord | None, instance: str) -> bool:
    """Whether another process has taken over from `instance`."""
    return record is not None and instance in record.superseded


def superseded_meanwhile(stream: StreamState, record: EnrollmentRecord | None) -> Refusal | None:
    """Another process took over while this stream was open: it renews nothing and ends."""
    if not stream.superseded_at_open and superseded(record, stream.hello.instance_id):
        return Refusal(ReasonCode.STREAM_SUPERSEDED, "a newer agent process answers for the node")
    return None


def duplicate(stream: StreamState, record: EnrollmentRecord | None) -> Refusal | None:
    """A process that was superseded before has answered a new challenge: two hold one identity."""
    if stream.superseded_at_open and superseded(record, stream.hello.instance_id):
        return Refusal(
            ReasonCode.DUPLICATE_AGENT, "a superseded agent process answered a new challenge"
        )
    return None


def _malformed(hello: Hello, node: str) -> Refusal | None:
    if not _INSTANCE.fullmatch(hello.instance_id):
        return Refusal(
            ReasonCode.MSG_MALFORMED, "Hello: instanceId is not 32 lower-case hex digits"
        )
    for name, text in (("bootId", hello.boot_id), ("agentVersion", hello.agent_version)):
        if not _PLAIN.fullmatch(text):
            return Refusal(
                ReasonCode.MSG_MALFORMED,
                f"Hello: {name} is not 1 to 128 printable ASCII characters",
            )
    if hello.node_name != node:
        return Refusal(
            ReasonCode.NODE_NAME_MISMATCH,
            f"Hello is from {quote(hello.node_name)}, the certificate is {node}'s",
        )
    return None
