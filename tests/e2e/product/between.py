"""Between our controllers and the API server, both ways: each call is seen as it passes.

A watcher sees a call before it is passed on, and again with its answer; it may end a program at
that very moment, drop the call, or hold it up. The API server is told nothing new: who
is asked through here shows the certificates that the caller would have shown.
"""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from tests.e2e.lab.kubeconfig import kubeconfig, written
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pki import Pair
from tests.e2e.product.service_address import Endpoint

T = TypeVar("T")
_MOST_BYTES: Final = 64 << 20
_HOP: Final = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
_WAIT_S: Final = 60.0


class Moment(Enum):
    """When a call is seen."""

    ASKED = "asked"
    """Nobody but the caller has done anything yet."""
    ANSWERED = "answered"
    """It was carried out; the caller does not know yet."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request of or to one replica."""

    replica: str
    method: str
    path: str
    """With the query."""
    body: bytes
    status: int = 0
    """Of the answer; 0 when asked."""
    answer: bytes = b""
    """Empty for watches: they pass piece by piece."""

    def document(self) -> dict[str, Any]:
        """The request's body."""
        found: dict[str, Any] = json.loads(self.body)
        return found


Watcher = Callable[[Moment, Call], float | None]
"""Seconds to wait before the call is passed on, or None to drop it; called in a thread of ours."""


def passes(_moment: Moment, _call: Call) -> float | None:
    """Hold nothing up."""
    return 0.0


class Between:
    """Listens until `close`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        """`folder`: for files of ours."""
        self.watcher: Watcher = passes
        self._lab = lab
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._runners: list[web.AppRunner] = []
        self._connectors: list[TCPConnector] = []
        self._sessions: list[ClientSession] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="between", daemon=True)
        self._thread.start()

    def to_api(self, replica: str, theirs: Path) -> Path:
        """A kubeconfig with which the replica's calls pass here."""
        document = json.loads(theirs.read_text())
        user = document["users"][0]["user"]
        pair = Pair(Path(user["client-certificate"]), Path(user["client-key"]))
        server = document["clusters"][0]["cluster"]["server"]
        port = self._do(self._listen(replica, server, pair, "127.0.0.1", None))
        path = self._folder / f"{replica}.kubeconfig"
        ca = self._lab.control_plane.identities.pki.ca
        return written(path, kubeconfig(f"https://127.0.0.1:{port}", ca, pair))

    def to_webhooks(self, replica: str, there: Endpoint, name: str) -> Endpoint:
        """Where the API server's calls of the replica's webhooks pass; `name`: it serves as."""
        pki = self._lab.control_plane.identities.pki
        caller = pki.issue(f"{replica}-caller", "kube-apiserver")
        server = f"https://{there.host}:{there.port}"
        port = self._do(self._listen(replica, server, caller, name, name))
        return replace(there, host="127.0.0.1", port=port)

    def close(self) -> None:
        """Break what is open."""
        self._do(self._closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(
        self, replica: str, server: str, pair: Pair, own_name: str, server_name: str | None
    ) -> int:
        pki = self._lab.control_plane.identities.pki
        client = ssl.create_default_context(cafile=str(pki.ca))
        client.load_cert_chain(pair.certificate, pair.key)
        connector = TCPConnector(ssl=client, limit=0)
        self._connectors.append(connector)
        session = ClientSession(
            connector=connector,
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
        )
        self._sessions.append(session)
        way = _Way(self, replica, server, server_name, session)
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_route("*", "/{path:.*}", way.pass_on)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        self._runners.append(runner)
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own = pki.issue(f"between-{replica}-{len(self._runners)}", "between", names=[own_name])
        serving.load_cert_chain(own.certificate, own.key)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving)
        await site.start()
        port: int = runner.addresses[0][1]
        return port

    async def _closed(self) -> None:
        passing = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for connector in self._connectors:  # while it knows those that are in use
            await connector.close(abort_ssl=True)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        for session in self._sessions:
            await session.close()
        for runner in self._runners:
            await runner.cleanup()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)


class _Way:
    """From one listener to one server."""

    def __init__(
        self,
        between: Between,
        replica: str,
        server: str,
        server_name: str | None,
        session: ClientSession,
    ) -> None:
        self._between = between
        self._replica = replica
        self._server = server
        self._server_name = server_name
        self._session = session

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        call = Call(self._replica, request.method, request.raw_path, await request.read())
        if not await self._is_let(Moment.ASKED, call):
            return _dropped(request)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        try:
            async with self._session.request(
                request.method,
                self._server + request.raw_path,
                data=call.body or None,
                headers=headers,
                server_hostname=self._server_name,
            ) as answer:
                own = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=own)
                if "watch=" in urlsplit(call.path).query:
                    await response.prepare(request)
                    async for piece in answer.content.iter_any():
                        await response.write(piece)
                else:
                    body = await answer.read()
                    done = replace(call, status=answer.status, answer=body)
                    if not await self._is_let(Moment.ANSWERED, done):
                        return _dropped(request)
                    await response.prepare(request)
                    await response.write(body)
                with suppress(OSError):
                    await response.write_eof()
                return response
        except (ClientError, OSError):
            return _dropped(request)

    async def _is_let(self, moment: Moment, call: Call) -> bool:
        pause_s = await asyncio.to_thread(self._between.watcher, moment, call)
        if pause_s:
            await asyncio.sleep(pause_s)
        return pause_s is not None


def _dropped(request: web.Request) -> web.Response:
    """The connection breaks."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
