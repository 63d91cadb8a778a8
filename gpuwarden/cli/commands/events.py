"""`gpuwarden events`: what the ends of audit logs say, once or as they grow.

Of all replicas that can be reached, or of one log on disk, without a controller.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from gpuwarden.audit.gpu_history import in_order
from gpuwarden.audit.reading import RecordFilter, Tail
from gpuwarden.audit.record import LogRecord
from gpuwarden.cli.commands.gpu import when
from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.text.output import STRUCTURED, Format, json_line
from gpuwarden.cli.text.screen import on_screen, room
from gpuwarden.cli.text.tables import Column, Layout, visible
from gpuwarden.cli.text.terminal import joined, shown
from gpuwarden.counted import counted

if TYPE_CHECKING:
    from gpuwarden.cli.connection.audit_client import LogPart
    from gpuwarden.cli.connection.client import Client
    from gpuwarden.cli.connection.every_replica import Missing

_POLL_S: Final = 0.5
_AGAIN_S: Final = 2.0
"""From the end of a call that followed a log until the next one."""
_MOST: Final = 10_000


def about(record: LogRecord) -> str:
    """What it is about, and why or where."""
    node = record.refs.get("node")
    where = f" on {node}" if isinstance(node, str) and node else ""
    why = f": {joined(record.codes)}" if record.codes and record.codes != ("ACCEPTED",) else ""
    return f"{record.subject}{where}{why}"


def by_replica(record: LogRecord) -> str:
    """Likewise, and which replica has written it."""
    return f"{about(record)} [{record.origin.rpartition('/')[2]}]"


EVENTS: Final[tuple[Column[LogRecord], ...]] = (
    Column("TIME", lambda x: when(x.ts)),
    Column("KIND", lambda x: x.kind),
    Column("DECISION", lambda x: x.decision),
    Column("LOG", lambda x: x.origin, wide=True),
    Column("RECORD", lambda x: str(x.seq), wide=True),
    Column("ACTOR", lambda x: x.actor, wide=True),
    Column("CODES", lambda x: joined(x.codes), wide=True),
    Column("SUBJECT", about),
)
_OF_SEVERAL: Final[tuple[Column[LogRecord], ...]] = (*EVENTS[:-1], Column("SUBJECT", by_replica))
_WIDTHS: Final = (20, 22, 9)


def events(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    last: int = 20,
    kind: Annotated[list[str] | None, Parameter(negative="")] = None,
    subject: str = "",
    store: Path | None = None,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Show the last events of the audit logs, and follow them as they grow.

    Parameters
    ----------
    follow
        Go on with what comes, until Ctrl-C. JSON is one object per line then.
    last
        How many of those before to show; 0 to 10000.
    kind
        Only kinds that begin so, for example `reservation` or `node.state`; may be repeated.
    subject
        Only what is about this subject, such as `node/gpu-a1`, `pod/team-a/train-0`, or a
        beginning of it.
    store
        Folder of an audit log to read instead; no controller is asked then.
    output
        How to print; `name` gives the numbers of the records, behind the name of their log where
        controllers are asked.
    connection
        How to reach the controller.

    """
    if not 0 <= last <= _MOST:
        raise CliError(ExitCode.USAGE, f"--last: expected 0 to {_MOST}, got {last}")
    wanted = RecordFilter(tuple(kind or ()), subject)
    if store is None:
        return asyncio.run(_of_replicas(connection, wanted, last, output, follows=follow))
    if not store.is_dir():
        raise CliError(ExitCode.USAGE, f"--store: {shown(str(store))}: no such folder")
    try:
        _of_folder(store, wanted, last, output, follows=follow)
    except OSError as error:
        raise unreadable(error) from None
    return ExitCode.OK


def _of_folder(
    store: Path, wanted: RecordFilter, last: int, output: Format, *, follows: bool
) -> None:
    tail, page = Tail(store), _Page(EVENTS, output)
    found = deque((x for _, x in tail.new() if wanted.fits(x)), maxlen=last)
    page.begin(list(found), follows=follows)
    while follows:
        time.sleep(_POLL_S)
        for _, record in tail.new():
            if wanted.fits(record):
                page.add(record)
        sys.stdout.flush()


# --- of replicas


async def _of_replicas(
    connection: Connection, wanted: RecordFilter, last: int, output: Format, *, follows: bool
) -> ExitCode:
    # Imported here: help and completion need no gRPC.
    from gpuwarden.cli.connection.every_replica import every_replica  # noqa: PLC0415 - see above

    async with every_replica(connection) as replicas:
        parts = await replicas.ask(lambda client: client.log.last(wanted, last))
        known = [log for x in parts.values() for log in x.logs]
        _tell(replicas.missing([x.log for x in parts.values()], known))
        _tell_unknown(sum(x.unknown for x in parts.values()))
        several = len({*known}) > 1
        page = _Page(_OF_SEVERAL if several else EVENTS, output, names_logs=True)
        records = in_order(x for part in parts.values() for x in part.records)
        page.begin(list(records[max(0, len(records) - last) :]), follows=follows)
        if follows:
            # Two addresses may lead to one replica.
            once = {part.log: name for name, part in parts.items()}
            await asyncio.gather(
                *(
                    _follow(replicas.reached[name], log, wanted, parts[name], page.add_now)
                    for log, name in once.items()
                )
            )
    return ExitCode.OK


async def _follow(
    client: "Client",
    log: str,
    wanted: RecordFilter,
    before: "LogPart",
    add: Callable[[LogRecord], None],
) -> None:
    """Until Ctrl-C. A call that ends is made again from where it was; raises CliError."""
    after, is_told = before.newest, False
    while True:
        is_open = False
        try:
            async for part in client.log.follow(wanted, after):
                if is_told:
                    _say(f"{log}: follows again")
                is_open, is_told = True, False
                after = max(after, part.newest)
                for record in part.records:
                    after = record.seq
                    add(record)
                _tell_unknown(part.unknown)
        except CliError as error:
            if error.code in {ExitCode.USAGE, ExitCode.NOT_AUTHORISED}:
                raise
            if not is_open and not is_told:
                is_told = True
                _say(f"{log}: its events are missing from now on until it answers again: {error}")
        await asyncio.sleep(_AGAIN_S)


def _tell(missing: "list[Missing]") -> None:
    for one in missing:
        _say(f"not read: {shown(one.name)}: {one.why}")


def _tell_unknown(count: int) -> None:
    if count:
        _say(f"left out: {counted(count, 'record')} that only a newer gpuwarden can read")


def _say(text: str) -> None:
    sys.stderr.write(f"gpuwarden: {text}\n")
    sys.stderr.flush()


# --- on the screen


class _Page:
    """What is printed: first the records that are there, then one by one."""

    def __init__(
        self, columns: tuple[Column[LogRecord], ...], output: Format, *, names_logs: bool = False
    ) -> None:
        self._columns = columns
        self._output = output
        self._names_logs = names_logs
        self._layout = Layout(
            visible(columns, wide=output is Format.WIDE), most=room(output), least=_WIDTHS
        )

    def begin(self, records: list[LogRecord], *, follows: bool) -> None:
        """Print those that are there."""
        sys.stdout.write(self._first(records, follows=follows))
        sys.stdout.flush()

    def add(self, record: LogRecord) -> None:
        """Print one that has come."""
        sys.stdout.write(self._next(record))

    def add_now(self, record: LogRecord) -> None:
        """Likewise, at once."""
        self.add(record)
        sys.stdout.flush()

    def _first(self, records: list[LogRecord], *, follows: bool) -> str:
        if self._output in STRUCTURED or self._output is Format.NAME:
            return "".join(map(self._next, records))
        if not follows:
            return on_screen(self._columns, records, self._output) or "No events.\n"
        return self._layout.heading() + "".join(map(self._next, records))

    def _next(self, record: LogRecord) -> str:
        if self._output is Format.NAME:
            return (
                f"{shown(record.origin)}:{record.seq}\n" if self._names_logs else f"{record.seq}\n"
            )
        if self._output in STRUCTURED:
            return json_line(_plain(record))
        return self._layout.line(record)


def _plain(record: LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
