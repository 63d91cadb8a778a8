"""A service from start to end, in this process."""

import asyncio
import io
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from controller.scorer.app import EXIT_FAULT, EXIT_OK, run
from controller.store.scores import FileLock, export_rows, import_rows
from gpuwarden.settings.loader import SCORE, Inputs, load
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry import logs
from tests.fakes.eventually import eventually
from tests.fakes.score_service import REFUSING, RUN, Running


@pytest.fixture(autouse=True)
def written() -> Iterator[io.StringIO]:
    root, found = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    logs.configure(LogLevel.INFO, LogFormat.TEXT, service="score", stream=found)
    yield found
    root.handlers[:], level = before
    logging.captureWarnings(capture=False)
    root.setLevel(level)
    structlog.reset_defaults()


async def served(
    path: Path, during: Callable[[str], Awaitable[None]], *flags: tuple[str, str]
) -> int:
    """Run a service on a file, do something meanwhile, stop it; its exit status."""
    given = [("listen", "127.0.0.1:0"), ("database", str(path)), *flags]
    loaded = load(SCORE, Inputs(flags=[(key, value, f"--{key}") for key, value in given]))
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(
        run(loaded, announce=address.set_result, stop=stop, exchange_s=0.01)
    )
    await asyncio.wait([running, address], return_when=asyncio.FIRST_COMPLETED)
    if address.done():
        await during(f"http://{address.result()}")
    stop.set()
    return await running


async def call(method: str, url: str, document: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=document) as answer,
    ):
        return answer.status, await answer.json()


async def nothing(_url: str) -> None:
    pass


async def test_what_was_learned_is_in_the_file_at_the_end(tmp_path: Path) -> None:
    async def during(url: str) -> None:
        assert (await call("POST", f"{url}/v1/observe", RUN))[1]["saved"] is True
        about = (await call("GET", f"{url}/"))[1]
        assert about["service"] == "gpuwarden-score"
        assert about["config"]["exploration_cap"] == 0.1

    path = tmp_path / "s.db"
    assert await served(path, during, ("score.explorationCap", "0.1")) == EXIT_OK
    assert [row.runs().weight for row in export_rows(path)] == [1.0]
    lock = FileLock(path)
    lock.take()
    lock.release()


async def test_a_file_that_cannot_be_made_does_not_keep_it_from_answering(
    tmp_path: Path, written: io.StringIO
) -> None:
    (tmp_path / "file").write_text("no folder")
    path = tmp_path / "file" / "s.db"

    async def during(url: str) -> None:
        assert (await call("POST", f"{url}/v1/observe", RUN))[1]["saved"] is False
        status, ready = await call("GET", f"{url}/readyz")
        assert (status, ready["ready"]) == (503, False)

    assert await served(path, during) == EXIT_FAULT
    assert "rows=1 lost=true" in written.getvalue().lower()


async def test_it_writes_what_waits_once_the_file_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    import_rows(path, [], replace=True)
    refusing = Running(path)
    refusing.sql(REFUSING)

    async def during(url: str) -> None:
        assert (await call("POST", f"{url}/v1/observe", RUN))[1]["saved"] is False
        refusing.sql("DROP TRIGGER full")

        async def ready() -> bool | None:
            return (await call("GET", f"{url}/readyz"))[0] == 200 or None

        await eventually(ready, "the service is ready")

    assert await served(path, during) == EXIT_OK
    assert len(export_rows(path)) == 1


async def test_its_condition_is_shown_where_nobody_can_teach_it(
    tmp_path: Path, written: io.StringIO
) -> None:
    path = tmp_path / "s.db"
    import_rows(path, [], replace=True)
    Running(path).sql(REFUSING)

    async def during(url: str) -> None:
        (line,) = [x for x in written.getvalue().splitlines() if "listener=ops" in x]
        (address,) = re.findall(r"address=(\S+)", line)
        ops = f"http://{address}"
        assert (await call("GET", f"{ops}/readyz"))[0] == 200
        await call("POST", f"{url}/v1/observe", RUN)
        status, ready = await call("GET", f"{ops}/readyz")
        assert (status, ready["ready"]) == (503, False)
        assert ready["reasons"][0].startswith("store: ")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{ops}/metrics") as page:
                text = await page.text()
            async with session.get(f"{ops}/healthz") as health:
                assert health.status == 200
            async with session.post(f"{ops}/v1/observe", json=RUN) as refused:
                assert refused.status == 404
        assert "gpuwarden_score_unsaved_rows 1.0" in text
        assert "gpuwarden_score_store_available 0.0" in text
        assert 'gpuwarden_connections{listener="ops"} 1.0' in text

    assert await served(path, during, ("ops", "127.0.0.1:0")) == EXIT_FAULT


async def test_a_file_in_use_and_a_port_in_use_end_it(tmp_path: Path, written: io.StringIO) -> None:
    lock = FileLock(tmp_path / "s.db")
    lock.take()
    assert await served(tmp_path / "s.db", nothing) == EXIT_FAULT
    assert "is in use by another process" in written.getvalue()
    lock.release()

    async def during(url: str) -> None:
        for key in ("listen", "ops"):
            port = (key, url.removeprefix("http://"))
            assert await served(tmp_path / "other.db", nothing, port) == EXIT_FAULT

    assert await served(tmp_path / "s.db", during) == EXIT_OK
    assert "listen: " in written.getvalue()
