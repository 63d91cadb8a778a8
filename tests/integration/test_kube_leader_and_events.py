"""Leading and telling, against an API server over HTTPS."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.kube.api.client import ApiClient
from controller.kube.api.leader_election import Leadership, Terms
from controller.kube.pods.events import REPEAT_NS, EventRecorder, Notice, Regarding, Severity
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import eventually

NOTICE = Notice(
    Regarding("Node", "n", "u"), "NodeQuarantined", "Quarantine", Severity.WARNING, "", "why"
)


@pytest.fixture
async def api(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    yield api
    await transport.close()


@pytest.fixture
async def run(api: ApiClient) -> AsyncIterator[Callable[[str, FakeClock], Leadership]]:
    tasks = []

    def begin(name: str, clock: FakeClock) -> Leadership:
        made = Leadership(
            api,
            namespace="gpuwarden",
            identity=name,
            clock=clock,
            instruments=Instruments(Process.CONTROLLER, "test"),
            jitter=lambda: 0.0,
            terms=Terms(retry_s=0.02),
        )
        tasks.append(asyncio.create_task(made.follow(), name=name))
        return made

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def leads(candidate: Leadership, *, wanted: bool = True) -> None:
    async def look() -> bool | None:
        return candidate.leads() is wanted or None

    await eventually(look, f"leads: {wanted}")


class TestLeadership:
    async def test_the_second_waits_until_the_first_gives_back(
        self, server: FakeApiServer, run: Callable[[str, FakeClock], Leadership]
    ) -> None:
        clock = FakeClock()
        first = run("a", clock)
        await leads(first)
        second = run("b", clock)
        asked = len(server.requests)

        async def both_looked() -> bool | None:
            return len(server.requests) > asked + 6 or None

        await eventually(both_looked, "both have looked")
        assert first.leads()
        assert not second.leads()
        for task in asyncio.all_tasks():
            if task.get_name() == "a":
                task.cancel()
        await first.release()
        assert not first.leads()
        await leads(second)
        await first.release()
        assert second.leads()

    async def test_without_the_server_it_stops_leading_in_time(
        self, server: FakeApiServer, run: Callable[[str, FakeClock], Leadership]
    ) -> None:
        clock = FakeClock()
        leader = run("a", clock)
        await leads(leader)
        await server.stop()
        assert leader.leads()
        clock.advance(10)
        assert not leader.leads()
        await leader.release()

    async def test_who_writes_second_does_not_lead(
        self, server: FakeApiServer, run: Callable[[str, FakeClock], Leadership]
    ) -> None:
        server.fail_next(409, matching="create")
        server.fail_next(409, matching="patch")
        leader = run("a", FakeClock())
        await leads(leader)
        assert [verb for verb, _ in server.requests].count("create") == 2


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def leading() -> list[bool]:
    return [True]


@pytest.fixture
def recorder(api: ApiClient, clock: FakeClock, leading: list[bool]) -> EventRecorder:
    numbers = itertools.count()
    return EventRecorder(
        api,
        reporter="controller-0",
        clock=clock,
        instruments=Instruments(Process.CONTROLLER, "test"),
        leads=lambda: leading[0],
        draw_name=lambda: f"{next(numbers):x}",
    )


class TestEvents:
    async def test_they_are_written_while_the_process_runs(
        self, server: FakeApiServer, recorder: EventRecorder
    ) -> None:
        task = asyncio.create_task(recorder.follow(0.01))
        recorder.say([NOTICE])

        async def there() -> dict[str, object] | None:
            return server.objects.all("events").get("default/n.0")

        assert (await eventually(there, "an event"))["reason"] == "NodeQuarantined"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def test_what_repeats_is_counted(
        self, server: FakeApiServer, recorder: EventRecorder, clock: FakeClock
    ) -> None:
        recorder.say([NOTICE])
        await recorder.write_due()
        recorder.say([NOTICE, replace(NOTICE, note="newest")])
        await recorder.write_due()
        assert "series" not in server.objects.all("events")["default/n.0"]
        clock.advance(REPEAT_NS / 1e9)
        await recorder.write_due()
        event = server.objects.all("events")["default/n.0"]
        assert event["series"]["count"] == 3
        assert event["message"].endswith("newest")

    async def test_who_does_not_lead_says_nothing(
        self, server: FakeApiServer, recorder: EventRecorder, leading: list[bool]
    ) -> None:
        recorder.say([NOTICE])
        leading[0] = False
        recorder.say([NOTICE])
        await recorder.write_due()
        leading[0] = True
        await recorder.write_due()
        assert server.requests == []

    async def test_a_server_that_refuses_is_not_asked_for_ever(
        self, server: FakeApiServer, recorder: EventRecorder
    ) -> None:
        for _ in range(10):
            server.fail_next(403)
        recorder.say([NOTICE])
        for _ in range(5):
            await recorder.write_due()
        assert len(server.requests) == 3
