"""The ledger on GPUReservation objects: the contract, replicas, and every way it can fail."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controller.kube.api.cache import Pace
from controller.kube.objects.reservations import (
    FINALIZER,
    KeptReservation,
    KubernetesLedgerStore,
    Repaired,
    reservation_object,
)
from controller.kube.objects.store import PendingRequest
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.store import Entry, LedgerStore, LedgerUnavailableError
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.builders.ledger import OTHER_POD, holder, record
from tests.contracts.ledger_store import ID, LedgerStoreContract, entry
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually
from tests.hang import HANG_S

COLLECTION = "gpureservations"
T = TypeVar("T")
_SECOND = 1_000_000_000
Opened = Callable[..., contextlib.AbstractAsyncContextManager[KubernetesLedgerStore]]


@pytest.fixture
def opened(server: FakeApiServer, tmp_path: Path) -> Opened:
    @contextlib.asynccontextmanager
    async def opening(
        *, stale_s: float = 60.0, first_read_s: float = 10.0, late_watch_s: float = HANG_S
    ) -> AsyncIterator[KubernetesLedgerStore]:
        clock = SystemClock()
        api, transport = api_client(in_cluster(tmp_path / "sa", server), clock, page_objects=100)
        store = KubernetesLedgerStore(
            api,
            clock=clock,
            instruments=Instruments(Process.CONTROLLER, "test"),
            stale_after_ns=int(stale_s * _SECOND),
            pace=Pace(watch_s=30, silence_s=20.0, pause_factor=0.02),
            jitter=lambda: 0.5,
            first_read_s=first_read_s,
            late_watch_s=late_watch_s,
        )
        task = asyncio.create_task(store.watcher.follow())
        try:
            yield store
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await transport.close()

    return opening


class TestKubernetesLedgerStore(LedgerStoreContract):
    @pytest.fixture
    async def store(self, opened: Opened) -> AsyncIterator[LedgerStore]:
        async with opened() as store:
            await store.load()
            yield store


def every(kind: type[T]) -> list[T]:
    """All that there are in this process."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) is kind]


async def until(store: LedgerStore, wanted: GpuRecord | None) -> None:
    async def shown() -> bool | None:
        found = store.snapshot().get("GPU-a")
        return (None if found is None else found.record) == wanted or None

    await eventually(shown, f"{wanted} is known")


async def closed(store: LedgerStore) -> bool:
    first = entry(store)
    return await store.compare_and_set(first, first.record.moved(ID, HolderState.EXPIRED))


def stored(server: FakeApiServer) -> dict[str, Any]:
    return server.objects.get(COLLECTION, "gpu-a")


async def waits(store: KubernetesLedgerStore, asking: asyncio.Task[Any]) -> None:
    """The answer is there, and `store` waits for what the watch says."""

    async def waiting() -> bool | None:
        return asking.done() or bool(store._objects._news._waiters) or None

    await eventually(waiting, "the answer is there")
    assert not asking.done()


def remove_by_force(server: FakeApiServer) -> None:
    held = stored(server)
    held["metadata"]["finalizers"] = []
    server.change(COLLECTION, held)
    server.delete(COLLECTION, "gpu-a")


class TestMemory:
    async def test_nothing_of_a_reservation_is_kept_when_it_is_over(
        self, opened: Opened, server: FakeApiServer
    ) -> None:
        """A MIG device gets another UUID whenever a GPU is partitioned: there is no last one."""
        before: list[object] = [*every(KeptReservation)]
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            before += [*every(asyncio.Lock), *every(PendingRequest)]
            for gpu in ("GPU-a", "GPU-b", "GPU-c"):
                assert await here.compare_and_set(None, record(holder(gpu), gpu=gpu))
                first = here.snapshot().get(gpu)
                assert first is not None
                over = first.record.moved(ID, HolderState.EXPIRED)
                assert await here.compare_and_set(first, over)
                assert not await there.compare_and_set(first, over)
            assert await here.compare_and_set(None, record(holder("GPU-d"), gpu="GPU-d"))

            def since(kind: type[T]) -> list[T]:
                return [x for x in every(kind) if all(x is not y for y in before)]

            async def forgotten() -> bool | None:
                kept = {x.entry.record.key for x in since(KeptReservation)}
                left = [*since(asyncio.Lock), *since(PendingRequest)]
                return (kept, left) == ({"gpu-d"}, []) or None

            await eventually(forgotten, "only the live one is kept")
            assert set(server.objects.all(COLLECTION)) == {"gpu-d"}


class TestReplicas:
    async def test_what_one_writes_the_other_sees(self, opened: Opened) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            assert await here.compare_and_set(None, record())
            await until(there, record())
            assert entry(here) == entry(there)
            confirmed = record().moved(ID, HolderState.CONFIRMED)
            assert await there.compare_and_set(entry(there), confirmed)
            await until(here, confirmed)
            for state in (HolderState.RELEASING, HolderState.RELEASED):
                first = entry(here)
                assert await here.compare_and_set(first, first.record.moved(ID, state))
            await until(there, None)
            await asyncio.gather(here.load(), there.load())
            assert not here.repaired + there.repaired

    async def test_of_all_replicas_one_creates_and_all_know_what(self, opened: Opened) -> None:
        async with opened() as a, opened() as b, opened() as c:
            await asyncio.gather(*(x.load() for x in (a, b, c)))
            mine = [record(holder(answers=n)) for n in (1, 2, 3)]
            won = await asyncio.gather(
                *(s.compare_and_set(None, r) for s, r in zip((a, b, c), mine, strict=True))
            )
            assert won.count(True) == 1
            winner = mine[won.index(True)]
            assert [entry(x).record for x in (a, b, c)] == [winner] * 3

    async def test_a_replica_that_heard_nothing_writes_nothing_old(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            await here.compare_and_set(None, record())
            await until(there, record())
            server.are_watches_silent = True
            first = entry(there)
            assert await closed(here)
            assert await here.compare_and_set(None, record(holder(pod=OTHER_POD)))
            assert not await there.compare_and_set(
                first, first.record.moved(ID, HolderState.EXPIRED)
            )
            assert entry(there).record == record(holder(pod=OTHER_POD))

    async def test_what_others_do_to_the_metadata_does_not_lose(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            first = entry(store)
            touched = stored(server)
            touched["metadata"]["labels"]["team"] = "blue"
            server.change(COLLECTION, touched)
            confirmed = first.record.moved(ID, HolderState.CONFIRMED)
            assert await store.compare_and_set(first, confirmed)
            assert stored(server)["metadata"]["labels"]["team"] == "blue"
            assert stored(server)["metadata"]["finalizers"] == [FINALIZER]


class TestTheEnd:
    async def test_the_object_goes(self, server: FakeApiServer, opened: Opened) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            assert await closed(store)
            assert server.objects.all(COLLECTION) == {}
            assert await store.load() == store.snapshot()
            assert server.objects.all(COLLECTION) == {}

    async def test_an_end_that_was_cut_short_is_finished_by_whoever_comes(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            await here.compare_and_set(None, record())
            server.fail_next(503, matching="delete")
            assert await closed(here)
            assert stored(server)["spec"]["holders"][0]["state"] == "Expired"
            assert here.snapshot().get("GPU-a") is None
            assert await there.compare_and_set(None, record(holder(pod=OTHER_POD)))
            await until(here, record(holder(pod=OTHER_POD)))

    async def test_or_by_the_next_load(self, server: FakeApiServer, opened: Opened) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            server.fail_next(503, matching="delete")
            assert await closed(store)
            await store.load()
            assert server.objects.all(COLLECTION) == {}

    async def test_a_lost_answer_to_the_end_leaves_it_ended(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            server.fail_next(503, matching="patch")
            with pytest.raises(LedgerUnavailableError, match="gpu-a"):
                await closed(store)
            assert await store.read("GPU-a") == entry(store)
            assert await closed(store)


class TestAnEndThatIsShownLate:
    """An answer says that there is no object before the watch shows how another ended it."""

    @pytest.mark.parametrize(
        ("ask", "answer"),
        [
            (lambda store, _: store.read("GPU-a"), None),
            (
                lambda store, first: store.compare_and_set(
                    first, first.record.moved(ID, HolderState.CONFIRMED)
                ),
                False,
            ),
            (lambda store, _: store.show(), 1),
        ],
        ids=["read", "change", "show"],
    )
    async def test_it_stays_ended(
        self,
        server: FakeApiServer,
        opened: Opened,
        ask: Callable[[KubernetesLedgerStore, Entry], Coroutine[Any, Any, object]],
        answer: object,
    ) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            await here.compare_and_set(None, record())
            await until(there, record())
            with server.late_watches():
                assert await closed(here)
                asking = asyncio.create_task(ask(there, entry(there)))
                await waits(there, asking)
            assert await asking == answer
            await there.load()
            assert there.snapshot().get("GPU-a") is None
            assert server.objects.all(COLLECTION) == {}
            assert not here.repaired + there.repaired
            assert there.take_replaced() == ()

    async def test_nobody_waits_for_ever(self, server: FakeApiServer, opened: Opened) -> None:
        async with opened() as here, opened(late_watch_s=0.01) as there:
            await asyncio.gather(here.load(), there.load())
            await here.compare_and_set(None, record())
            await until(there, record())
            first = entry(there)
            with server.late_watches():
                assert await closed(here)
                for _ in range(2):
                    with pytest.raises(LedgerUnavailableError, match="has not shown yet"):
                        await there.read("GPU-a")
                with pytest.raises(LedgerUnavailableError, match="has not shown yet"):
                    await closed(there)
                with pytest.raises(LedgerUnavailableError, match="has not shown yet"):
                    await there.show()
                assert (await there.load()).get("GPU-a") == first
                assert server.objects.all(COLLECTION) == {}
            await until(there, None)
            assert await there.read("GPU-a") is None
            await there.load()
            assert server.objects.all(COLLECTION) == {}
            assert not here.repaired + there.repaired

    async def test_whoever_waits_may_go(self, server: FakeApiServer, opened: Opened) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            await here.compare_and_set(None, record())
            await until(there, record())
            with server.late_watches():
                assert await closed(here)
                asking = asyncio.create_task(there.read("GPU-a"))
                await waits(there, asking)
                asking.cancel()
                await asyncio.wait({asking})
                assert asking.cancelled()
                assert there._objects._objects._pending == set()
                assert not there._objects.turn("gpu-a").locked()
            assert await there.read("GPU-a") is None


class TestDeletion:
    async def test_an_ordinary_delete_frees_nothing(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            server.delete(COLLECTION, "gpu-a")
            assert stored(server)["metadata"]["deletionTimestamp"]
            assert not await store.compare_and_set(None, record(holder(pod=OTHER_POD)))
            first = entry(store)
            confirmed = first.record.moved(ID, HolderState.CONFIRMED)
            assert await store.compare_and_set(first, confirmed)
            await store.load()
            assert entry(store).record == confirmed

    async def test_and_the_record_ends_when_it_would_have(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as here, opened() as there:
            await asyncio.gather(here.load(), there.load())
            await here.compare_and_set(None, record())
            server.delete(COLLECTION, "gpu-a")
            assert await closed(here)
            assert server.objects.all(COLLECTION) == {}
            await until(there, None)
            await asyncio.gather(here.load(), there.load())
            assert not here.repaired + there.repaired
            assert await here.compare_and_set(None, record())
            await until(there, record())

    async def test_what_is_removed_by_force_stays_held_and_is_written_again(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            first = entry(store)
            remove_by_force(server)

            async def repaired() -> bool | None:
                assert (await store.load()).entries["gpu-a"].record == record()
                return "gpu-a" in server.objects.all(COLLECTION) or None

            await eventually(repaired, "the object is back")
            assert store.repaired == {Repaired.OBJECT: 1}
            assert entry(store).revision != first.revision

    @pytest.mark.parametrize("old_is_known", [True, False])
    async def test_nobody_gets_it_meanwhile(
        self, server: FakeApiServer, opened: Opened, old_is_known: bool
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            first = entry(store)
            await until(store, record())
            remove_by_force(server)
            if old_is_known:
                confirmed = first.record.moved(ID, HolderState.CONFIRMED)
                assert not await store.compare_and_set(first, confirmed)
                await store.load()
            else:
                assert await store.read("GPU-a") == first
                theirs = record(holder(pod=OTHER_POD))
                assert not await store.compare_and_set(None, theirs)
            assert entry(store).record == record()
            assert stored(server)["metadata"]["finalizers"] == [FINALIZER]
            assert store.repaired == {Repaired.OBJECT: 1}

    async def test_nor_before_the_watch_shows_it(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        """It might have ended: until then nobody can know, and it is written again after that."""
        async with opened(late_watch_s=0.01) as store:
            await store.load()
            await store.compare_and_set(None, record())
            first = entry(store)
            await until(store, record())
            with server.late_watches():
                remove_by_force(server)
                with pytest.raises(LedgerUnavailableError, match="has not shown yet"):
                    await store.read("GPU-a")
                confirmed = first.record.moved(ID, HolderState.CONFIRMED)
                with pytest.raises(LedgerUnavailableError, match="has not shown yet"):
                    await store.compare_and_set(first, confirmed)
                theirs = record(holder(pod=OTHER_POD))
                assert not await store.compare_and_set(None, theirs)
                assert (await store.load()).get("GPU-a") == first
                assert server.objects.all(COLLECTION) == {}

            async def repaired() -> bool | None:
                await store.load()
                return "gpu-a" in server.objects.all(COLLECTION) or None

            await eventually(repaired, "the object is back")
            assert entry(store).record == record()

    async def test_nor_where_a_list_is_the_first_to_show_it(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            first = entry(store)
            await until(store, record())
            server.are_watches_silent = True
            remove_by_force(server)
            asking = asyncio.create_task(store.read("GPU-a"))
            await waits(store, asking)
            server.are_watches_silent = False
            server.end_watches_with(410, "Expired")
            assert await asking == first
            await store.load()
            assert stored(server)["spec"]["holders"][0]["state"] == "Proposed"

    async def test_a_finalizer_that_was_taken_off_is_put_back(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            bare = stored(server)
            bare["metadata"]["finalizers"] = ["theirs"]
            server.change(COLLECTION, bare)

            async def held() -> bool | None:
                await store.load()
                return stored(server)["metadata"]["finalizers"] == ["theirs", FINALIZER] or None

            await eventually(held, "the finalizer is back")
            assert store.repaired == {Repaired.FINALIZER: 1}


class TestStatus:
    async def test_it_is_shown_once_and_changes_nothing(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            await store.compare_and_set(None, record())
            first = entry(store)
            assert await store.show() == 1
            assert stored(server)["status"] == {
                "state": "Proposed",
                "holders": 1,
                "pod": "team-a/train-0",
                "observedVersion": 1,
            }
            assert await store.show() == 0
            assert entry(store) == first
            confirmed = first.record.moved(ID, HolderState.CONFIRMED)
            assert await store.compare_and_set(first, confirmed)
            assert stored(server)["status"]["state"] == "Proposed"
            assert await store.show() == 1
            assert stored(server)["status"]["state"] == "Confirmed"
            assert stored(server)["spec"]["holders"][0]["state"] == "Confirmed"


class TestTrouble:
    async def test_without_a_server_it_says_so(self, server: FakeApiServer, opened: Opened) -> None:
        await server.stop()
        async with opened(first_read_s=0.2) as store:
            with pytest.raises(LedgerUnavailableError, match="not read yet"):
                await store.load()
            assert store.snapshot().fresh_until_ns == 0
            with pytest.raises(LedgerUnavailableError, match="gpu-a: no answer"):
                await store.compare_and_set(None, record())
            with pytest.raises(LedgerUnavailableError, match="gpu-a: no answer"):
                await store.read("GPU-a")

    @pytest.mark.parametrize("change", ["name", "state", "field", "holders"])
    async def test_an_object_that_is_no_record_stops_the_store(
        self, server: FakeApiServer, opened: Opened, change: str
    ) -> None:
        body = reservation_object(record())
        if change == "name":
            body["metadata"]["name"] = "gpu-b"
        elif change == "state":
            body["spec"]["holders"][0]["state"] = "Free"
        elif change == "field":
            body["spec"]["newer"] = 1
        else:
            body["spec"]["holders"] = []
        server.create(COLLECTION, body)
        async with opened(first_read_s=0.3) as store:

            async def told() -> bool | None:
                with pytest.raises(LedgerUnavailableError, match="not read yet") as found:
                    await store.load()
                return "an object that cannot be read" in str(found.value) or None

            await eventually(told, "why it cannot be read")

    async def test_an_answer_that_cannot_be_read_is_an_error(
        self, server: FakeApiServer, opened: Opened
    ) -> None:
        async with opened() as store:
            await store.load()
            server.fail_next(201, matching="create", body=json.dumps({}).encode())
            with pytest.raises(LedgerUnavailableError, match="gpu-a"):
                await store.compare_and_set(None, record())

    async def test_many_are_read_at_once(self, server: FakeApiServer, opened: Opened) -> None:
        names = [f"GPU-{n:03}" for n in range(250)]
        for name in names:
            server.create(COLLECTION, reservation_object(record(holder(name), gpu=name)))
        async with opened() as store:
            snapshot = await store.load()
            assert snapshot.by_pod["uid-0"] == tuple(x.lower() for x in names)


async def test_a_record_whose_place_another_took_unseen_is_reported(
    opened: Opened, server: FakeApiServer
) -> None:
    """A list shows another object under the name: the API server's history went back."""
    async with opened() as store:
        await store.load()
        assert await store.compare_and_set(None, record())
        mine = entry(store)
        await until(store, record())
        other = reservation_object(record(holder(pod=OTHER_POD)))
        server.end_watches_with(410, "Expired")
        remove_by_force(server)
        server.create(COLLECTION, other)
        await until(store, record(holder(pod=OTHER_POD)))
        assert store.take_replaced() == (mine,)
        assert store.take_replaced() == ()


async def test_a_record_that_was_seen_to_end_is_replaced_by_nobody(opened: Opened) -> None:
    async with opened() as here, opened() as there:
        await asyncio.gather(here.load(), there.load())
        assert await here.compare_and_set(None, record())
        await until(there, record())
        assert await closed(here)
        assert await here.compare_and_set(None, record(holder(pod=OTHER_POD)))
        await until(there, record(holder(pod=OTHER_POD)))
        assert (here.take_replaced(), there.take_replaced()) == ((), ())
