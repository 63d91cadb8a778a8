"""The webhooks over HTTP: the API server's reviews in, well-formed answers out.

Bodies are bounded in size and time. Each answer comes before the API server gives up; what
could not be decided by then, or failed, is refused (in report-only mode let in, with a warning; by
a webhook that only gives hints let in without one).
Which path is answered by whom is given: one listener serves every webhook of the controller.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from aiohttp import web

from controller.admission.review import (
    AdmissionHandler,
    Review,
    ReviewError,
    Verdict,
    decode_review,
    encode_answer,
    encode_unread,
)
from controller.placement.refusals import message
from controller.web.listener import ConnectionLimits
from controller.web.server import (
    HEALTH_PATHS,
    BodyReceiver,
    BodyRefusedError,
    healthz,
    sent_traceparent,
)
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span_below

_JSON: Final = "application/json"
_SECONDS: Final = re.compile(r"[?&]timeout=([0-9]{1,3})s(?:&|$)")
"""How the API server writes the webhook's timeoutSeconds into the query."""
_OVERDUE: Final = Refusal(ReasonCode.ADMISSION_FAILED, "the controller did not decide in time")
_BROKEN: Final = Refusal(ReasonCode.ADMISSION_FAILED, "the controller failed; its log says why")


class AdmissionMetrics(Protocol):
    """Takes measurements, and entries for the log.

    The recorder that implements it is above this layer.
    """

    def answered(self, path: str, result: str, seconds: float) -> None:
        """One answer; `result` is the verdict's, or bad, too_large, busy or slow."""

    def failed(self, path: str, error: Exception | None) -> None:
        """No decision: an error, or None where the time was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits(ConnectionLimits):
    """Bounds on what API servers can take."""

    body_bytes: int = 8 << 20
    """An object and its predecessor, each at most 3 MiB in the API server."""
    receive_s: float = 3.0
    spare_s: float = 0.5
    """How much earlier than the API server's own deadline an answer is sent."""
    longest_s: float = 10.0
    """Where no deadline is given."""
    connections: int = 2048
    """HTTP/1.1: each API server takes one per request that is in flight."""


class AdmissionWebhooks:
    """HTTP around the handlers of all paths."""

    def __init__(
        self,
        handlers: Mapping[str, AdmissionHandler],
        *,
        metrics: AdmissionMetrics,
        limits: AdmissionLimits,
        report: bool,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        """With `report` failures admit too (`enforcement: report`), and on `open_paths` always."""
        self._handlers = handlers
        self._metrics = metrics
        self._limits = limits
        self._report = report
        self._open_paths = open_paths
        self._bodies = BodyReceiver(
            limits.body_bytes, "the API server sends no larger ones", receive_s=limits.receive_s
        )

    def application(self) -> web.Application:
        """The routes; other paths are 404, other methods 405."""
        app = web.Application()
        for path, handler in self._handlers.items():
            app.router.add_post(path, partial(self._serve, path, handler))
        for path in HEALTH_PATHS:
            app.router.add_get(path, healthz)
        return app

    async def _serve(
        self, path: str, handler: AdmissionHandler, request: web.Request
    ) -> web.Response:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with span_below(Span.ADMISSION, sent_traceparent(request)) as active:
            result, response = await self._answer(path, handler, request)
            active.set_attribute("path", path)
            active.set_attribute("result", result)
            self._metrics.answered(path, result, loop.time() - start)
        return response

    async def _answer(
        self, path: str, handler: AdmissionHandler, request: web.Request
    ) -> tuple[str, web.Response]:
        deadline_s = self._deadline_s(request)
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            if request.content_type != _JSON:
                raise ReviewError(f"not an AdmissionReview: expected {_JSON}")  # noqa: TRY301 -- answered like what cannot be read
            review = decode_review(await self._bodies.receive(request))
        except BodyRefusedError as refused:
            return refused.result, _refused(refused.status, str(refused))
        except ReviewError as error:
            return "bad", _refused(400, str(error))
        left_s = deadline_s - (loop.time() - start)
        verdict = await self._decide(path, handler, review, left_s)
        body = encode_answer(review, verdict)
        return verdict.result, web.Response(body=body, content_type=_JSON)

    async def _decide(
        self, path: str, handler: AdmissionHandler, review: Review, left_s: float
    ) -> Verdict:
        try:
            async with asyncio.timeout(left_s):
                return await handler(review.request)
        except TimeoutError:
            self._metrics.failed(path, None)
            return self._undecided(path, _OVERDUE)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the answer is a refusal
            self._metrics.failed(path, error)
            return self._undecided(path, _BROKEN)

    def _undecided(self, path: str, refusal: Refusal) -> Verdict:
        if path in self._open_paths:
            return Verdict(result="failed")
        if self._report:
            return Verdict(warnings=(message(refusal),), result="failed")
        return Verdict((refusal,), result="failed")

    def _deadline_s(self, request: web.Request) -> float:
        match = _SECONDS.search(request.raw_path)
        limits = self._limits
        given = limits.longest_s if match is None else min(float(match[1]), limits.longest_s)
        return max(given - limits.spare_s, limits.spare_s)


def _refused(status: int, text: str) -> web.Response:
    response = web.Response(body=encode_unread(status, text), status=status, content_type=_JSON)
    if status in {408, 413, 503}:
        response.force_close()
    return response
