"""`events` and `gpu show` as a controller answers them: what is shown, and what is missing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.audit.files import log_files
from gpuwarden.audit.record import RecordKind
from gpuwarden.cli.commands import events
from gpuwarden.wire.v1 import audit_pb2 as pb
from tests.builders.replica_log import CARD, ReplicaLog, evidence
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli

LOGS = ("lab/a", "lab/b")
SINCE = "1970-01-01T00:00:05.000Z"
SHOWN = pb.ShownEvidence(
    evidence=evidence().digest,
    machine="m",
    gpus=[
        pb.ShownGpu(
            uuid=CARD.uuid,
            serial=CARD.serial,
            product="H100",
            index=2,
            pci_bus_id="0000:01:00.0",
            mig_devices=["MIG-1"],
        )
    ],
)


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    log = ReplicaLog(tmp_path / "a")
    log.accept("gpu-1", 10)
    log.reserve(30, RecordKind.RESERVATION_RESERVED)
    return [x for file in log_files(log.folder) for x in file.read_text().splitlines()]


# --- gpu show


def gpu_part(lines: list[str], *logs: str) -> pb.ReadGpuRecordsResponse:
    return pb.ReadGpuRecordsResponse(
        log="lab/a", logs=logs or LOGS, since=SINCE, records=lines, shown=[SHOWN]
    )


def test_a_history_says_by_which_logs_and_which_are_missing(
    ask: Cli, fleet: FakeFleetServer, lines: list[str]
) -> None:
    fleet.gpu_log = [gpu_part([*lines, "{}"])]
    ran = ask("gpu", "show", CARD.uuid)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[:3] == [
        f"GPU:      {CARD.uuid}",
        f"Serial:   {CARD.serial}",
        "Product:  H100",
    ]
    assert ran.lines[-4:] == [
        "",
        "Read:      lab/a since 1970-01-01T00:00:05Z",
        "Not read:  lab/b: no way from here leads to its replica",
        "Left out:  1 record that only a newer gpuwarden can read",
    ]
    ran = ask("gpu", "show", CARD.uuid, "-o", "name")
    assert ran.out == f"{CARD.uuid}\n"
    assert ran.err == "gpuwarden: not read: lab/b: no way from here leads to its replica\n"
    fleet.gpu_log = [gpu_part(lines, "lab/a")]
    assert "Not read" not in ask("gpu", "show", CARD.uuid).out
    assert ask("gpu", "show", CARD.uuid, "-o", "name").err == ""


def test_logs_are_asked_again_for_nodes_and_mig_devices(
    ask: Cli, fleet: FakeFleetServer, lines: list[str]
) -> None:
    fleet.gpu_log = [gpu_part(lines, "lab/a")]
    assert ask("gpu", "show", CARD.uuid[:12]).code == 0
    first, second = fleet.asked
    assert first == pb.ReadGpuRecordsRequest(gpus=[CARD.uuid[:12]])
    assert second == pb.ReadGpuRecordsRequest(gpus=[CARD.uuid[:12], "MIG-1"], nodes=["gpu-1"])


def test_a_serial_is_found_before_the_history_is_read(
    ask: Cli, fleet: FakeFleetServer, lines: list[str]
) -> None:
    fleet.found_gpus = pb.FindGpusResponse(log="lab/a", logs=["lab/a"], uuids=[CARD.uuid])
    fleet.gpu_log = [gpu_part(lines, "lab/a")]
    assert ask("gpu", "show", "165", "-o", "name").out == f"{CARD.uuid}\n"
    assert fleet.asked[0] == pb.FindGpusRequest(serial="165")
    assert fleet.asked[1] == pb.ReadGpuRecordsRequest(gpus=[CARD.uuid])
    fleet.found_gpus = pb.FindGpusResponse(log="lab/a", logs=["lab/a"], since=SINCE)
    ran = ask("gpu", "show", "166")
    text = "166: no log here names such a GPU (lab/a since 1970-01-01T00:00:05Z)"
    assert (ran.code, ran.err) == (3, f"gpuwarden: {text}\n")


def test_a_gpu_is_not_unknown_while_a_log_is_missing(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpu_log = [gpu_part([])]
    ran = ask("gpu", "show", "GPU-x")
    assert ran.code == 5
    assert "not read: lab/b: no way from here leads to its replica" in ran.err
    fleet.gpu_log = [gpu_part([], "lab/a")]
    assert ask("gpu", "show", "GPU-x").code == 3


def test_what_the_driver_does_not_report_stays_unknown(
    ask: Cli, fleet: FakeFleetServer, lines: list[str]
) -> None:
    bare = pb.ShownEvidence(evidence=evidence().digest, gpus=[pb.ShownGpu(uuid=CARD.uuid)])
    part = gpu_part(lines, "lab/a")
    del part.shown[:]
    part.shown.append(bare)
    fleet.gpu_log = [part]
    ran = ask("gpu", "show", CARD.uuid)
    assert "Serial" not in ran.out
    assert "Product" not in ran.out


# --- events


def test_events_name_the_replica_where_there_are_several(
    ask: Cli, fleet: FakeFleetServer, lines: list[str]
) -> None:
    fleet.log = [
        pb.ReadRecordsResponse(log="lab/a", logs=LOGS, since=SINCE, newest=2),
        pb.ReadRecordsResponse(records=[*lines, "{}"]),
    ]
    ran = ask("events", "--last", "9", "--kind", "node", "--kind", "res", "--subject", "node/")
    assert fleet.asked == [pb.ReadRecordsRequest(kinds=["node", "res"], subject="node/", last=9)]
    assert [x.split() for x in ran.lines[:2]] == [
        ["TIME", "KIND", "DECISION", "SUBJECT"],
        ["1970-01-01T00:00:10Z", "evidence.accepted", "accepted", "node/gpu-1", "[a]"],
    ]
    assert ran.err.splitlines() == [
        "gpuwarden: not read: lab/b: no way from here leads to its replica",
        "gpuwarden: left out: 1 record that only a newer gpuwarden can read",
    ]
    assert ask("events", "--last", "1", "-o", "name").out == "lab/a:2\n"
    fleet.log[0] = pb.ReadRecordsResponse(log="lab/a", logs=["lab/a"], newest=2)
    fleet.log[1] = pb.ReadRecordsResponse(records=lines)
    ran = ask("events")
    assert ran.lines[1].endswith(" node/gpu-1")
    assert ran.err == ""


def test_a_call_that_ends_is_made_again_from_where_it_was(
    ask: Cli,
    fleet: FakeFleetServer,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = pb.ReadRecordsResponse(log="lab/a", logs=["lab/a"], newest=1)
    fleet.log = [head, pb.ReadRecordsResponse(records=lines[:1])]
    more = [pb.ReadRecordsResponse(log="lab/a"), pb.ReadRecordsResponse(records=lines[1:])]
    answers, waited = [more, [], []], iter(range(3))
    before = asyncio.sleep

    async def sleep(seconds: float, *more: Any) -> None:
        if seconds != events._AGAIN_S:
            await before(seconds, *more)
            return
        turn = next(waited)
        fleet.log = answers[turn]
        if turn == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("gpuwarden.cli.commands.events.asyncio.sleep", sleep)
    with pytest.raises(SystemExit, match="130"):
        ask("events", "--follow", "-o", "name")
    written = capsys.readouterr()
    asked = [(x.last, x.follow, x.after) for x in fleet.asked]  # type: ignore[attr-defined] # they are requests for records
    assert asked == [(20, False, 0), (0, True, 1), (0, True, 1), (0, True, 2)]
    assert written.out == "lab/a:1\nlab/a:1\nlab/a:2\n"
    assert written.err == (
        "gpuwarden: lab/a: its events are missing from now on until it answers again:"
        " the controller is going away\n"
    )


def test_a_store_is_read_without_a_controller(cli: Cli, tmp_path: Path) -> None:
    ran = cli("events", "--server", f"unix:{tmp_path}/none")
    assert ran.code == 5
    ReplicaLog(tmp_path / "a").state("gpu-1")
    store = str(tmp_path / "a")
    assert cli("events", "-o", "name", "--store", store, "--server", "unix:/none").out == "1\n"
