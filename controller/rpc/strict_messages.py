"""Decodes requests strictly: bounded as they are on the wire, and without fields that nobody knows.

Protobuf keeps unknown fields, of any size, and limits on single fields do not see them. Agents and
the command line are the only writers of gpuwarden's own messages, so what they do not know is
nothing that they wrote.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError as WireError
from google.protobuf.message import Message

Deserialize = Callable[[bytes], Any]

ENVELOPE_BYTES: Final = 64 * 1024
"""What a message of the stream may hold beside its payload: ids, signature, media type."""
REQUEST_BYTES: Final = 1024 * 1024 + ENVELOPE_BYTES
"""The one request of other calls; the largest carries a pod of 1 MiB."""
_OWN: Final = "/gpuwarden."


class MessageTooLargeError(WireError):
    """More bytes than a request of this method may have."""


def strictly(deserialize: Deserialize, method: str, max_bytes: int) -> Deserialize:
    """As `deserialize` of this method, within its bounds; raises WireError, MessageTooLargeError.

    Health and reflection are written by anybody: their unknown fields are dropped.
    """

    def decode(data: bytes) -> Any:  # noqa: ANN401 -- any message
        if len(data) > max_bytes:
            text = f"the message has {len(data)} bytes, at most {max_bytes} are allowed"
            raise MessageTooLargeError(text)
        message = deserialize(data)
        if isinstance(message, Message) and _drop_unknown(message) and method.startswith(_OWN):
            raise WireError("the message has fields that are not known")
        return message

    return decode


def _drop_unknown(message: Message) -> bool:
    """Drop unknown fields at any depth; whether there were any."""
    before = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() != before
