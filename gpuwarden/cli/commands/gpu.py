"""`gpuwarden gpu show`: where a GPU has been and who has had it, from audit logs.

Of all replicas that can be reached, or from logs on disk, without a controller.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from gpuwarden.audit.archive import archived_shown
from gpuwarden.audit.files import log_files
from gpuwarden.audit.gpu_history import (
    HISTORY_KINDS,
    GpuHistory,
    Happening,
    Hold,
    Shown,
    ShownOf,
    Stay,
    gpu_histories,
    gpu_history,
    in_order,
    is_uuid,
    nodes_of,
)
from gpuwarden.audit.reading import recent_records
from gpuwarden.audit.record import LogRecord
from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.screen import on_screen
from gpuwarden.cli.text.tables import Column
from gpuwarden.cli.text.terminal import facts, paragraph, shown
from gpuwarden.counted import counted

if TYPE_CHECKING:
    from gpuwarden.cli.connection.audit_client import LogPart
    from gpuwarden.cli.connection.every_replica import Missing, Replicas

Stores = Annotated[list[Path] | None, Parameter(name="--store", negative="")]
_LASTS: Final = "now"
_SECONDS: Final = slice(0, 19)

STAYS: Final[tuple[Column[Stay], ...]] = (
    Column("NODE", lambda x: x.node, is_name=True),
    Column("SLOT", lambda x: "" if x.index is None else str(x.index)),
    Column("FROM", lambda x: when(x.since)),
    Column("UNTIL", lambda x: when(x.until)),
    Column("BUS-ID", lambda x: x.pci_bus_id or "", wide=True),
    Column("MACHINE", lambda x: x.machine or "", wide=True),
    Column("EVIDENCE", lambda x: x.evidence, wide=True),
    Column("LOST", lambda x: when(x.lost) if x.lost else ""),
)
HOLDS: Final[tuple[Column[Hold], ...]] = (
    Column("POD", lambda x: f"{x.namespace}/{x.pod or '-'}", is_name=True),
    Column("STATE", lambda x: x.state),
    Column("FROM", lambda x: when(x.since)),
    Column("UNTIL", lambda x: when(x.until)),
    Column("NODE", lambda x: x.node, wide=True, is_name=True),
    Column("DEVICE", lambda x: x.gpu, wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("RESERVATION", lambda x: x.reservation, wide=True),
)
HAPPENINGS: Final[tuple[Column[Happening], ...]] = (
    Column("AT", lambda x: when(x.at)),
    Column("NODE", lambda x: x.node, is_name=True),
    Column("WHAT", lambda x: x.decision),
    Column("SUBJECT", lambda x: x.subject, wide=True),
    Column("DETAIL", lambda x: x.detail or x.subject),
)


@dataclass(frozen=True, slots=True)
class Found:
    """Histories, and by which logs."""

    gpus: tuple[GpuHistory, ...]
    read: "tuple[LogPart, ...]" = ()
    """Logs of replicas; none for those on disk."""
    missing: "tuple[Missing, ...]" = ()


def show(
    gpu: str,
    /,
    *,
    store: Stores = None,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Show where a GPU has been and who has had it, by audit logs; exits with 3 if unknown.

    Parameters
    ----------
    gpu
        UUID of the GPU, a beginning of it, or the serial number of its board.
    store
        Folder of an audit log to read instead; repeat it for the logs of several replicas. No
        controller is asked then.
    output
        How to print; `name` gives UUIDs, `wide` the machine, bus id and reservations too.
    connection
        How to reach the controller.

    """
    found = _on_disk(store, gpu) if store else asyncio.run(_of_replicas(connection, gpu))
    if not found.gpus:
        raise _unknown(gpu, found)
    if output is Format.NAME:
        sys.stderr.write("".join(f"gpuwarden: not read: {x}\n" for x in _missing_lines(found)))
    text = printed(
        _plain(found),
        output,
        names=(x.uuid for x in found.gpus),
        text=lambda: "\n".join(_text(x, output) for x in found.gpus) + _logs_text(found),
    )
    sys.stdout.write(text)
    return ExitCode.OK


def _unknown(gpu: str, found: Found) -> CliError:
    """No finding while a log that could name it was not read."""
    name = shown(gpu[:80])
    if found.missing:
        text = f"{name}: no log that was read names such a GPU; not read: "
        return CliError(ExitCode.NOT_REACHABLE, text + "; ".join(_missing_lines(found)))
    how_far = f" ({', '.join(map(_since, found.read))})" if found.read else ""
    return CliError(ExitCode.FINDING, f"{name}: no log here names such a GPU{how_far}")


def _on_disk(folders: Sequence[Path], gpu: str) -> Found:
    try:
        return Found(gpu_histories(records_of(folders), gpu, lambda x: _archived(folders, x)))
    except OSError as error:
        raise unreadable(error) from None


def records_of(folders: Sequence[Path]) -> Iterator[LogRecord]:
    """The records of several logs that a history is made of; raises OSError.

    What is no record, such as a line that is being written, is skipped: `audit verify` tells.
    """
    for folder in folders:
        log_files(folder)  # a folder without a log is a mistake of whoever names it
        yield from recent_records(folder, HISTORY_KINDS, limit_bytes=None)


def when(at: str | None) -> str:
    """A time of a log, in UTC and to the second."""
    return _LASTS if at is None else f"{at[_SECONDS]}Z"


def _archived(folders: Sequence[Path], digest: str) -> Shown | None:
    found = (archived_shown(folder, digest) for folder in folders)
    return next((x for x in found if x is not None), None)


# --- from replicas


async def _of_replicas(connection: Connection, gpu: str) -> Found:
    # Imported here: help and completion need no gRPC.
    from gpuwarden.cli.connection.every_replica import every_replica  # noqa: PLC0415 - see above

    async with every_replica(connection) as replicas:
        if is_uuid(gpu):
            parts = await _parts_of(replicas, [gpu])
            return _merged(
                replicas, parts, lambda records, shown_of: gpu_histories(records, gpu, shown_of)
            )
        asked = await replicas.ask(lambda client: client.log.with_serial(gpu))
        uuids = sorted({uuid for x in asked.values() for uuid in x.uuids})
        parts = await _parts_of(replicas, uuids) if uuids else list(asked.values())
        return _merged(
            replicas,
            parts,
            lambda records, shown_of: tuple(gpu_history(records, x, shown_of) for x in uuids),
        )


async def _parts_of(replicas: "Replicas", gpus: list[str]) -> "list[LogPart]":
    """What all logs have of the GPUs.

    Each is asked twice: that a GPU left a node may be in another log than that it was there, and
    so may what had one of its MIG devices.
    """
    first = (await replicas.ask(lambda client: client.log.of_gpus(gpus))).values()
    shown_gpus = [gpu for x in first for one in x.shown.values() for gpu in one.gpus]
    devices = {device for gpu in shown_gpus for device in gpu.mig_devices}
    nodes = {node for x in first for node in nodes_of(x.records)}
    everything = [*gpus, *sorted(devices)]
    again = await replicas.ask(lambda client: client.log.of_gpus(everything, nodes))
    return list(again.values())


Histories = Callable[[tuple[LogRecord, ...], ShownOf], tuple[GpuHistory, ...]]


def _merged(replicas: "Replicas", parts: "Sequence[LogPart]", histories: Histories) -> Found:
    kept: dict[str, Shown] = {}
    for part in parts:
        kept |= part.shown
    records = in_order(x for part in parts for x in part.records)
    known = [log for part in parts for log in part.logs]
    missing = replicas.missing((x.log for x in parts), known)
    once = {x.log: x for x in parts}
    read = tuple(once[x] for x in sorted(once))
    return Found(histories(records, kept.get), read, tuple(missing))


# --- on the screen


def _plain(found: Found) -> dict[str, Any]:
    plain: dict[str, Any] = {"gpus": [_plain_history(x) for x in found.gpus]}
    if found.read:
        plain["logs"] = [{"log": x.log, "since": x.since or None} for x in found.read]
        plain["missing"] = [{"log": x.name, "why": x.why} for x in found.missing]
    return plain


def _plain_history(history: GpuHistory) -> dict[str, Any]:
    return {
        "uuid": history.uuid,
        "serial": history.serial,
        "product": history.product,
        "stays": [asdict(x) for x in history.stays],
        "holds": [asdict(x) for x in history.holds],
        "happenings": [asdict(x) for x in history.happenings],
    }


def _text(history: GpuHistory, output: Format) -> str:
    last = next((x for x in reversed(history.stays) if x.until is None), None)
    head = facts(
        (
            ("GPU", history.uuid),
            ("Serial", history.serial or ""),
            ("Product", history.product or ""),
            ("Now", "not seen" if last is None else f"{last.node}, since {when(last.since)}"),
        )
    )
    parts = (
        head,
        _part("Where it has been", on_screen(STAYS, history.stays, output)),
        _part("Who has had it", on_screen(HOLDS, history.holds, output)),
        _part("What happened to it", on_screen(HAPPENINGS, history.happenings, output)),
    )
    return "\n".join(parts)


def _logs_text(found: Found) -> str:
    """By which logs, and what is missing."""
    if not found.read:
        return ""
    unknown = sum(x.unknown for x in found.read)
    left_out = f"{counted(unknown, 'record')} that only a newer gpuwarden can read"
    lines = (
        ("Read", ", ".join(map(_since, found.read))),
        *(("Not read", x) for x in _missing_lines(found)),
        ("Left out", left_out if unknown else ""),
    )
    return "\n" + facts(lines)


def _since(part: "LogPart") -> str:
    return f"{part.log} since {when(part.since)}" if part.since else part.log


def _missing_lines(found: Found) -> list[str]:
    return [f"{shown(x.name)}: {x.why}" for x in found.missing]


def _part(title: str, table: str) -> str:
    return paragraph(f"{title}:") + table if table else f"{title}: nothing in these logs\n"
