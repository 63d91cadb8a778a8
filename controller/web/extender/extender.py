"""The scheduler extender over HTTP: /filter, /prioritize, /preempt, /healthz, and its listener.

Plain HTTP on loopback, else mTLS: who has a certificate from the client CA may call.
Bodies are bounded in size, in time and in sum; what a client sends can delay only its
own answer. Decisions are made elsewhere (`verbs`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from aiohttp import web

from controller.placement.filter_and_score import FilterDecision
from controller.web.extender.scheduler_messages import Body, encode_error
from controller.web.extender.verbs import Answer, ExtenderVerbs
from controller.web.listener import ConnectionLimits, HttpServer, ListenerObserver
from controller.web.server import (
    HEALTH_PATHS,
    INSECURE_HEADER,
    BodyReceiver,
    BodyRefusedError,
    sent_traceparent,
)
from controller.web.tls import TlsFiles
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span_below

_JSON = "application/json"


class ExtenderMetrics(Protocol):
    """Takes measurements; the recorder that implements it is above this layer."""

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One answer.

        `result` is passed, rejected, reported, untouched, not_ready, bad, too_large, busy or slow.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderLimits(ConnectionLimits):
    """Bounds on what one client, and all together, can take."""

    body_bytes: int = 128 << 20
    """One request (`limits.filterBytes`); twice that for all that are being received."""
    receive_s: float = 4.0
    """From the headers to the end of the body; below kube-scheduler's httpTimeout of 5 s."""


class ListenRefusedError(Exception):
    """The listener would be open to every caller; names the key and what was expected."""


class Extender:
    """HTTP handlers around the verbs."""

    def __init__(
        self,
        verbs: ExtenderVerbs,
        *,
        note: Callable[[FilterDecision], None],
        metrics: ExtenderMetrics,
        limits: ExtenderLimits,
    ) -> None:
        """`note` records a decision; it never waits and never raises."""
        self._verbs = verbs
        self._note = note
        self._metrics = metrics
        self._bodies = BodyReceiver(
            limits.body_bytes, "limits.filterBytes", receive_s=limits.receive_s
        )

    def application(self) -> web.Application:
        """The routes; other paths are 404, other methods 405."""
        app = web.Application()
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/prioritize", self._prioritize)
        app.router.add_post("/preempt", self._preempt)
        for path in HEALTH_PATHS:
            app.router.add_get(path, self._healthz)
        return app

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok", headers=self._headers())

    async def _filter(self, request: web.Request) -> web.Response:
        return await self._trace(Span.FILTER, request, "filter", self._verbs.filter)

    async def _prioritize(self, request: web.Request) -> web.Response:
        return await self._trace(Span.PRIORITIZE, request, "prioritize", self._verbs.prioritize)

    async def _preempt(self, request: web.Request) -> web.Response:
        return await self._trace(Span.PREEMPT, request, "preempt", self._verbs.preempt)

    async def _trace(
        self, name: Span, request: web.Request, verb: str, decide: Callable[[Body], Answer]
    ) -> web.Response:
        with span_below(name, sent_traceparent(request)) as active:
            result, response = await self._answer(request, verb, decide)
            active.set_attribute("result", result)
            return response

    async def _answer(
        self, request: web.Request, verb: str, decide: Callable[[Body], Answer]
    ) -> tuple[str, web.Response]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            answer = decide(await self._bodies.receive(request))
        except BodyRefusedError as refused:
            answer = Answer(refused.status, encode_error(str(refused)), refused.result)
        if answer.decision is not None:
            # After the answer is on its way: totals of all nodes cost more than the answer.
            loop.call_soon(self._note, answer.decision)
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


class ExtenderServer(HttpServer):
    """The extender's listener."""

    def __init__(
        self,
        extender: Extender,
        *,
        address: Address,
        tls: TlsFiles | None,
        observer: ListenerObserver,
        limits: ExtenderLimits,
        reload_s: float = 10.0,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Raises ListenRefusedError or TlsFilesError before anything listens."""
        check_listener(address, tls)
        super().__init__(
            extender.application(),
            name="extender",
            address=address,
            tls=tls,
            limits=limits,
            observer=observer,
            reload_s=reload_s,
            now=now,
        )


def check_listener(address: Address, tls: TlsFiles | None) -> None:
    """Refuse an address that others can reach without a client CA; raises ListenRefusedError."""
    if address.is_loopback or (tls is not None and tls.client_ca is not None):
        return
    raise ListenRefusedError(
        f"listen.extender: {address} can be reached from other machines, expected a loopback"
        " address or extender.tls.clientCa (with cert and key): whoever reaches the extender"
        " learns where attested GPUs are"
    )
