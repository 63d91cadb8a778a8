"""AuditService: what a replica's log says, in steps and within bounds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller.record import Record
from controller.rpc import audit_log
from controller.rpc.audit_log import NAMES_KEY, AuditServicer
from gpuwarden.audit.reading import MOST_BYTES
from gpuwarden.audit.record import RecordKind, decode_record
from gpuwarden.wire.v1 import audit_pb2 as pb
from tests.builders.replica_log import CARD, ReplicaLog, evidence

SERIAL = str(CARD.serial)
LOGS = ("lab/a", "lab/b")


class AbortedError(Exception):
    pass


class Context:
    async def abort(self, code: Any, details: str, _metadata: Any = ()) -> None:
        raise AbortedError(f"{code.name} {details}")


CONTEXT: Any = Context()


@pytest.fixture
def log(tmp_path: Path) -> ReplicaLog:
    return ReplicaLog(tmp_path / "a")


def service(log: ReplicaLog, **now: str) -> AuditServicer:
    """`now`: serials of GPUs that nodes show now, by what stands for their UUIDs."""

    def with_serial(serial: str) -> list[str]:
        return [f"GPU-{name}" for name, found in now.items() if found == serial]

    return AuditServicer(
        log.folder, "lab/a", logs=lambda: LOGS, with_serial_now=with_serial, poll_s=0.001
    )


async def read(served: AuditServicer, **fields: Any) -> list[pb.ReadRecordsResponse]:
    return [x async for x in served.ReadRecords(pb.ReadRecordsRequest(**fields), CONTEXT)]


async def of_gpus(served: AuditServicer, **fields: Any) -> list[pb.ReadGpuRecordsResponse]:
    request = pb.ReadGpuRecordsRequest(**fields)
    return [x async for x in served.ReadGpuRecords(request, CONTEXT)]


def numbers(messages: list[Any]) -> list[int]:
    return [decode_record(line.encode()).seq for x in messages for line in x.records]


# --- events


async def test_the_last_records_come_behind_the_name_of_the_log(log: ReplicaLog) -> None:
    for n in range(4):
        log.state(f"gpu-{n}", n)
    log.note(Record(RecordKind.CHECKPOINT, "c", "log", "signed"), 9)
    first, *rest = await read(service(log), last=2)
    assert (first.log, tuple(first.logs), first.newest) == ("lab/a", LOGS, 5)
    assert first.since == "1970-01-01T00:00:00.000Z"
    assert numbers([first, *rest]) == [3, 4]
    assert numbers(await read(service(log), last=10_000, kinds=["check"])) == [5]
    assert numbers(await read(service(log), last=9, subject="node/gpu-1")) == [2]
    (nothing,) = await read(service(log), last=0)
    assert (nothing.log, nothing.newest) == ("lab/a", 5)


async def test_the_record_that_names_the_key_is_found_however_many_came_after_it(
    log: ReplicaLog,
) -> None:
    """It is at a file's beginning; of others the last 8 MiB are looked at."""
    log.note(Record(RecordKind.LOG_START, "c", "log", "started", refs={"key": "k"}))
    log.state("gpu-1")
    rest = Record(RecordKind.NODE_STATE, "c", "node/gpu-2", "stale", refs={"text": "x" * 3_000})
    for _ in range(MOST_BYTES // 3_000 + 1):
        log.note(rest)
    names = sorted(NAMES_KEY)
    assert numbers(await read(service(log), last=1, kinds=names)) == [1]
    assert numbers(await read(service(log), last=1, kinds=[*names, "node."])) != [1]
    assert numbers(await read(service(log), last=9, subject="node/gpu-1")) == []


async def test_records_come_in_messages_of_bounded_size(
    log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_STEP_RECORDS", 2)
    for n in range(5):
        log.state(f"gpu-{n}")
    found = await read(service(log), last=5)
    assert [len(x.records) for x in found] == [0, 2, 2, 1]
    assert [len(x.records) for x in await read(service(log), after=1)] == [0, 2, 2]


async def test_what_comes_behind_a_record_is_all_given_once(log: ReplicaLog) -> None:
    for n in range(3):
        log.state(f"gpu-{n}")
    log.rotate()
    log.state("gpu-3")
    first, *rest = await read(service(log), after=2, last=1)
    assert (first.log, first.newest, first.since) == ("lab/a", 2, "")
    assert numbers(rest) == [3, 4]
    assert numbers(await read(service(log), after=4)) == []


async def test_a_log_is_followed_until_the_controller_stops(log: ReplicaLog) -> None:
    log.state("gpu-0")
    served = service(log)
    request = pb.ReadRecordsRequest(last=1, follow=True, subject="node/")
    messages: AsyncIterator[pb.ReadRecordsResponse] = served.ReadRecords(request, CONTEXT)
    assert (await anext(messages)).newest == 1
    assert numbers([await anext(messages)]) == [1]
    coming = asyncio.ensure_future(anext(messages))
    log.note(Record(RecordKind.NODE_STATE, "c", "pod/x/y", "stale"))
    log.state("gpu-1")
    assert numbers([await coming]) == [3]
    served.drain()
    with pytest.raises(AbortedError, match="UNAVAILABLE this controller is stopping"):
        await anext(messages)


async def test_readers_are_limited_and_give_their_room_back(
    log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.state("gpu-0")
    monkeypatch.setattr(audit_log, "MAX_OPEN", 1)
    served = service(log)
    request = pb.ReadRecordsRequest(follow=True)
    messages: Any = served.ReadRecords(request, CONTEXT)
    await anext(messages)
    for asked in (read(served), of_gpus(served, gpus=["GPU-1"])):
        with pytest.raises(AbortedError, match="RESOURCE_EXHAUSTED LIMIT_STREAMS: 1 readers"):
            await asked
    await messages.aclose()
    assert len(await read(served)) == 1
    assert len(await of_gpus(served, gpus=["GPU-1"])) == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"last": 10_001}, "last is 10001, expected 0 to 10000"),
        ({"kinds": [""]}, "kinds: expected at most 32"),
        ({"kinds": ["k" * 101]}, "kinds: expected at most 32, each of 1 to 100 characters"),
        ({"kinds": ["k"] * 33}, "kinds: expected at most 32"),
        ({"subject": "s" * 1001}, "subject: expected at most 1000 characters"),
    ],
)
async def test_a_request_beyond_its_bounds(
    log: ReplicaLog, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(AbortedError, match=f"INVALID_ARGUMENT REQ_INVALID: {text}"):
        await read(service(log), **fields)


async def test_a_request_at_its_bounds(log: ReplicaLog) -> None:
    log.state("gpu-0")
    assert len(await read(service(log), kinds=["k" * 100] * 32, subject="s" * 1000)) == 1
    gpus, nodes = [f"GPU-{n}" for n in range(255)] + ["GPU-" + "x" * 96], ["n"] * 256
    assert len(await of_gpus(service(log), gpus=gpus, nodes=nodes)) == 1


async def test_a_log_that_is_not_there_is_an_error(log: ReplicaLog) -> None:
    with pytest.raises(AbortedError, match="UNAVAILABLE AUDIT_UNAVAILABLE: the audit log cannot"):
        await read(service(log))


# --- GPUs


async def test_records_of_a_gpu_and_what_its_evidence_shows(log: ReplicaLog) -> None:
    log.state("gpu-9", 5)
    log.accept("gpu-1", 10)
    log.reserve(30, RecordKind.RESERVATION_RESERVED)
    log.accept("gpu-1", 40)
    (found,) = await of_gpus(service(log), gpus=[CARD.uuid])
    assert (found.log, tuple(found.logs)) == ("lab/a", LOGS)
    assert found.since == "1970-01-01T00:00:05.000Z"
    assert numbers([found]) == [2, 3, 4]
    (shown,) = found.shown
    assert shown.evidence == evidence().digest
    (card,) = shown.gpus
    assert (card.uuid, card.serial, card.product) == (CARD.uuid, CARD.serial, CARD.product)
    assert (card.index, card.pci_bus_id) == (CARD.index, CARD.pci_bus_id)
    assert shown.machine


async def test_acceptances_of_named_nodes_come_too(log: ReplicaLog) -> None:
    log.accept("gpu-1", 10, keeps=False)
    assert numbers(await of_gpus(service(log), gpus=["GPU-other"], nodes=["gpu-2"])) == []
    assert numbers(await of_gpus(service(log), gpus=["GPU-other"], nodes=["gpu-1"])) == [1]
    (found,) = await of_gpus(service(log), gpus=[CARD.uuid])
    assert (numbers([found]), list(found.shown)) == ([1], [])


async def test_a_long_log_is_read_in_steps(
    log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(5):
        log.accept("gpu-1", at)
    monkeypatch.setattr(audit_log, "_STEP_RECORDS", 2)
    found = await of_gpus(service(log), gpus=[CARD.uuid])
    assert [len(x.records) for x in found] == [2, 2, 1]
    assert [x.log for x in found] == ["lab/a", "", ""]
    assert [len(x.shown) for x in found] == [1, 0, 0]
    monkeypatch.setattr(audit_log, "_STEP_BYTES", 1)
    assert [len(x.records) for x in await of_gpus(service(log), gpus=[CARD.uuid])] == [1] * 5
    (none,) = await of_gpus(service(log), gpus=["GPU-other"])
    assert (none.log, list(none.records)) == ("lab/a", [])


async def test_beginnings_that_name_too_many_gpus_are_refused(
    log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.accept("gpu-1", 1)
    monkeypatch.setattr(audit_log, "MAX_GPUS", 1)
    monkeypatch.setattr(audit_log, "_STEP_RECORDS", 1)
    assert len(await of_gpus(service(log), gpus=["GPU-"])) == 1
    log.note(Record(RecordKind.EVIDENCE_ACCEPTED, "x", "node/n", "ok", refs={"gpus": ["GPU-2"]}), 2)
    with pytest.raises(AbortedError, match="gpus name more than 1 GPUs, expected longer"):
        await of_gpus(service(log), gpus=["GPU-"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "gpus: 0 given, expected 1 to 256"),
        ({"gpus": ["GPU-1"] * 257}, "gpus: 257 given, expected 1 to 256"),
        ({"gpus": ["GPU-1", SERIAL]}, f"gpus has '{SERIAL}', expected a UUID as GPU-"),
        ({"gpus": ["GPU-" + "x" * 97]}, "gpus has 'GPU-xxx"),
        ({"gpus": ["GPU-1"], "nodes": ["n"] * 257}, "nodes: expected at most 256"),
        ({"gpus": ["GPU-1"], "nodes": ["A"]}, "nodes: expected at most 256"),
    ],
)
async def test_gpus_beyond_their_bounds(log: ReplicaLog, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AbortedError, match=f"INVALID_ARGUMENT REQ_INVALID: {text}"):
        await of_gpus(service(log), **fields)


async def test_a_serial_is_looked_for_in_the_fleet_and_then_in_the_archive(
    log: ReplicaLog,
) -> None:
    log.accept("gpu-1", 10)

    async def find(served: AuditServicer, serial: str) -> pb.FindGpusResponse:
        return await served.FindGpus(pb.FindGpusRequest(serial=serial), CONTEXT)

    found = await find(service(log, b=SERIAL, a=SERIAL, c="1"), SERIAL)
    assert (list(found.uuids), found.since) == (["GPU-a", "GPU-b"], "")
    found = await find(service(log), SERIAL)
    assert list(found.uuids) == [CARD.uuid]
    assert (found.log, tuple(found.logs)) == ("lab/a", LOGS)
    assert found.since == "1970-01-01T00:00:10.000Z"
    assert not (await find(service(log), "none")).uuids
    for wrong in ("", "x" * 101, "a\x1b", "GPU-1"):
        with pytest.raises(AbortedError, match="expected the serial number of a GPU"):
            await find(service(log), wrong)
