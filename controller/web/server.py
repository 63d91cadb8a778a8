"""What the HTTP listeners share: bodies that are bounded, probes; and the ops listener."""

import asyncio
import json
import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from controller.operations.readiness import Readiness
from controller.web.listener import (
    BROKEN_BY_CLIENT,
    ConnectionLimits,
    HttpServer,
    ListenerObserver,
)
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.metrics import CONTENT_TYPE, OPEN_METRICS_TYPE, takes_exemplars
from gpuwarden.telemetry.names import FLEET_PAGE, PAGE

HEALTH_PATHS: Final = ("/healthz", "/health")
INSECURE_HEADER: Final = "Gpuwarden-Insecure"
"""Of answers that may rest on insecure stand-ins: their names."""
READY_PATHS: Final = ("/readyz", "/ready")
"""Second names are those that other programs' manifests probe."""


async def healthz(_request: web.Request) -> web.Response:
    """Answer a probe: the process turns its event loop."""
    return web.Response(text="ok")


def sent_traceparent(request: web.Request) -> str:
    """The caller's trace context; empty where it sent none or several."""
    sent = request.headers.getall("traceparent", [])
    return sent[0] if len(sent) == 1 else ""


# --- bodies

LARGE: Final = 4 << 20
"""Bytes after which a body of known length moves."""


class BodyBuffer:
    """Where a request's body is put together; grows up to `expected` bytes where that is known.

    A body of whole nodes has tens of megabytes. Taking that much new memory page by page costs
    more than decrypting what is put there, so a large body moves to huge pages, where the
    kernel gives any. It does so only once much of it has come: what a client announces
    takes no memory.
    """

    __slots__ = ("_at", "_expected", "_small", "_view")

    def __init__(self, expected: int | None) -> None:
        """`expected` is the Content-Length, None for a chunked body."""
        self._expected = expected or 0
        self._small = bytearray()
        self._view: memoryview | None = None
        self._at = 0

    def __len__(self) -> int:
        return self._at

    def append(self, chunk: bytes) -> None:
        """Add what came; raises ValueError beyond `expected`."""
        end = self._at + len(chunk)
        if self._view is None and LARGE <= end <= self._expected:
            self._view = _huge(self._expected)
            self._view[: self._at] = self._small
            self._small = bytearray()
        if self._view is None:
            self._small += chunk
        else:
            self._view[self._at : end] = chunk
        self._at = end

    def whole(self) -> bytearray | memoryview:
        """All that came, without a copy."""
        return self._small if self._view is None else self._view[: self._at]


def _huge(size: int) -> memoryview:
    """Fresh memory, given back when the last view of it goes."""
    space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        space.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(space)


_AT_ONCE: Final = 2
"""Bodies of full size that may be received at the same time."""


class BodyRefusedError(Exception):
    """The body was not taken: HTTP status, a word for metrics, and why, for the answer."""

    def __init__(self, status: int, result: str, text: str) -> None:
        super().__init__(text)
        self.status, self.result = status, result


class BodyReceiver:
    """Receives request bodies, bounded in size, in time and in sum; one per listener.

    What a client sends can delay or refuse only its own request.
    """

    def __init__(self, limit: int, key: str, *, receive_s: float) -> None:
        """At most `limit` bytes, which `key` configures, within `receive_s` from the headers on."""
        self._limit = limit
        self._key = key
        self._receive_s = receive_s
        self._receiving = 0

    async def receive(self, request: web.Request) -> bytes | bytearray | memoryview:
        """Read the body into one buffer; raises BodyRefusedError."""
        limit = self._limit
        too_large = BodyRefusedError(
            413, "too_large", f"request body is larger than {limit} bytes ({self._key})"
        )
        if (request.content_length or 0) > limit:
            raise too_large
        if request.content.is_eof() and request.content_length is not None:
            whole = request.content.read_nowait()  # it came with its headers
            self._demand_room(len(whole))
            return whole
        body = BodyBuffer(request.content_length)
        try:
            async with asyncio.timeout(self._receive_s):
                while chunk := await request.content.readany():
                    self._receiving += len(chunk)
                    body.append(chunk)
                    if len(body) > limit:
                        raise too_large
                    self._demand_room(0)
        except (*BROKEN_BY_CLIENT, ConnectionError):
            raise BodyRefusedError(400, "bad", "the body cannot be read, or ended early") from None
        except TimeoutError:
            text = f"request body did not arrive within {self._receive_s:g} s"
            raise BodyRefusedError(408, "slow", text) from None
        finally:
            self._receiving -= len(body)
        return body.whole()

    def _demand_room(self, more: int) -> None:
        if self._receiving + more > _AT_ONCE * self._limit:
            raise BodyRefusedError(503, "busy", "too many large requests at once")


# --- health and metrics

_NO_BODY_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsLimits(ConnectionLimits):
    """Bounds on what probes and Prometheus can take."""

    idle_s: float = 30.0
    connections: int = 128


class RenderMetrics(Protocol):
    """Makes the page of metrics."""

    def __call__(self, *, exemplars: bool = False) -> bytes:
        """As text, or as OpenMetrics with exemplars."""


def ops_app(
    readiness: Callable[[], Readiness],
    render_metrics: RenderMetrics,
    fleet_page: Callable[[], Callable[[], bytes]] | None,
) -> web.Application:
    """`/healthz`, `/readyz`, their aliases, `/metrics` and `/metrics/fleet`, and nothing else.

    `/healthz` says that the process turns its event loop; `/readyz` says whether it may decide and
    why not. `readiness` and `render_metrics` are asked at each request, and so is `fleet_page`:
    what it returns makes the page on a thread, for it has series for every GPU. None where nobody
    is to see those. Takes no bodies.
    """
    one_at_a_time = asyncio.Lock()

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        now = readiness()
        body = {"ready": now.ready, "reasons": now.reasons, "warnings": now.warnings}
        return web.Response(
            text=json.dumps(body) + "\n",
            status=200 if now.ready else 503,
            content_type="application/json",
        )

    async def metrics(request: web.Request) -> web.Response:
        exemplars = takes_exemplars(request.headers.get("Accept", ""))
        content_type = OPEN_METRICS_TYPE if exemplars else CONTENT_TYPE
        body = render_metrics(exemplars=exemplars)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def fleet_metrics(_request: web.Request) -> web.Response:
        if fleet_page is None:
            return web.Response(text="off: metrics.fleet is false\n", status=404)
        async with one_at_a_time:
            body = await asyncio.to_thread(fleet_page())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=_NO_BODY_BYTES)
    for path in HEALTH_PATHS:
        app.router.add_get(path, health)
    for path in READY_PATHS:
        app.router.add_get(path, readyz)
    app.router.add_get(PAGE, metrics)
    app.router.add_get(FLEET_PAGE, fleet_metrics)
    return app


class OpsServer(HttpServer):
    """Listens on `listen.ops`."""

    def __init__(
        self,
        app: web.Application,
        address: Address,
        *,
        observer: ListenerObserver,
        limits: OpsLimits = OpsLimits(),
    ) -> None:
        super().__init__(
            app, name="ops", address=address, tls=None, limits=limits, observer=observer
        )
