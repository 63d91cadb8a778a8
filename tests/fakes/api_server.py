"""The sandbox's Kubernetes API server, and what tests do to it: faults, silence, refusals.

The contract tests that it keeps run against kube-apiserver as well (tests/e2e).
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from controller.kube.api.client import Answer, Request
from sandbox.kube.calls import Place, place_of, refusal
from sandbox.kube.objects import Object, RefusedError
from sandbox.kube.server import AUDIENCE, ApiServer
from tests.builders.web_certificates import WebCa

__all__ = ["AUDIENCE", "TOKEN", "DirectExchange", "FakeApiServer", "place_of"]

TOKEN = "token-of-the-first-hour"  # noqa: S105 - of a fake
NOW = "2026-11-27T20:00:00Z"
"""When everything is made."""


@dataclass
class Fault:
    """An answer in the place of the real one."""

    status: int
    headers: dict[str, str]
    body: bytes
    matching: str
    """Part of `verb path?query`."""


class FakeApiServer(ApiServer):
    def __init__(self, folder: Path) -> None:
        super().__init__(self._context, tokens={TOKEN}, now=lambda: NOW)
        self.forwarded: dict[tuple[str, int], int] = {}
        """Ports of this machine, by pod and its port."""
        self.forbidden: set[str] = set()
        """Parts of `verb path?query` that nobody may do."""
        self.version = "v1.35.4"
        self.date: str | None = None
        """Of discovery, where it is not this machine's time."""
        self.group_versions: set[str] = set()
        """What discovery names, `GROUP/VERSION`."""
        self.denied: set[str] = set()
        """`VERB RESOURCE` that SelfSubjectAccessReviews deny."""
        self.dry_run: Callable[[Object], tuple[int, Object]] = lambda pod: (201, pod)
        """Answer to a pod that is created with `dryRun=All`; nothing is stored."""
        self.disruption_budgets: set[str] = set()
        """Names of pods whose eviction a budget is against."""
        self.requests: list[tuple[str, str]] = []
        """Verb and path with query, in order."""
        self.are_watches_silent = False
        self.do_watches_outstay = False
        """They go on beyond timeoutSeconds."""
        self.is_stalled = False
        """Takes requests and never answers."""
        self._folder = folder
        self._may_tell = asyncio.Event()
        self._may_tell.set()
        self.ca = WebCa(folder, "api-ca")
        self.client_ca = WebCa(folder, "api-client-ca")
        self._faults: list[Fault] = []
        self._error: bytes | None = None

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.ca.issue("api", server=True))
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(self.client_ca.file)
        return context

    # --- what tests do to it ---

    async def restart_with_another_ca(self) -> None:
        """On the same port."""
        await self.stop()
        self.ca = WebCa(self._folder, "api-ca-2")
        await self.start()

    def end_watches_with(self, code: int, reason: str) -> None:
        """Send an ERROR event to all watches."""
        event = refusal(code, reason, "made by the test")
        self.end_watches_with_line(b'{"type":"ERROR","object":' + event + b"}\n")

    def end_watches_with_line(self, line: bytes) -> None:
        self._error = line
        self.tell()

    def fail_next(
        self, code: int, *, matching: str = "", body: bytes | None = None, **headers: str
    ) -> None:
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        content = refusal(code, "Fault", "made by the test") if body is None else body
        self._faults.append(Fault(code, names, content, matching))

    @contextlib.contextmanager
    def late_watches(self) -> Iterator[None]:
        """Watches tell only afterwards what happens meanwhile."""
        self._may_tell.clear()
        try:
            yield
        finally:
            self._may_tell.set()

    # --- requests ---

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in {"/version", "/apis"}:
            return await self._faulty(request, "get") or self._discovered(request.path)
        return await super()._answer(request)

    async def _begun(self, request: web.Request, verb: str) -> web.StreamResponse | None:
        if (fault := await self._faulty(request, verb)) is not None:
            return fault
        if any(x in f"{verb} {request.rel_url}" for x in self.forbidden):
            raise RefusedError(403, "Forbidden", "made by the test")
        place = place_of(request.path)
        if place.subresource == "portforward":
            return await self._forward(request, place)
        if verb == "create" and request.query.get("dryRun") == "All":
            code, answer = self.dry_run(await request.json())
            return web.json_response(answer, status=code)
        return None

    async def _faulty(self, request: web.Request, verb: str) -> web.Response | None:
        """Note it and authenticate; gives the fault that a test wants, if any."""
        self.requests.append((verb, str(request.rel_url)))
        if self.is_stalled:
            await asyncio.sleep(3600)
        self._authenticate(request)
        for fault in self._faults:
            if fault.matching in f"{verb} {request.rel_url}":
                self._faults.remove(fault)
                return web.Response(status=fault.status, headers=fault.headers, body=fault.body)
        return None

    def _discovered(self, path: str) -> web.Response:
        headers = {} if self.date is None else {"Date": self.date}
        if path == "/version":
            return web.json_response({"gitVersion": self.version}, headers=headers)
        groups = [{"versions": [{"groupVersion": x}]} for x in sorted(self.group_versions)]
        answer = {"kind": "APIGroupList", "groups": groups}
        return web.json_response(answer, headers=headers)

    def _created(self, place: Place, body: Any, uid: str | None) -> Object:
        if place.collection == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            allowed = f"{asked['verb']} {asked['resource']}" not in self.denied
            return {**body, "status": {"allowed": allowed}}
        return super()._created(place, body, uid)

    def _evicted(self, place: Place, body: Any) -> Object:
        if place.name in self.disruption_budgets:
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            raise RefusedError(429, "TooManyRequests", text)
        return super()._evicted(place, body)

    async def _forward(self, request: web.Request, place: Place) -> web.StreamResponse:
        """As kubelet's legacy WebSocket: a data and an error channel for each port, port first."""
        if request.headers.get("Accept", "*/*") != "*/*":
            raise RefusedError(406, "NotAcceptable", "only the following media types are accepted")
        self.objects.get(place.collection, f"{place.namespace}/{place.name}")
        port = int(request.query["ports"])
        near = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await near.prepare(request)
        for channel in (0, 1):
            await near.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        there = self.forwarded.get((str(place.name), port))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", there or 1)
        except OSError:
            await near.send_bytes(b"\x01" + f"error forwarding port {port}: refused".encode())
            await near.close()
            return near

        async def back() -> None:
            while chunk := await reader.read(1 << 16):
                await near.send_bytes(b"\0" + chunk)
            await near.close()

        task = asyncio.create_task(back())
        try:
            async for message in near:
                if message.data[:1] == b"\0":
                    writer.write(message.data[1:])
        finally:
            task.cancel()
            writer.close()
        return near

    # --- watches ---

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        self._error = None
        return await super()._watch(request, place)

    def _watch_s(self, asked_s: float) -> float | None:
        return None if self.do_watches_outstay else asked_s

    async def _write(self, response: web.StreamResponse, line: bytes) -> None:
        await self._may_tell.wait()
        if not self.are_watches_silent:
            await super()._write(response, line)

    def _last_line(self) -> bytes | None:
        return self._error


class DirectExchange:
    """An `Exchange` with the server's objects, without a connection: for many calls by name."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        try:
            content, status = self._answer(request)
        except RefusedError as error:
            content, status = refusal(error.status, error.reason, str(error)), error.status
        await asyncio.sleep(0)
        yield Answer(status, None, _Whole(content))

    def _answer(self, request: Request) -> tuple[bytes, int]:
        path, _, query = request.path.partition("?")
        place = place_of(path)
        if request.method == "GET" and place.name is not None:
            key = "/".join(x for x in (place.namespace, place.name) if x)
            return self._server.objects.text(place.collection, key).encode(), HTTPStatus.OK
        asked: Any = SimpleNamespace(
            method=request.method, content_type=request.content_type, query=dict(parse_qsl(query))
        )
        found, status = self._server._worked(asked, place, request.body)
        return json.dumps(found).encode(), status

    async def close(self) -> None:
        pass


class _Whole:
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def chunk(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def line(self) -> bytes:
        raise NotImplementedError
