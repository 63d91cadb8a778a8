"""The paths of the scoring service. Bodies are bounded, and so is the time of everything."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from controller.scorer.service import ScoreService, SwitchedOffError, TooManyWaitError
from controller.scoring.documents import BadRequestError, read_document
from controller.web.server import (
    HEALTH_PATHS,
    READY_PATHS,
    BodyReceiver,
    BodyRefusedError,
    RenderMetrics,
    healthz,
)
from gpuwarden.telemetry.metrics import CONTENT_TYPE, OPEN_METRICS_TYPE, takes_exemplars
from gpuwarden.telemetry.names import PAGE

_RECEIVE_S: Final = 5.0
_ANSWER_S: Final = 5.0
_NOT_KEPT: Final = {"Cache-Control": "no-store"}

Answer = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class RequestSink(Protocol):
    """Hears what became of requests; the recorder implements it."""

    def answered(self, path: str, status: int, seconds: float) -> None:
        """One answer."""

    def refused(self, path: str, reason: str) -> None:
        """A request that could not be meant."""

    def failed(self, path: str, error: Exception | None) -> None:
        """No answer: an error, or None where it was not made in time."""


def score_app(
    service: ScoreService,
    sink: RequestSink,
    *,
    render_metrics: RenderMetrics,
    about: Mapping[str, Any],
    max_body: int,
) -> web.Application:
    """All paths; `about` is what `/` answers."""
    receiver = BodyReceiver(max_body, "maxBody", receive_s=_RECEIVE_S)

    def document_path(path: str, answer: Answer) -> None:
        async def handle(request: web.Request) -> web.Response:
            loop = asyncio.get_running_loop()
            began = loop.time()
            response = await _answered(path, answer, request, receiver, sink)
            sink.answered(path, response.status, loop.time() - began)
            return response

        app.router.add_post(path, handle)

    async def readyz(_request: web.Request) -> web.Response:
        reasons = [f"store: {service.problem}"] if service.problem else []
        return _json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(request: web.Request) -> web.Response:
        exemplars = takes_exemplars(request.headers.get("Accept", ""))
        content_type = OPEN_METRICS_TYPE if exemplars else CONTENT_TYPE
        body = render_metrics(exemplars=exemplars)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def root(_request: web.Request) -> web.Response:
        return _json(about)

    app = web.Application(client_max_size=max_body, middlewares=[_problems])
    document_path("/v1/score", service.score)
    document_path("/v1/observe", service.observe)
    document_path("/v1/assign", service.assign)
    for path in HEALTH_PATHS:
        app.router.add_get(path, healthz)
    for path in READY_PATHS:
        app.router.add_get(path, readyz)
    app.router.add_get(PAGE, metrics)
    app.router.add_get("/", root)
    return app


async def _answered(
    path: str, answer: Answer, request: web.Request, receiver: BodyReceiver, sink: RequestSink
) -> web.Response:
    try:
        body = await receiver.receive(request)
        async with asyncio.timeout(_ANSWER_S):
            return _json(await answer(read_document(body)))
    except BodyRefusedError as error:
        sink.refused(path, error.result)
        response = _problem(error.status, f"body: {error}", "body")
        response.force_close()
        return response
    except BadRequestError as error:
        sink.refused(path, error.field or "body")
        return _problem(400, str(error), error.field)
    except (SwitchedOffError, TooManyWaitError) as error:
        return _problem(404 if isinstance(error, SwitchedOffError) else 503, str(error))
    except TimeoutError:
        sink.failed(path, None)
        return _problem(503, "no answer in time")
    except Exception as error:  # noqa: BLE001 -- the caller gets no details
        sink.failed(path, error)
        return _problem(500, "the service failed; its log has why")


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Unknown paths and methods in the form of everything else."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        response = _problem(error.status, "no such method here")
        response.headers["Allow"] = error.headers.get("Allow", "")
        return response
    except web.HTTPNotFound as error:
        return _problem(error.status, "no such path")


def _json(found: Mapping[str, Any], status: int = 200) -> web.Response:
    body = json.dumps(found, allow_nan=False).encode() + b"\n"
    return web.Response(
        body=body, status=status, content_type="application/json", headers=_NOT_KEPT
    )


def _problem(status: int, text: str, field: str = "") -> web.Response:
    return _json({"error": text, **({"field": field} if field else {})}, status)
