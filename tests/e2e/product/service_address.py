"""One address for several replicas, as a Service is: the ready ones, connection by connection."""

import asyncio
import http.client
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_LOOK_S = 0.2
_LAST_TURNS = 3
"""Of the loop, in which what was broken is let go."""
_WAIT_S = 2.0
_OPEN_S = 60.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A replica: where it serves, and where it says that it is ready (`/readyz`)."""

    host: str
    port: int
    ops: str

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.ops, timeout=_WAIT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class ServiceAddress:
    """Listens until `close`; who comes while nobody is ready is sent away."""

    def __init__(
        self, endpoints: Sequence[Endpoint], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._endpoints = endpoints
        self._host = host
        self._ready: list[Endpoint] = []
        self._turns = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open = threading.Event()
        self.port = port
        self._thread = threading.Thread(target=self._run, name="service address", daemon=True)
        self._thread.start()
        if not self._open.wait(_OPEN_S):
            raise RuntimeError(f"{host}:{port} cannot be listened at within {_OPEN_S:g} s")

    @property
    def ready(self) -> int:
        """How many replicas get connections now."""
        return len(self._ready)

    def close(self) -> None:
        """Listen no longer and break what is open."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        self._server = loop.run_until_complete(
            asyncio.start_server(self._serve, self._host, self.port)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        looking = loop.create_task(self._look())
        self._open.set()
        loop.run_forever()
        looking.cancel()
        self._server.close()
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for _ in range(_LAST_TURNS):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    async def _look(self) -> None:
        while True:
            found = await asyncio.gather(
                *(asyncio.to_thread(one.is_ready) for one in self._endpoints)
            )
            self._ready = [one for one, ready in zip(self._endpoints, found, strict=True) if ready]
            await asyncio.sleep(_LOOK_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = self._ready
        try:
            if ready:
                chosen = ready[next(self._turns) % len(ready)]
                there = await asyncio.open_connection(chosen.host, chosen.port)
                await _joined((reader, writer), there)
        except OSError:
            return
        finally:
            writer.transport.abort()


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _joined(one: _Stream, other: _Stream) -> None:
    """Until either side ends; then both are broken."""
    ways = [
        asyncio.ensure_future(_carried(one[0], other[1])),
        asyncio.ensure_future(_carried(other[0], one[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        other[1].transport.abort()


async def _carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
