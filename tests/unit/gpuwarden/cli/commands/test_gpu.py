"""`gpu show` and `events`: what audit logs on disk tell of a GPU, and what comes to a log."""

import json
from functools import cache
from pathlib import Path

import pytest

from controller.audit.sealing import LogIdentity, Sealer
from controller.record import Json, Record
from gpuwarden.audit.archived_evidence import FOLDER, ArchivedEvidence
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.files import file_name
from gpuwarden.audit.record import RecordKind
from gpuwarden.cli.commands.events import Tail
from tests.builders.archived_evidence import archived_evidence
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, inventory
from tests.unit.gpuwarden.cli.conftest import Cli

CARD = gpu(2)
S = 1_000_000_000


@cache
def evidence() -> ArchivedEvidence:
    return archived_evidence(Scene(evidence={"inventory": inventory(CARD)}))


class Log:
    """The log of one replica."""

    def __init__(self, folder: Path, replica: str = "a") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._sealer, self._head = Sealer(LogIdentity(f"lab/{replica}", "boot", "me")), BEFORE_FIRST
        self._path = folder / file_name(1)

    def note(self, record: Record, at_s: int = 0) -> None:
        sealed = self._sealer.seal(record, at_s * S, self._head)
        self._head = sealed.head
        with self._path.open("ab") as file:
            file.write(sealed.line + b"\n")

    def rotate(self) -> None:
        self._path = self.folder / file_name(self._head.seq + 1)

    def state(self, node: str, at_s: int = 0, kind: RecordKind = RecordKind.NODE_STATE) -> None:
        self.note(Record(kind, "controller", f"node/{node}", "stale", ("NODE_STALE",)), at_s)

    def accept(self, node: str, at_s: int, *, keeps: bool = True) -> None:
        kept = evidence()
        refs: dict[str, Json] = {"gpus": [CARD.uuid], "lost": [], "evidence": kept.digest}
        self.note(
            Record(RecordKind.EVIDENCE_ACCEPTED, "x", f"node/{node}", "accepted", refs=refs), at_s
        )
        if keeps:
            place = self.folder / FOLDER / "20261128"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{kept.digest}.json").write_bytes(kept.encoded())

    def reserve(self, at_s: int, kind: RecordKind) -> None:
        refs: dict[str, Json] = {
            "uid": "u",
            "node": "gpu-2",
            "reservation": "v1.k.u",
            "gpus": [CARD.uuid],
        }
        self.note(Record(kind, "c", "pod/team-a/train-0", "x", refs=refs), at_s)


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Options that name the logs of two replicas; only the first keeps evidence."""
    first, second = Log(tmp_path / "a"), Log(tmp_path / "b", "b")
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
    log = Log(tmp_path / "a")
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
    log, turns = Log(tmp_path / "a"), iter(range(1, 4))
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


def test_a_tail_gives_each_whole_record_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "a")
    log.state("gpu-0")
    tail = Tail(log.folder)
    assert [x.seq for x in tail.new()] == [1]
    log.state("gpu-1")
    log.rotate()
    log.state("gpu-2")
    path = log.folder / file_name(3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert [x.seq for x in tail.new()] == [2]
    path.write_bytes(whole)
    assert [x.seq for x in tail.new()] == [3]
    assert list(tail.new()) == []


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = Log(tmp_path / "a")
    for n in range(6):
        if n in {2, 4}:
            log.rotate()
        log.state(f"gpu-{n}")
    size = (log.folder / file_name(5)).stat().st_size
    assert [x.seq for x in Tail(log.folder, size + 10).new()] == [5, 6]
    assert [x.seq for x in Tail(log.folder, size - 10).new()] == [6]
    assert [x.seq for x in Tail(log.folder).new()] == [1, 2, 3, 4, 5, 6]
