"""`gpu show` and `events`: what audit logs on disk tell of a GPU, and what comes to a log."""

import json
from pathlib import Path

import pytest

from controller.record import Record
from gpuwarden.audit.record import RecordKind
from tests.builders.replica_log import CARD, ReplicaLog
from tests.unit.gpuwarden.cli.conftest import Cli


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Options that name the logs of two replicas; only the first keeps evidence."""
    first, second = ReplicaLog(tmp_path / "a"), ReplicaLog(tmp_path / "b", "b")
    first.accept("gpu-1", 10)
    first.reserve(30, RecordKind.RESERVATION_RESERVED)
    second.accept("gpu-2", 20, keeps=False)
    second.reserve(40, RecordKind.RESERVATION_RELEASED)
    return ["--store", str(first.folder), "--store", str(second.folder)]


@pytest.mark.parametrize("wanted", [CARD.uuid, CARD.uuid[:10], CARD.serial])
def test_the_history_of_a_gpu_is_merged_from_several_logs(
    cli: Cli, logs: list[str], wanted: str
) -> None:
    ran = cli("gpu", "show", wanted, *logs)
    assert ran.code == 0
    assert [line.split() for line in ran.lines if line] == [
        ["GPU:", CARD.uuid],
        ["Serial:", CARD.serial],
        ["Product:", *str(CARD.product).split()],
        ["Now:", "gpu-2,", "since", "1970-01-01T00:00:20Z"],
        ["Where", "it", "has", "been:"],
        ["NODE", "SLOT", "FROM", "UNTIL", "LOST"],
        ["gpu-1", "2", "1970-01-01T00:00:10Z", "1970-01-01T00:00:20Z", "-"],
        ["gpu-2", "2", "1970-01-01T00:00:20Z", "now", "-"],
        ["Who", "has", "had", "it:"],
        ["POD", "STATE", "FROM", "UNTIL"],
        ["team-a/train-0", "released", "1970-01-01T00:00:30Z", "1970-01-01T00:00:40Z"],
        ["What", "happened", "to", "it:", "nothing", "in", "these", "logs"],
    ]
    assert all(len(line) <= 80 for line in ran.lines)


def test_a_history_for_programs(cli: Cli, logs: list[str]) -> None:
    (found,) = json.loads(cli("gpu", "show", CARD.uuid, *logs, "-o", "json").out)["gpus"]
    assert [(x["node"], x["index"]) for x in found["stays"]] == [("gpu-1", 2), ("gpu-2", 2)]
    assert found["holds"][0]["reservation"] == "v1.k.u"
    assert cli("gpu", "show", str(CARD.serial), *logs, "-o", "name").out == f"{CARD.uuid}\n"


def test_an_unknown_gpu_is_a_finding_and_no_log_a_mistake(
    cli: Cli, logs: list[str], tmp_path: Path
) -> None:
    ran = cli("gpu", "show", "GPU-x\x1b", *logs)
    assert (ran.code, ran.err) == (3, "gpuwarden: GPU-x\\x1b: no log here names such a GPU\n")
    assert cli("gpu", "show", "GPU-x", "--store", str(tmp_path / "none")).code == 2


# --- events


def test_the_last_events_are_shown(cli: Cli, tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path / "a")
    for n in range(4):
        log.state(f"gpu-{n}", n)
    log.note(Record(RecordKind.CHECKPOINT, "c", "log", "signed"))
    store = ("--store", str(log.folder))
    ran = cli("events", "--last", "2", *store)
    assert [line.split() for line in ran.lines] == [
        ["TIME", "KIND", "DECISION", "SUBJECT"],
        ["1970-01-01T00:00:02Z", "node.state", "stale", "node/gpu-2:", "NODE_STALE"],
        ["1970-01-01T00:00:03Z", "node.state", "stale", "node/gpu-3:", "NODE_STALE"],
    ]
    assert cli("events", "-o", "name", "--kind", "checkpoint", *store).out == "5\n"
    assert cli("events", "-o", "name", "--subject", "node/gpu-1", *store).out == "2\n"
    (line,) = cli("events", "-o", "json", "--last", "1", *store).lines
    assert json.loads(line)["subject"] == "node/gpu-3"
    assert cli("events", "--last", "0", *store).out == "No events.\n"


@pytest.mark.parametrize("arguments", [("--last", "-1"), ("--last", "10001"), ("--store", "/none")])
def test_events_of_nothing_that_is_there(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("events", *arguments).code == 2


def test_what_comes_is_followed_into_the_next_file(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, turns = ReplicaLog(tmp_path / "a"), iter(range(1, 4))
    log.state("gpu-0")

    def sleep(_: float) -> None:
        turn = next(turns, None)
        if turn is None:
            raise KeyboardInterrupt
        if turn == 2:
            log.rotate()
        log.state(f"gpu-{turn}", turn)

    monkeypatch.setattr("gpuwarden.cli.commands.events.time.sleep", sleep)
    with pytest.raises(SystemExit, match="130"):
        cli("events", "--follow", "--store", str(log.folder))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [x[3] for x in lines] == ["SUBJECT", *(f"node/gpu-{n}:" for n in range(4))]
