"""The store on NodeEnrollment objects: the contract, replicas, and every way it can fail."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.fleet.enrollment import (
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
)
from controller.kube.api.cache import Pace
from controller.kube.objects.enrollments import (
    FINALIZER,
    KubernetesEnrollmentStore,
    enrollment_object,
)
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.contracts.enrollment_store import FULL, RELEASED, EnrollmentStoreContract
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually
from tests.fakes.running_controller import MovableClock

COLLECTION = "nodeenrollments"
_SECOND = 1_000_000_000
Opened = Callable[..., contextlib.AbstractAsyncContextManager[KubernetesEnrollmentStore]]


@pytest.fixture
def opened(server: FakeApiServer, tmp_path: Path) -> Opened:
    @contextlib.asynccontextmanager
    async def opening(
        *,
        clock: Clock = SystemClock(),  # noqa: B008 -- has no state
        silence_s: float = 20.0,
        first_read_s: float = 10.0,
    ) -> AsyncIterator[KubernetesEnrollmentStore]:
        api, transport = api_client(in_cluster(tmp_path / "sa", server), clock, page_objects=100)
        store = KubernetesEnrollmentStore(
            api,
            clock=clock,
            instruments=Instruments(Process.CONTROLLER, "test"),
            stale_after_ns=60 * _SECOND,
            pace=Pace(watch_s=30, silence_s=silence_s, pause_factor=0.02),
            jitter=lambda: 0.5,
            first_read_s=first_read_s,
        )
        task = asyncio.create_task(store.watcher.follow())
        try:
            yield store
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await transport.close()

    return opening


async def until(store: KubernetesEnrollmentStore, record: EnrollmentRecord) -> None:
    async def shown() -> bool | None:
        return store.snapshot().records.get(record.node) == record or None

    await eventually(shown, f"{record} is known")


class TestKubernetesEnrollmentStore(EnrollmentStoreContract):
    @pytest.fixture
    async def store(self, opened: Opened) -> AsyncIterator[EnrollmentStore]:
        async with opened() as store:
            await store.load()
            yield store


class TestReplicas:
    async def test_what_one_writes_the_other_sees(self, opened: Opened) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            assert await here.create_if_absent(FULL)
            await until(there, FULL)
            released = RELEASED
            assert await there.compare_and_set(FULL, released)
            await until(here, released)

    async def test_of_all_replicas_one_creates_and_all_know_what(self, opened: Opened) -> None:
        records = [EnrollmentRecord("gpu-1", instance=f"{n:032x}") for n in range(3)]
        async with opened() as a, opened() as b, opened() as c:
            await asyncio.gather(*(x.load() for x in (a, b, c)))
            won = await asyncio.gather(
                *(s.create_if_absent(r) for s, r in zip((a, b, c), records, strict=True))
            )
            assert won.count(True) == 1
            winner = records[won.index(True)]
            assert [x.snapshot().records["gpu-1"] for x in (a, b, c)] == [winner] * 3

    async def test_a_write_from_an_old_record_loses_and_shows_the_new_one(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        """The loser's watch has told it nothing yet."""
        async with opened() as here, opened() as there:
            await here.load()
            await here.create_if_absent(FULL)
            await there.load()
            await until(there, FULL)
            server.are_watches_silent = True
            denied = replace(FULL, denial=QuarantineEntry("X", "why", "who", 1))
            assert await here.compare_and_set(FULL, denied)
            assert there.snapshot().records["gpu-1"] == FULL
            assert not await there.compare_and_set(FULL, RELEASED)
            assert there.snapshot().records["gpu-1"] == denied

    async def test_a_change_of_metadata_alone_does_not_lose(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.create_if_absent(FULL)
            await until(store, FULL)
            server.are_watches_silent = True
            touched = server.objects.get(COLLECTION, "gpu-1")
            touched["metadata"]["labels"]["team"] = "blue"
            server.change(COLLECTION, touched)
            assert await store.compare_and_set(FULL, RELEASED)
            kept = server.objects.get(COLLECTION, "gpu-1")
            assert kept["metadata"]["labels"]["team"] == "blue"
            assert kept["metadata"]["finalizers"] == [FINALIZER]


class TestDeletion:
    async def test_an_ordinary_delete_changes_nothing(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.create_if_absent(FULL)
            server.delete(COLLECTION, "gpu-1")
            assert server.objects.get(COLLECTION, "gpu-1")["metadata"]["deletionTimestamp"]
            assert await store.compare_and_set(FULL, RELEASED)

    async def test_what_is_deleted_by_force_stays_in_force_and_is_written_again(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.create_if_absent(FULL)
            await _delete_by_force(server)

            async def repaired() -> bool | None:
                assert (await store.load()).records["gpu-1"] == FULL
                return "gpu-1" in server.objects.all(COLLECTION) or None

            await eventually(repaired, "the object is back")
            assert server.objects.get(COLLECTION, "gpu-1")["spec"]["denial"]["actor"]

    async def test_a_change_of_what_is_gone_creates_it(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.create_if_absent(FULL)
            await until(store, FULL)
            server.are_watches_silent = True
            await _delete_by_force(server)
            changed = RELEASED
            assert await store.compare_and_set(FULL, changed)
            assert server.objects.get(COLLECTION, "gpu-1")["spec"]["gpus"]
            assert store.snapshot().records["gpu-1"] == changed

    async def test_many_are_read_at_once(self, server: FakeApiServer, opened: Opened) -> None:
        records = [EnrollmentRecord(f"n-{n}", gpus=(EnrolledGpu(f"GPU-{n}"),)) for n in range(250)]
        for record in records:
            server.create(COLLECTION, enrollment_object(record))
        async with opened() as store:
            assert dict((await store.load()).records) == {x.node: x for x in records}
            assert store.snapshot().claims["GPU-7"][0].node == "n-7"


class TestTrouble:
    async def test_without_a_server_it_says_so(self, server: FakeApiServer, opened: Opened) -> None:
        await server.stop()
        async with opened(first_read_s=0.2) as store:
            with pytest.raises(EnrollmentUnavailableError, match="not read yet: no answer"):
                await store.load()
            assert store.snapshot().fresh_until_ns == 0
            await server.start()

            async def read() -> bool | None:
                with contextlib.suppress(EnrollmentUnavailableError):
                    return store.snapshot() == await store.load() or None
                return None

            await eventually(read, "it can be read")

    async def test_a_server_that_is_gone_makes_it_stale_and_unwritable(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        clock = MovableClock()
        async with opened(clock=clock) as store:
            await store.create_if_absent(FULL)
            await server.stop()
            clock.ahead_ns = 61 * _SECOND
            with pytest.raises(EnrollmentUnavailableError, match="not confirmed for too long"):
                await store.load()
            assert store.snapshot().records["gpu-1"] == FULL
            assert store.snapshot().fresh_until_ns <= clock.boottime_ns()
            with pytest.raises(EnrollmentUnavailableError, match="gpu-1: no answer"):
                await store.compare_and_set(FULL, RELEASED)
            with pytest.raises(EnrollmentUnavailableError, match="gpu-2: no answer"):
                await store.create_if_absent(replace(FULL, node="gpu-2"))

    async def test_too_many_requests_are_waited_for(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            server.fail_next(429, matching="create", Retry_After="0")
            assert await store.create_if_absent(FULL)

    async def test_a_server_that_goes_on_saying_so_is_left_alone_after_four_attempts(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            for _ in range(4):
                server.fail_next(429, matching="create", Retry_After="0")
            with pytest.raises(EnrollmentUnavailableError, match="429"):
                await store.create_if_absent(FULL)
            assert await store.create_if_absent(FULL)

    async def test_a_refused_write_is_an_error(self, server: FakeApiServer, opened: Opened) -> None:
        async with opened() as store:
            await store.load()
            server.fail_next(422, matching="create")
            with pytest.raises(EnrollmentUnavailableError, match="422"):
                await store.create_if_absent(FULL)
            assert dict(store.snapshot().records) == {}

    async def test_an_object_of_before_a_release_had_a_name_is_read_and_kept(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        """`liftedBy` is younger than `lifted`."""
        assert FULL.denial is not None
        spec = {"nodeUid": "uid-1", "lifted": "2027-01-15T08:00:00.000000007Z"}
        server.create(COLLECTION, {"metadata": {"name": "gpu-1"}, "spec": spec})
        async with opened() as store:
            old = (await store.load()).records["gpu-1"]
            assert (old.lifted_ns, old.lifted_by) == (1_800_000_000_000_000_007, None)
            assert await store.compare_and_set(old, old.answered_by("1" * 32))
            changed = server.objects.get(COLLECTION, "gpu-1")["spec"]
            assert changed == spec | {"instance": "1" * 32}
            again = old.answered_by("1" * 32).denied(FULL.denial)
            assert await store.compare_and_set(old.answered_by("1" * 32), again)
            assert await store.compare_and_set(again, again.lifted(again.denial, "user ann"))
            assert server.objects.get(COLLECTION, "gpu-1")["spec"]["liftedBy"] == "user ann"

    @pytest.mark.parametrize(
        "spec",
        [
            {"gpus": [{}]},
            {"gpus": "none"},
            {"of-a-newer-version": 1},
            {"denial": {"code": "X", "reason": "", "actor": "", "time": "yesterday"}},
        ],
    )
    async def test_an_object_that_cannot_be_read_stops_the_store(
        self, server: FakeApiServer, opened: Opened, spec: dict[str, object]
    ) -> None:
        server.create(COLLECTION, {"metadata": {"name": "gpu-1"}, "spec": spec})
        async with opened(first_read_s=0.3) as store:

            async def told() -> bool | None:
                with pytest.raises(EnrollmentUnavailableError, match="not read yet") as found:
                    await store.load()
                return "an object that cannot be read" in str(found.value) or None

            await eventually(told, "why it cannot be read")

    async def test_an_answer_that_cannot_be_read_is_an_error(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            server.fail_next(201, matching="create", body=json.dumps({}).encode())
            with pytest.raises(EnrollmentUnavailableError, match="gpu-1"):
                await store.create_if_absent(FULL)


async def _delete_by_force(server: FakeApiServer) -> None:
    held = server.objects.get(COLLECTION, "gpu-1")
    held["metadata"]["finalizers"] = []
    server.change(COLLECTION, held)
    server.delete(COLLECTION, "gpu-1")
