"""SupportService: sends the parts of a support bundle to whoever was authorized to read.

Must not know what is in a part.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from grpc import aio

from controller.rpc.failure import abort_with
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.support.part import Part
from gpuwarden.wire.v1 import support_pb2 as pb
from gpuwarden.wire.v1 import support_pb2_grpc as pb_grpc

AT_ONCE: Final = 4
"""Bundles that are made at a time, of all callers."""
CHUNK_BYTES: Final = 1 << 20

Context = aio.ServicerContext[Any, Any]


class SupportService(pb_grpc.SupportServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, parts: Callable[[], AsyncIterator[Part]]) -> None:
        self._parts = parts
        self._open = 0

    async def Collect(  # noqa: N802 - the method's name in the protocol
        self, request: pb.CollectRequest, context: Context
    ) -> AsyncIterator[pb.CollectResponse]:
        """All parts, in chunks."""
        del request
        if self._open >= AT_ONCE:
            text = f"{AT_ONCE} support bundles are being made"
            await abort_with(context, Refusal(ReasonCode.LIMIT_STREAMS, text))
        self._open += 1
        try:
            async for part in self._parts():
                for message in _messages(part):
                    yield message
        finally:
            self._open -= 1


def _messages(part: Part) -> Iterator[pb.CollectResponse]:
    content = part.content or b""
    yield pb.CollectResponse(
        part=part.name,
        content=content[:CHUNK_BYTES],
        missing=part.missing,
        withheld=part.withheld,
        left_out=part.left_out,
    )
    for start in range(CHUNK_BYTES, len(content), CHUNK_BYTES):
        yield pb.CollectResponse(part=part.name, content=content[start : start + CHUNK_BYTES])
