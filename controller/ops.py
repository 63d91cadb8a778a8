"""HTTP for kubelet and Prometheus: `/healthz`, `/readyz`, `/metrics`, and nothing else.

Reads values only, has no side effects, takes no bodies. `/healthz` says that the
process turns its event loop; `/readyz` says whether it may decide and why not.
"""

import json
from collections.abc import Callable

from aiohttp import web

from controller.readiness import Readiness
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.metrics import CONTENT_TYPE

_NO_BODY_BYTES = 1024
_IDLE_SECONDS = 30.0
_LINGER_SECONDS = 1.0
_BACKLOG = 64


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
        return web.Response(body=render_metrics(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=_NO_BODY_BYTES)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


class OpsServer:
    """Listens on `listen.ops`."""

    def __init__(self, app: web.Application, address: Address) -> None:
        self._address = address
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
            shutdown_timeout=_LINGER_SECONDS,
        )

    async def start(self) -> Address:
        """Listen; returns what was bound (port 0 means any free one). Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, self._address.host or None, self._address.port, backlog=_BACKLOG
        )
        await site.start()
        host, port, *_ = self._runner.addresses[0]
        return Address(host, port)

    async def stop(self) -> None:
        """Close everything; may be called without `start`."""
        await self._runner.cleanup()
