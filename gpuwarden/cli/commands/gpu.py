"""`gpuwarden gpu show`: where a GPU has been and who has had it, from audit logs. No controller."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from gpuwarden.audit.archive import archived_inventory
from gpuwarden.audit.files import log_files
from gpuwarden.audit.gpu_history import (
    HISTORY_KINDS,
    GpuHistory,
    Happening,
    Hold,
    Stay,
    gpu_histories,
)
from gpuwarden.audit.reading import recent_records
from gpuwarden.audit.record import LogRecord
from gpuwarden.cli.commands.reverify import DEFAULT_STORE
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.options import Output
from gpuwarden.cli.output import Format, printed
from gpuwarden.cli.screen import on_screen
from gpuwarden.cli.terminal import Column, facts, paragraph, shown
from gpuwarden.evidence.model import Inventory

Stores = Annotated[list[Path] | None, Parameter(name="--store", negative="")]
_LASTS: Final = "now"
_SECONDS: Final = slice(0, 19)

STAYS: Final[tuple[Column[Stay], ...]] = (
    Column("NODE", lambda x: x.node),
    Column("SLOT", lambda x: "" if x.index is None else str(x.index)),
    Column("FROM", lambda x: when(x.since)),
    Column("UNTIL", lambda x: when(x.until)),
    Column("BUS-ID", lambda x: x.pci_bus_id or "", wide=True),
    Column("MACHINE", lambda x: x.machine or "", wide=True),
    Column("EVIDENCE", lambda x: x.evidence, wide=True),
    Column("LOST", lambda x: when(x.lost) if x.lost else ""),
)
HOLDS: Final[tuple[Column[Hold], ...]] = (
    Column("POD", lambda x: f"{x.namespace}/{x.pod or '-'}"),
    Column("STATE", lambda x: x.state),
    Column("FROM", lambda x: when(x.since)),
    Column("UNTIL", lambda x: when(x.until)),
    Column("NODE", lambda x: x.node, wide=True),
    Column("DEVICE", lambda x: x.gpu, wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("RESERVATION", lambda x: x.reservation, wide=True),
)
HAPPENINGS: Final[tuple[Column[Happening], ...]] = (
    Column("AT", lambda x: when(x.at)),
    Column("NODE", lambda x: x.node),
    Column("WHAT", lambda x: x.decision),
    Column("SUBJECT", lambda x: x.subject, wide=True),
    Column("DETAIL", lambda x: x.detail or x.subject),
)


def show(gpu: str, /, *, store: Stores = None, output: Output = Format.TABLE) -> ExitCode:
    """Show where a GPU has been and who has had it, from audit logs; exits with 3 if unknown.

    Parameters
    ----------
    gpu
        UUID of the GPU, a beginning of it, or the serial number of its board.
    store
        Folder of an audit log; repeat it for the logs of several replicas.
    output
        How to print; `name` gives UUIDs, `wide` the machine, bus id and reservations too.

    """
    folders = store or [DEFAULT_STORE]
    try:
        found = gpu_histories(records_of(folders), gpu, lambda digest: _inventory(folders, digest))
    except OSError as error:
        raise unreadable(error) from None
    if not found:
        raise CliError(ExitCode.FINDING, f"{shown(gpu[:80])}: no log here names such a GPU")
    text = printed(
        {"gpus": [_plain(x) for x in found]},
        output,
        names=(x.uuid for x in found),
        text=lambda: "\n".join(_text(x, output) for x in found),
    )
    sys.stdout.write(text)
    return ExitCode.OK


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


def _inventory(folders: Sequence[Path], digest: str) -> Inventory | None:
    found = (archived_inventory(folder, digest) for folder in folders)
    return next((x for x in found if x is not None), None)


def _plain(history: GpuHistory) -> dict[str, Any]:
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


def _part(title: str, table: str) -> str:
    return paragraph(f"{title}:") + table if table else f"{title}: nothing in these logs\n"
