"""All memories come from one log on disk; what cannot be read is told once."""

from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from controller.audit.sealing import LogIdentity, Sealer
from controller.binding.idle import Account, Holding, IdleGpu, account_record, idle_record
from controller.binding.records import kept_record
from controller.binding.use import UseFault, UseFaultKind
from controller.binding.use_records import fault_record
from controller.fleet.enrollment import QuarantineEntry
from controller.fleet.quarantine import QuarantineFate
from controller.ledger.record import PodRef
from controller.ledger.restore import LoggedGrant
from controller.operations.log_replay import LogReplay
from controller.operations.logged import quarantine_record
from controller.record import Record
from gpuwarden.audit.chain import BEFORE_FIRST, Head
from gpuwarden.audit.files import file_name
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.canonical import sha256_hex

DENIAL = QuarantineEntry("NODE_DENIED", "smells", "me", 7)
IDLE = IdleGpu(
    Holding("GPU-a", "gpu-1", PodRef("team-a", "a", "uid-a"), "v1.k.x"), since_wall_ns=5_000_000
)
FAULT = UseFault(
    UseFaultKind.OTHER_GPU, "gpu-1", "GPU-a", IDLE.holding.pod, since_wall_ns=5_000_000
)
OVER = replace(FAULT, kind=UseFaultKind.UNRESERVED_USE)
GRANT = LoggedGrant(
    "GPU-a", "gpu-1", "v1.k.x", PodRef("team-a", "a", "uid-a"), ("GPU-a",), bound=True
)


async def test_denials_and_reservations(tmp_path: Path) -> None:
    sealer, head, lines = Sealer(LogIdentity("lab/a", "boot", "me")), BEFORE_FIRST, []
    for record in (
        quarantine_record("gpu-1", DENIAL, QuarantineFate.EXISTS),
        Record(RecordKind.LOG_START, "me", "log", "started"),
        kept_record(GRANT),
        idle_record(IDLE, ended=False),
        account_record("team-a", Account(7_000_000, 3_000_000)),
        fault_record(FAULT),
        fault_record(OVER),
        fault_record(OVER, ended=True),
    ):
        sealed = sealer.seal(record, 0, head)
        head = sealed.head
        lines.append(sealed.line + b"\n")
    (tmp_path / file_name(1)).write_bytes(b"".join(lines))
    log_replay = LogReplay(tmp_path)
    assert await log_replay.denials() == {"gpu-1": DENIAL}
    assert await log_replay.grants() == {("gpu-a", "v1.k.x"): GRANT}
    use = await log_replay.use()
    assert use.idle.accounts == {"team-a": Account(7_000_000, 3_000_000)}
    assert use.idle.idle == {("gpu-a", "v1.k.x"): 5_000_000}
    assert use.faults == (FAULT,)


async def test_what_an_earlier_version_has_written(tmp_path: Path) -> None:
    sealer, head, lines = Sealer(LogIdentity("lab/a", "boot", "me")), BEFORE_FIRST, []
    for record, kind in (
        (quarantine_record("gpu-1", DENIAL, QuarantineFate.EXISTS), b"node.denial"),
        (kept_record(GRANT), b"reservation.adopted"),
    ):
        line = sealer.seal(record, 0, head).line
        lines.append(line.replace(record.kind.encode(), kind) + b"\n")
        head = Head(len(lines), sha256_hex(lines[-1][:-1]))
    (tmp_path / file_name(1)).write_bytes(b"".join(lines))
    log_replay = LogReplay(tmp_path)
    assert await log_replay.denials() == {"gpu-1": DENIAL}
    assert await log_replay.grants() == {("gpu-a", "v1.k.x"): GRANT}


async def test_a_new_log_knows_nothing(tmp_path: Path) -> None:
    log_replay = LogReplay(tmp_path / "none")
    assert (await log_replay.denials(), await log_replay.grants()) == ({}, {})


async def test_what_cannot_be_read_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / file_name(1)).mkdir()
    with structlog.testing.capture_logs() as told:
        log_replay = LogReplay(tmp_path)
        for _ in range(2):
            with pytest.raises(OSError, match="is a folder"):
                await log_replay.grants()
    assert [x["event"] for x in told] == ["audit.replay.failed"]
