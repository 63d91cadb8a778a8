"""`gpuwarden use`: GPUs that are used without a reservation, and reservations without use."""

import sys
from typing import Final

from gpuwarden.cli.connection.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.screen import ago, on_screen
from gpuwarden.cli.text.tables import Column
from gpuwarden.cli.text.terminal import joined, paragraph, short_uuid
from gpuwarden.wire.v1 import placement_pb2 as pb

_HOST: Final = "process of the host"
_SECONDS_PER_HOUR: Final = 3600


def owner(fault: pb.UseFault) -> str:
    """The pod, or what is known of it."""
    if fault.pod:
        return f"{fault.namespace}/{fault.pod}"
    return f"pod UID {fault.uid}" if fault.uid else _HOST


def hours(seconds: int) -> str:
    """GPU-hours with one decimal."""
    return f"{seconds / _SECONDS_PER_HOUR:.1f}"


def share(one: pb.NamespaceUse) -> str:
    """Idle time of reserved time."""
    return f"{100 * one.idle_gpu_s // one.reserved_gpu_s}%" if one.reserved_gpu_s else ""


FAULTS: Final[tuple[Column[pb.UseFault], ...]] = (
    Column("KIND", lambda x: x.kind),
    Column("NODE", lambda x: x.node, is_name=True),
    Column("GPU", lambda x: short_uuid(x.gpu)),
    Column("SINCE", lambda x: ago(x.since)),
    Column("FULL-UUID", lambda x: x.gpu, wide=True),
    Column("AT", lambda x: x.since, wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("HELD-BY", lambda x: joined(x.held_by), wide=True),
    Column("OWNER", owner),
)
IDLE: Final[tuple[Column[pb.IdleGpu], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace, is_name=True),
    Column("POD", lambda x: x.pod, is_name=True),
    Column("NODE", lambda x: x.node, is_name=True),
    Column("IDLE", lambda x: ago(x.since)),
    Column("FULL-UUID", lambda x: x.gpu, wide=True),
    Column("AT", lambda x: x.since, wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("RESERVATION", lambda x: x.reservation, wide=True),
    Column("GPU", lambda x: short_uuid(x.gpu)),
)
NAMESPACES: Final[tuple[Column[pb.NamespaceUse], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace, is_name=True),
    Column("RESERVED-GPU-HOURS", lambda x: hours(x.reserved_gpu_s)),
    Column("IDLE-GPU-HOURS", lambda x: hours(x.idle_gpu_s)),
    Column("IDLE", share),
    Column("IDLE-NOW", lambda x: str(x.idle_gpus)),
)


def use(
    *,
    namespace: Namespace = "",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """List GPUs that are used without a reservation, and reserved GPUs that nobody uses.

    Parameters
    ----------
    namespace
        Only what is about this namespace.
    output
        How to print; `name` gives the UUIDs of these GPUs.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.use(namespace))
    uuids = (*(x.gpu for x in found.faults if x.gpu), *(x.gpu for x in found.idle))
    text = printed(found, output, names=dict.fromkeys(uuids), text=lambda: _text(found, output))
    sys.stdout.write(text)


def _text(found: pb.ListUseResponse, output: Format) -> str:
    since = f"since {found.since}" if found.since else "since this replica's start"
    parts = (
        _part(
            f"Used otherwise than reserved: {found.fault_count}",
            on_screen(FAULTS, found.faults, output),
        ),
        _part(f"Reserved and idle: {found.idle_count}", on_screen(IDLE, found.idle, output)),
        _part(f"GPU time {since}:", on_screen(NAMESPACES, found.namespaces, output) or "None.\n"),
    )
    return "\n".join(parts)


def _part(title: str, table: str) -> str:
    return paragraph(title) + table
