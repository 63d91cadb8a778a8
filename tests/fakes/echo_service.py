"""A gRPC service that sends back what it gets, one call at a time or over a stream."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc
import grpc.aio

from gpuwarden.identity.peer import PeerFacts, peer_facts
from gpuwarden.wire.transport import Options, server_options

CALL = "/test.Echo/Call"
STREAM = "/test.Echo/Stream"


class EchoServer:
    """Serves on loopback under `credentials`; `seen` has the TLS facts of each call."""

    def __init__(self, credentials: grpc.ServerCredentials, options: Options | None = None) -> None:
        self.seen: list[PeerFacts] = []
        self._server = grpc.aio.server(options=options or server_options())
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Call": grpc.unary_unary_rpc_method_handler(self._call),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Echo", handlers),)
        )
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def _call(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.seen.append(peer_facts(context.auth_context()))
        return request

    async def _stream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        self.seen.append(peer_facts(context.auth_context()))
        async for request in requests:
            yield request


def call(channel: grpc.aio.Channel) -> "Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]]":
    """The unary method on `channel`."""
    return channel.unary_unary(CALL)


def stream(channel: grpc.aio.Channel) -> "grpc.aio.StreamStreamCall[bytes, bytes]":
    """A new stream on `channel`."""
    return channel.stream_stream(STREAM)()
