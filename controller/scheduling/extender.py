"""The scheduler extender over HTTP: /filter, /prioritize, /healthz, and its listener.

Plain HTTP on loopback, else mTLS: who has a certificate from the client CA may call.
Bodies are bounded in size, in time and in sum; what a client sends can delay only its
own answer. Decisions are made elsewhere (`verbs`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from aiohttp import web

from controller.scheduling.body_buffer import BodyBuffer
from controller.scheduling.decision import DecisionSink
from controller.scheduling.serving_tls import Reload, ServingTls, TlsFiles
from controller.scheduling.verbs import Answer, ExtenderVerbs
from controller.scheduling.wire import Body, encode_error
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span_below

INSECURE_HEADER = "Gpuwarden-Insecure"
_JSON = "application/json"
_BODIES_AT_ONCE = 2
_BACKLOG = 128


class ExtenderMetrics(Protocol):
    """Takes measurements, and news about the certificate for log and metric."""

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One answer.

        `result` is passed, rejected, untouched, not_ready, bad, too_large, busy or slow.
        """

    def certificate_changed(self, error: str | None) -> None:
        """The certificate files have changed and were taken, or refused with `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderLimits:
    """Bounds on what one client, and all together, can take."""

    body_bytes: int = 128 << 20
    """One request (`limits.filterBytes`); twice that for all that are being received."""
    receive_s: float = 4.0
    """From the headers to the end of the body; below kube-scheduler's httpTimeout of 5 s."""
    idle_s: float = 120.0
    """A connection without a complete request; longer than the scheduler keeps idle ones."""
    handshake_s: float = 5.0
    connections: int = 256


class ListenRefusedError(Exception):
    """The listener would be open to anybody; names the key and what was expected."""


class _BodyRefusedError(Exception):
    def __init__(self, status: int, result: str, text: str) -> None:
        super().__init__(text)
        self.status, self.result = status, result


class Extender:
    """HTTP handlers around the verbs."""

    def __init__(
        self,
        verbs: ExtenderVerbs,
        *,
        sink: DecisionSink,
        metrics: ExtenderMetrics,
        limits: ExtenderLimits,
    ) -> None:
        self._verbs = verbs
        self._sink = sink
        self._metrics = metrics
        self._limits = limits
        self._receiving = 0

    def application(self) -> web.Application:
        """The routes; other paths are 404, other methods 405."""
        app = web.Application()
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/prioritize", self._prioritize)
        app.router.add_get("/healthz", self._healthz)
        return app

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok", headers=self._headers())

    async def _filter(self, request: web.Request) -> web.Response:
        return await self._traced(Span.FILTER, request, "filter", self._verbs.filter)

    async def _prioritize(self, request: web.Request) -> web.Response:
        return await self._traced(Span.PRIORITIZE, request, "prioritize", self._verbs.prioritize)

    async def _traced(
        self, name: Span, request: web.Request, verb: str, decide: Callable[[Body], Answer]
    ) -> web.Response:
        with span_below(name, _traceparent(request)) as active:
            result, response = await self._answer(request, verb, decide)
            active.set_attribute("result", result)
            return response

    async def _answer(
        self, request: web.Request, verb: str, decide: Callable[[Body], Answer]
    ) -> tuple[str, web.Response]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            answer = decide(await self._receive(request))
        except _BodyRefusedError as refused:
            answer = Answer(refused.status, encode_error(str(refused)), refused.result)
        if answer.decision is not None:
            # After the answer is on its way: totals of all nodes cost more than the answer.
            loop.call_soon(self._sink.note, answer.decision)
        self._metrics.answered(verb, answer.result, loop.time() - start)
        response = web.Response(
            body=answer.body,
            status=answer.status,
            content_type=_JSON,
            headers=self._headers(),
        )
        if answer.status in {408, 413, 503}:
            response.force_close()
        return answer.result, response

    def _headers(self) -> dict[str, str]:
        insecure = self._verbs.insecure
        return {INSECURE_HEADER: ", ".join(insecure)} if insecure else {}

    async def _receive(self, request: web.Request) -> Body:
        """Read the body into one buffer; raises _BodyRefusedError."""
        limit = self._limits.body_bytes
        too_large = _BodyRefusedError(
            413, "too_large", f"request body is larger than {limit} bytes (limits.filterBytes)"
        )
        if (request.content_length or 0) > limit:
            raise too_large
        body = BodyBuffer(request.content_length)
        try:
            async with asyncio.timeout(self._limits.receive_s):
                while chunk := await request.content.readany():
                    self._receiving += len(chunk)
                    body.append(chunk)
                    if len(body) > limit:
                        raise too_large
                    if self._receiving > _BODIES_AT_ONCE * limit:
                        raise _BodyRefusedError(503, "busy", "too many large requests at once")
        except TimeoutError:
            text = f"request body did not arrive within {self._limits.receive_s:g} s"
            raise _BodyRefusedError(408, "slow", text) from None
        finally:
            self._receiving -= len(body)
        return body.whole()


def _traceparent(request: web.Request) -> str:
    """Of a caller that traces; which of several is meant nobody can know."""
    sent = request.headers.getall("traceparent", [])
    return sent[0] if len(sent) == 1 else ""


class _Refuse(asyncio.Protocol):
    """Closes a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class ExtenderServer:
    """Listens, and keeps its certificate as new as its files."""

    def __init__(
        self,
        extender: Extender,
        *,
        address: Address,
        tls: TlsFiles | None,
        metrics: ExtenderMetrics,
        limits: ExtenderLimits,
        reload_s: float = 10.0,
    ) -> None:
        """Raises ListenRefusedError or TlsFilesError before anything listens."""
        check_listener(address, tls)
        self._address = address
        self._tls = None if tls is None else ServingTls(tls)
        self._metrics = metrics
        self._limits = limits
        self._reload_s = reload_s
        self._runner = web.AppRunner(
            extender.application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=limits.idle_s,
            lingering_time=1.0,
            auto_decompress=False,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address that was bound (port 0 means any free one)."""
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            self._address.host or None,
            self._address.port,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else self._limits.handshake_s,
            backlog=_BACKLOG,
        )
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def watch_certificates(self) -> None:
        """Take changed certificate files into use until cancelled; returns at once without TLS."""
        while self._tls is not None:
            await asyncio.sleep(self._reload_s)
            self.reload_certificates()

    def reload_certificates(self) -> Reload:
        """Look at the certificate files now."""
        if self._tls is None:
            return Reload.UNCHANGED
        found = self._tls.reload()
        if found is not Reload.UNCHANGED:
            self._metrics.certificate_changed(self._tls.last_error)
        return found

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop listening, let running answers end within `grace_s`, then close everything."""
        if self._server is None:
            return
        self._server.close()
        self._handlers().pre_shutdown()
        await self._handlers().shutdown(grace_s)
        await self._runner.cleanup()
        self._server = None

    def _handlers(self) -> web.Server:
        return cast("web.Server", self._runner.server)  # there since `setup`

    def _connection(self) -> asyncio.Protocol:
        handlers = self._handlers()
        if len(handlers.connections) >= self._limits.connections:
            return _Refuse()
        return handlers()


def check_listener(address: Address, tls: TlsFiles | None) -> None:
    """Refuse an address that others can reach without a client CA; raises ListenRefusedError."""
    if address.is_loopback or (tls is not None and tls.client_ca is not None):
        return
    raise ListenRefusedError(
        f"listen.extender: {address} can be reached from other machines, expected a loopback"
        " address or extender.tls.clientCa (with cert and key): whoever reaches the extender"
        " learns where attested GPUs are"
    )
