"""A TCP relay on loopback that can freeze: nothing passes, and only a client's end is noticed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_BYTES = 65536


class Relay:
    """Between its clients and one server."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.open = 0
        """Connections that their client has not ended."""
        self.is_frozen = False
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        async with listener:
            yield self
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection("127.0.0.1", self._target)
        answers = asyncio.create_task(self._pass_on(there, writer))
        try:
            await self._pass_on(reader, away)
            self.open -= 1
        finally:
            answers.cancel()
            for end in (away, writer):
                end.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while read := await source.read(_BYTES):
                if not self.is_frozen:
                    sink.write(read)
