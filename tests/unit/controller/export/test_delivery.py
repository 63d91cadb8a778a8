"""Delivery: order of its steps, take-overs, retries, the dead-letter file, health."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tenacity.wait import wait_base, wait_fixed

from controller.export.delivery import FULL_JITTER, batch_name
from controller.export.failures import Cure, DeliveryError
from gpuwarden.audit.record import RecordKind
from gpuwarden.dead_letter_files import Request, request_text
from tests.builders.exported import facts, record, records
from tests.fakes.clock import FakeClock
from tests.fakes.export_world import (
    KilledError,
    MemoryDocuments,
    ObjectSink,
    RecordSink,
    Replica,
    Sink,
    Steps,
)
from tests.hang import HANG_S

FLEET = tuple(facts(number) for number in range(6))
LATER = tuple(facts(number, level="L0") for number in range(3))
DOWN = DeliveryError("connection refused", Cure.TIME)


def delivered(sink: Sink) -> Counter[tuple[str, int, str]]:
    return Counter((x.uuid, x.change, x.level) for x in sink.records)


WANTED = Counter([(x.uuid, 1, x.level) for x in FLEET] + [(x.uuid, 2, x.level) for x in LATER])


async def until_killed(replica: Replica) -> bool:
    try:
        await replica.delivery.round()
    except KilledError:
        return True
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("make", [RecordSink, ObjectSink])
async def test_a_leader_that_dies_at_any_step_loses_and_doubles_nothing(
    make: type[Sink], after: bool, tmp_path: Path
) -> None:
    deaths = 0
    for dies_at in range(1, 100):
        sink, documents = make(), MemoryDocuments()
        first = Replica("a", sink, documents, tmp_path, steps=Steps(dies_at, after=after))
        second = Replica("b", sink, documents, tmp_path, leads=False)
        for replica in (first, second):
            replica.note(*FLEET, *LATER)
        died = await until_killed(first)
        second.leads = True
        await second.delivery.round()
        await second.delivery.round()
        assert delivered(sink) == WANTED, f"killed {'after' if after else 'before'} step {dies_at}"
        deaths += died
        if not died:
            break
    # Three batches of four, each sent and noted; a bucket has a name noted for each besides.
    assert deaths >= 6


@pytest.mark.parametrize("leads_first", [False, True], ids=["evidence first", "leads first"])
async def test_a_restarted_controller_sends_nothing_again(
    leads_first: bool, tmp_path: Path
) -> None:
    sink, documents = ObjectSink(), MemoryDocuments()
    first = Replica("a", sink, documents, tmp_path)
    first.note(*FLEET)
    await first.delivery.round()
    second = Replica("a", sink, documents, tmp_path)
    if leads_first:
        await second.delivery.round()
    second.note(*FLEET)
    await second.delivery.round()
    assert second.delivery.waiting == 0
    assert second.exporter.batches == []
    assert len(sink.records) == len(FLEET)


async def test_a_leader_that_was_only_paused_cannot_double_a_batch(tmp_path: Path) -> None:
    """Its request is under way while another replica takes over, and arrives after that one's."""
    sink, documents = ObjectSink(), MemoryDocuments()
    old, new = (Replica(name, sink, documents, tmp_path) for name in ("a", "b"))
    for replica in (old, new):
        replica.note(*FLEET)
    old.exporter.held = asyncio.Event()
    paused = asyncio.create_task(old.delivery.round())
    await old.exporter.asked.wait()
    await new.delivery.round()
    old.exporter.held.set()
    await paused
    await old.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)


async def test_a_leader_that_was_only_paused_before_it_notes_a_name_stops(tmp_path: Path) -> None:
    sink, documents = ObjectSink(), MemoryDocuments()
    old, new = (Replica(name, sink, documents, tmp_path) for name in ("a", "b"))
    await old.delivery.round()  # it leads, and has read everything
    for replica in (old, new):
        replica.note(*FLEET)
    await new.delivery.round()
    await old.delivery.round()
    assert old.exporter.batches == []
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)


async def test_who_leads_again_goes_on_where_another_came_meanwhile(tmp_path: Path) -> None:
    """It was away from the agents, too: of what was delivered meanwhile it saw the last only."""
    sink, documents = RecordSink(), MemoryDocuments()
    first, other = (Replica(name, sink, documents, tmp_path) for name in ("a", "b"))
    last = tuple(facts(number, level="L3") for number in range(3))
    first.note(*FLEET)
    await first.delivery.round()
    first.leads = False
    await first.delivery.round()
    other.note(*FLEET, *LATER, *last)
    await other.delivery.round()
    first.note(*last)
    first.leads = True
    await first.delivery.round()
    assert delivered(sink) == WANTED + Counter((x.uuid, 3, x.level) for x in last)


async def test_only_the_leader_sends(tmp_path: Path) -> None:
    sink, documents = RecordSink(), MemoryDocuments()
    follower = Replica("b", sink, documents, tmp_path, leads=False)
    follower.note(*FLEET)
    await follower.delivery.round()
    assert (follower.exporter.batches, documents.writes) == ([], [])
    assert follower.value("gpuwarden_export_waiting_records") == len(FLEET)


async def test_a_follower_drops_what_it_sees_delivered(tmp_path: Path) -> None:
    sink, documents = RecordSink(), MemoryDocuments()
    leader = Replica("a", sink, documents, tmp_path)
    follower = Replica("b", sink, documents, tmp_path, leads=False)
    for replica in (leader, follower):
        replica.note(*FLEET)
    await leader.delivery.round()
    await follower.delivery.round()
    assert follower.value("gpuwarden_export_waiting_records") == 0


@pytest.mark.parametrize("error", [OverflowError("s3cret"), ValueError("s3cret"), KeyError("k")])
async def test_what_a_library_raises_is_a_failed_attempt_and_ends_nothing(
    error: Exception, tmp_path: Path
) -> None:
    sink = RecordSink()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path)
    replica.note(*FLEET)
    replica.exporter.failures = [error, DOWN]
    await replica.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)
    assert replica.value("gpuid_export_failure_total") == 2


async def test_what_a_library_raises_at_a_check_is_trouble_without_its_text(
    tmp_path: Path,
) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    replica.exporter.failures = [ValueError("s3cret")]
    await replica.delivery.round()
    warning = replica.delivery.warning()
    assert warning is not None
    assert "ValueError" in warning
    assert "s3cret" not in warning


async def test_a_leader_that_loses_its_lease_between_attempts_stops(tmp_path: Path) -> None:
    sink = RecordSink()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path)
    replica.note(*FLEET)

    def lose(_batch: object) -> DeliveryError:
        replica.leads = False
        return DOWN

    replica.exporter.refuses = lose
    await replica.delivery.round()
    assert len(replica.exporter.batches) == 1
    assert replica.dead_letters.count() == 0


# --- retries


async def test_an_outage_is_counted_and_every_row_arrives_once(tmp_path: Path) -> None:
    sink = RecordSink()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path, batch=100)
    replica.note(*FLEET)
    replica.exporter.failures = [DOWN, DOWN]
    await replica.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)
    assert replica.value("gpuid_export_failure_total") == 2
    assert replica.value("gpuid_export_success_total") == 1
    assert replica.value("gpuwarden_export_records_total", result="delivered") == len(FLEET)
    assert {x.key for x in replica.exporter.batches} == {replica.exporter.batches[0].key}


def test_pauses_have_full_jitter_up_to_a_minute() -> None:
    assert (FULL_JITTER.multiplier, FULL_JITTER.max, FULL_JITTER.min) == (1.0, 60.0, 0)
    assert type(FULL_JITTER).__name__ == "wait_random_exponential"


@pytest.mark.parametrize(("asked_s", "wait"), [(0.0, wait_fixed(3)), (7.0, wait_fixed(3))])
async def test_a_server_that_asks_for_time_gets_it(
    asked_s: float, wait: wait_base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path, wait=wait)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(replica.delivery, "_sleep", sleep)
    replica.note(FLEET[0])
    replica.exporter.failures = [DeliveryError("HTTP 429", Cure.TIME, asked_s)]
    await replica.delivery.round()
    assert slept == [asked_s + 3]


async def test_after_the_last_attempt_records_are_kept_in_the_file(tmp_path: Path) -> None:
    sink, documents = RecordSink(), MemoryDocuments()
    replica = Replica("a", sink, documents, tmp_path, attempts=2)
    replica.note(*FLEET)
    replica.exporter.failures = [DOWN, DOWN]
    await replica.delivery.round()
    assert len(sink.records) == 2
    assert replica.dead_letters.count() == 4
    assert replica.value("gpuwarden_export_records_total", result="dead-letter") == 4
    assert replica.value("gpuwarden_export_dead_letter_records") == 4
    successor = Replica("b", sink, documents, tmp_path)
    successor.note(*FLEET)
    await successor.delivery.round()
    assert successor.exporter.batches == []


async def test_one_record_that_is_refused_takes_no_other_with_it(tmp_path: Path) -> None:
    sink = RecordSink()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path, batch=100)
    replica.note(*FLEET)
    bad = FLEET[2].uuid

    def refuse(batch: object) -> DeliveryError | None:
        holds = any(x.uuid == bad for x in batch.records)  # type: ignore[attr-defined]
        return DeliveryError("HTTP 422", Cure.LESS) if holds else None

    replica.exporter.refuses = refuse
    await replica.delivery.round()
    assert {x.uuid for x in sink.records} == {x.uuid for x in FLEET} - {bad}
    assert replica.dead_letters.count() == 1


async def test_what_is_refused_for_good_is_tried_once(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    replica.note(FLEET[0])
    replica.exporter.failures = [DeliveryError("HTTP 401", Cure.NOTHING)]
    await replica.delivery.round()
    assert len(replica.exporter.batches) == 1
    assert replica.dead_letters.count() == 1


async def test_with_a_full_file_everything_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    sink = RecordSink()
    replica = Replica(
        "a", sink, MemoryDocuments(), tmp_path, attempts=1, batch=100, dead_letter_bytes=1000
    )
    replica.note(*FLEET)
    replica.exporter.failures = [DOWN]
    await replica.delivery.round()
    assert replica.dead_letters.count() == 0
    assert "the dead-letter file is full; connection refused" in (replica.delivery.warning() or "")
    await replica.delivery.round()
    assert len(replica.exporter.batches) == 1  # not at once again
    replica.clock.advance(30)
    await replica.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)
    assert replica.delivery.warning() is None


async def test_a_destination_that_hangs_is_given_up(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path, attempts=1, timeout_s=0.01)
    replica.exporter.held = asyncio.Event()
    replica.note(FLEET[0])
    await replica.delivery.round()
    assert replica.dead_letters.count() == 1
    assert "no answer within 0.01 s" in (replica.delivery.warning() or "")


async def test_without_documents_nothing_is_sent(tmp_path: Path) -> None:
    sink, documents = RecordSink(), MemoryDocuments()
    documents.is_down = True
    replica = Replica("a", sink, documents, tmp_path)
    replica.note(*FLEET)
    await replica.delivery.round()
    assert replica.exporter.batches == []
    assert "the API server is down; 6 records waiting" in (replica.delivery.warning() or "")
    documents.is_down = False
    replica.clock.advance(30)
    await replica.delivery.round()
    assert len(sink.records) == len(FLEET)


async def test_a_document_that_is_no_document_stops_and_is_named(tmp_path: Path) -> None:
    documents = MemoryDocuments()
    documents.texts["gpuwarden-export-postgres"] = "[]", 1
    replica = Replica("a", ObjectSink(), documents, tmp_path)
    replica.note(FLEET[0])
    await replica.delivery.round()
    assert replica.exporter.batches == []
    assert "no name of a batch" in (replica.delivery.warning() or "")


# --- health


async def test_an_idle_exporter_asks_once_a_minute(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    for seconds, checks in ((0, 1), (59, 1), (1, 2)):
        replica.clock.advance(seconds)
        await replica.delivery.round()
        assert replica.exporter.checks == checks


async def test_health_is_remembered_until_it_changes(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    replica.exporter.failures = [DOWN]
    await replica.delivery.round()
    replica.clock.advance(12)
    assert replica.delivery.warning() == (
        "export: postgres for 12 s: connection refused; 0 records waiting"
    )
    assert replica.value("gpuwarden_export_healthy") == 0
    replica.clock.advance(60)
    await replica.delivery.round()
    assert replica.delivery.warning() is None
    assert replica.value("gpuwarden_export_healthy") == 1


# --- the end of the process


async def test_what_waits_at_the_end_is_tried_once_more_without_pauses(tmp_path: Path) -> None:
    sink = RecordSink()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path, wait=wait_fixed(3600))
    replica.exporter.failures = [DOWN]
    replica.note(*FLEET)
    following = asyncio.create_task(replica.delivery.follow())
    await replica.exporter.asked.wait()
    replica.note(*LATER)
    await replica.delivery.flush()
    assert delivered(sink) == WANTED
    following.cancel()


async def test_what_does_not_arrive_at_the_end_stays_for_the_next_leader(tmp_path: Path) -> None:
    sink, documents = RecordSink(), MemoryDocuments()
    first = Replica("a", sink, documents, tmp_path, wait=wait_fixed(3600))
    first.exporter.refuses = lambda _batch: DOWN
    first.note(*FLEET)
    following = asyncio.create_task(first.delivery.follow())
    await first.exporter.asked.wait()
    await first.delivery.flush()
    following.cancel()
    assert first.dead_letters.count() == 0
    second = Replica("b", sink, documents, tmp_path)
    second.note(*FLEET)
    await second.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)


async def test_a_process_that_ends_before_it_began_has_nothing_to_wait_for(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    async with asyncio.timeout(HANG_S):
        await replica.delivery.flush()
    assert replica.exporter.batches == []


async def test_close_lets_go_of_the_destination(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    await replica.delivery.close()
    assert replica.exporter.is_closed


# --- replay


async def buried(replica: Replica) -> None:
    replica.exporter.failures = [DOWN] * 6
    replica.note(*FLEET)
    await replica.delivery.round()
    assert replica.dead_letters.count() == len(FLEET)


def ask(folder: Path) -> None:
    text = request_text(Request("local/uid-0", "INC 88"))
    (folder / "postgres.replay.json").write_text(text)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("make", [RecordSink, ObjectSink])
async def test_a_replay_delivers_what_is_in_the_file_once(
    make: type[Sink], leads: bool, tmp_path: Path
) -> None:
    sink = make()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path)
    await buried(replica)
    replica.leads = leads
    ask(tmp_path / "a")
    await replica.delivery.round()
    await replica.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)
    assert replica.dead_letters.count() == 0
    (noted,) = replica.audit.noted
    assert (noted.kind, noted.actor, noted.subject, noted.decision) == (
        RecordKind.EXPORT_REPLAY,
        "local/uid-0",
        "export/postgres",
        "requested",
    )
    assert noted.refs == {"reason": "INC 88", "records": 6}


async def test_a_replay_that_fails_keeps_the_records(tmp_path: Path) -> None:
    sink = RecordSink()
    replica = Replica("a", sink, MemoryDocuments(), tmp_path)
    await buried(replica)
    ask(tmp_path / "a")
    replica.exporter.failures = [DOWN] * 3
    await replica.delivery.round()
    assert len(sink.records) == 2
    assert replica.dead_letters.count() == 4


async def test_a_replay_that_a_crash_broke_off_goes_on(tmp_path: Path) -> None:
    sink, documents = ObjectSink(), MemoryDocuments()
    first = Replica("a", sink, documents, tmp_path)
    await buried(first)
    ask(tmp_path / "a")
    first.steps._dies_at, first.steps._after = first.steps.count + 1, True
    with pytest.raises(KilledError):
        await first.delivery.round()
    second = Replica("a", sink, documents, tmp_path)
    await second.delivery.round()
    assert delivered(sink) == Counter((x.uuid, 1, x.level) for x in FLEET)
    assert second.dead_letters.count() == 0


async def test_a_request_without_a_file_is_recorded_and_sends_nothing(tmp_path: Path) -> None:
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path)
    (tmp_path / "a").mkdir()
    ask(tmp_path / "a")
    await replica.delivery.round()
    assert replica.exporter.batches == []
    assert [x.refs["records"] for x in replica.audit.noted] == [0]


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no folder")
    replica = Replica("a", RecordSink(), MemoryDocuments(), tmp_path, attempts=1)
    replica.exporter.failures = [DOWN]
    replica.note(FLEET[0])
    await replica.delivery.round()
    assert "dead-letter file: Not a directory" in (replica.delivery.warning() or "")


def test_a_batch_s_name_begins_with_its_time() -> None:
    clock = FakeClock()
    found = batch_name(clock.wall_ns(), records(2))
    assert found.startswith("20270115-080000.000-")
    assert found != batch_name(clock.wall_ns(), (record(1),))
