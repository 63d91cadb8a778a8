"""A scorer with radix's `/v1/score`: honest, slow, or saying whatever bytes a test wants."""

import asyncio
import contextlib
import math
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

LAMBDA, BETA, TAU_SQUARED = 0.3, 0.7, 0.15
MU, SIGMA = 10.0, 5.0
"""Of a pair that was never seen."""


class FakeScorer:
    """Chooses the first type by name, as none was ever seen to be better."""

    def __init__(self) -> None:
        self.url = ""
        self.questions: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.runs: list[dict[str, Any]] = []
        """What it was told."""
        self.score: float = 85
        self.avoid: list[str] = []
        self.lie: bytes | None = None
        self.status = 200
        self.is_slow = False
        """Whether it answers nothing until the test is over."""
        self.over = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.questions.append(asked)
        self.tokens.append(request.headers.get("Authorization"))
        if self.is_slow:
            await self.over.wait()
        if self.lie is not None or self.status != 200:
            body = self.lie or b""
            return web.Response(status=self.status, body=body, content_type="application/json")
        types = sorted(asked["candidate_gpu_types"])
        if not types:
            return web.json_response({"detail": "candidate_gpu_types: empty"}, status=400)
        gain = 0.5 * math.log(1 + SIGMA**2 / TAU_SQUARED)
        terms = {
            "mu": MU,
            "sigma": SIGMA,
            "ig": gain,
            "penalty": 0.0,
            "cost": MU + LAMBDA * SIGMA - BETA * gain,
            "chosen_gpu": types[0],
        }
        toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        selector = {
            "nodeSelector": {"gpu.nvidia.com/class": types[0]},
            "tolerations": [toleration],
        }
        return web.json_response(
            {
                "priority_score": self.score,
                "gpu_selector": selector,
                "avoid_co_locate_with": self.avoid,
                "terms": terms,
            }
        )

    async def learn(self, request: web.Request) -> web.Response:
        told = await request.json()
        if not {"job_type", "gpu_type"} <= told.keys():
            return web.json_response({"detail": "job_type or gpu_type: missing"}, status=422)
        self.runs.append(told)
        return web.json_response({"status": "ok"})


@contextlib.asynccontextmanager
async def fake_scorer(tls: tuple[Path, Path] | None = None) -> AsyncIterator[FakeScorer]:
    """With TLS, if files of a certificate and its key are given."""
    found = FakeScorer()
    app = web.Application()
    app.router.add_post("/v1/score", found.take)
    app.router.add_post("/v1/observe", found.learn)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http{'s' if tls else ''}://{host}:{port}"
    try:
        yield found
    finally:
        found.over.set()
        await runner.cleanup()
