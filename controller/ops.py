"""HTTP for kubelet and Prometheus: `/healthz`, `/readyz`, `/metrics`, and nothing else.

Reads values only, has no side effects, takes no bodies. `/healthz` says that the
process turns its event loop; `/readyz` says whether it may decide and why not.
"""

import json
from collections.abc import Callable

from aiohttp import web

from controller.readiness import Readiness

_NO_BODY_BYTES = 1024
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def ops_app(
    readiness: Callable[[], Readiness], render_metrics: Callable[[], bytes]
) -> web.Application:
    """The application; `readiness` and `render_metrics` are asked at each request."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        now = readiness()
        body = {"ready": now.ready, "reasons": now.reasons, "warnings": now.warnings}
        return web.Response(
            text=json.dumps(body) + "\n",
            status=200 if now.ready else 503,
            content_type="application/json",
        )

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(), headers={"Content-Type": _METRICS_TYPE})

    app = web.Application(client_max_size=_NO_BODY_BYTES)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app
