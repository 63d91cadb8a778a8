"""What hints rely on in a scorer, asked of each that there is, and the client that asks it."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from controller.admission.hints.request import Features, score_request
from controller.admission.hints.score import MOST_BYTES, ScoreError, ScoreFault, read_score
from controller.runs.observation import observation_body
from controller.scoring.learned import Observation
from controller.web.scorer import HttpScorer
from tests.builders.hinted import answer
from tests.builders.web_certificates import WebCa
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
async def asking(
    url: str, timeout_s: float = 10.0, *, ca: Path | None = None, token: str | None = None
) -> AsyncIterator[HttpScorer]:
    scorer = HttpScorer(url, timeout_s, ca=ca, token=token)
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


# --- TLS


async def test_its_own_authority_proves_a_scorer(tmp_path: Path) -> None:
    ca = WebCa(tmp_path, "ca")
    async with fake_scorer(ca.issue("scorer", server=True)) as server:
        async with asking(server.url, ca=ca.file, token="secret") as client:  # noqa: S106 -- a test's
            assert await client.ask(score_request(Features("t"), TYPES, (), {}))
        assert server.tokens == ["Bearer secret"]
        async with asking(server.url, ca=ca.file) as client:
            assert await client.ask(score_request(Features("t"), TYPES, (), {}))
        assert server.tokens[1:] == [None]


async def test_a_certificate_that_proves_nothing_is_no_scorer(tmp_path: Path) -> None:
    ca, other = WebCa(tmp_path, "ca"), WebCa(tmp_path, "other")
    unknown = "certificate of 127.0.0.1: unable to get local issuer certificate"
    async with fake_scorer(ca.issue("right", server=True)) as server:
        for trusted in (other.file, None):
            async with asking(server.url, ca=trusted) as client:
                assert await fault(client) == (ScoreFault.CONNECTION, unknown)
    name = "certificate of 127.0.0.1: IP address mismatch, certificate is not valid for '127.0.0.1'"
    async with (
        fake_scorer(ca.issue("wrong", server=True, names=("scorer.ml",))) as server,
        asking(server.url, ca=ca.file) as client,
    ):
        found, text = await fault(client)
        assert (found, text.rstrip(".")) == (ScoreFault.CONNECTION, name)
        assert server.questions == []


async def test_a_new_authority_counts_from_the_next_question_on(tmp_path: Path) -> None:
    old, new = WebCa(tmp_path, "old"), WebCa(tmp_path, "new")
    file = tmp_path / "trusted.pem"
    async with (
        fake_scorer(new.issue("scorer", server=True)) as server,
        asking(server.url, ca=file) as client,
    ):
        text = f"hints.ca: {file}: No such file or directory"
        assert await fault(client) == (ScoreFault.CONNECTION, text)
        file.write_text("no certificate")
        text = f"hints.ca: {file}: no PEM certificates"
        assert await fault(client) == (ScoreFault.CONNECTION, text)
        file.write_bytes(old.file.read_bytes())
        assert (await fault(client))[0] is ScoreFault.CONNECTION
        file.write_bytes(new.file.read_bytes())
        assert await client.ask(score_request(Features("t"), TYPES, (), {}))


async def test_it_can_be_closed_unused() -> None:
    async with asking("http://127.0.0.1:9"):
        pass
