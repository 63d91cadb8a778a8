"""What hints rely on in a scorer, asked of each that there is, and the client that asks it."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from controller.admission.hint_request import Features, score_request
from controller.admission.hint_score import MOST_BYTES, ScoreError, ScoreFault, read_score
from controller.runs.observation import observation_body
from controller.scoring.learned import Observation
from controller.web.scorer import HttpScorer
from tests.builders.hinted import answer
from tests.fakes.http_receiver import raw_server
from tests.fakes.score_program import gpuwarden_score
from tests.fakes.scorer import fake_scorer

Scorer = Callable[[Path], AbstractAsyncContextManager[str]]
"""Gives the URL of a scorer that has never learned anything, with a folder of its own."""


@contextlib.asynccontextmanager
async def fake(_folder: Path) -> AsyncIterator[str]:
    async with fake_scorer() as found:
        yield found.url


SCORERS: dict[str, Scorer] = {"fake": fake, "gpuwarden-score": gpuwarden_score}
TYPES = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4")
MEMORY = {"NVIDIA-A100-SXM4-80GB": 79.648, "NVIDIA-L4": 22.5}


@contextlib.asynccontextmanager
async def asking(url: str, timeout_s: float = 10.0) -> AsyncIterator[HttpScorer]:
    scorer = HttpScorer(url, timeout_s)
    try:
        yield scorer
    finally:
        await scorer.close()


async def fault(scorer: HttpScorer, body: bytes = b"{}") -> tuple[ScoreFault, str]:
    with pytest.raises(ScoreError) as caught:
        await scorer.ask(body)
    return caught.value.fault, str(caught.value)


# --- The contract


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
async def test_what_hints_rely_on(scorer: Scorer, tmp_path: Path) -> None:
    """An answer counts and is the same again; terms of a new pair; nothing to choose is refused."""
    async with scorer(tmp_path) as url, asking(url) as client:
        for types in (TYPES, TYPES[:1], TYPES[::-1]):
            for features in (Features("training"), Features("new", 24.0, 32, "team")):
                question = score_request(features, types, ("serving",), MEMORY)
                body = await client.ask(question)
                found = read_score(body, types, features.job_type)
                assert found.gpu_type in types
                assert read_score(await client.ask(question), types, features.job_type) == found
                terms = json.loads(body)["terms"]
                assert (terms["mu"], terms["sigma"]) == (10.0, 5.0)
                assert math.isclose(terms["ig"], 2.56099, abs_tol=5e-6)
                assert math.isclose(terms["cost"], 9.70731, abs_tol=5e-6)
        question = score_request(Features("t"), (), (), {})
        assert await fault(client, question) == (ScoreFault.REFUSED, "HTTP 400")
        for failed in (False, True):
            seen = Observation(
                job_type="other", gpu_type=TYPES[0], runtime_s=9.0, succeeded=not failed
            )
            await client.tell(observation_body(seen))
        with pytest.raises(ScoreError) as caught:
            await client.tell(b'{"job_type": "other"}')
        assert caught.value.fault is ScoreFault.REFUSED


# --- The client


async def test_the_path_is_below_the_url_with_or_without_a_slash() -> None:
    async with fake_scorer() as server:
        for url in (server.url, server.url + "/"):
            async with asking(url) as client:
                assert await client.ask(score_request(Features("t"), TYPES, (), {}))
        assert [x["job_type"] for x in server.questions] == ["t", "t"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ScoreFault.REFUSED),
        (404, ScoreFault.REFUSED),
        (499, ScoreFault.REFUSED),
        (408, ScoreFault.STATUS),
        (429, ScoreFault.STATUS),
        (500, ScoreFault.STATUS),
        (503, ScoreFault.STATUS),
        (201, ScoreFault.STATUS),
        (307, ScoreFault.STATUS),
    ],
)
async def test_another_status_is_no_answer(status: int, expected: ScoreFault) -> None:
    async with fake_scorer() as server, asking(server.url) as client:
        server.status, server.lie = status, answer()
        assert await fault(client) == (expected, f"HTTP {status}")
        server.status = 200
        assert await client.ask(b"{}") == answer()


async def test_it_waits_for_a_slow_one_no_longer_than_it_may() -> None:
    async with fake_scorer() as server, asking(server.url, 0.05) as client:
        server.is_slow = True
        assert await fault(client) == (ScoreFault.TIMEOUT, "no answer within 0.05 s")


async def test_a_dead_one_is_told_by_what_failed() -> None:
    async with fake_scorer() as server:
        url = server.url
    async with asking(url) as client:
        assert await fault(client) == (ScoreFault.CONNECTION, "ClientConnectorError")


async def test_of_a_huge_answer_little_more_is_read_than_counts() -> None:
    async with fake_scorer() as server, asking(server.url) as client:
        server.lie = b"x" * (8 << 20)
        read = await client.ask(b"{}")
        assert MOST_BYTES < len(read) < 1 << 20
        with pytest.raises(ScoreError) as caught:
            read_score(read, TYPES, "t")
        assert caught.value.fault is ScoreFault.TOO_LARGE


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (32 << 10) + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_no_answer(said: bytes) -> None:
    async def handle(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(said)
        await writer.drain()
        raise ConnectionError

    async with raw_server(handle) as server, asking(server.url) as client:
        found, _ = await fault(client)
        assert found is ScoreFault.CONNECTION


async def test_it_can_be_closed_unused() -> None:
    async with asking("http://127.0.0.1:9"):
        pass
