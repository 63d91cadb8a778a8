"""`gpuwarden reservations` and `gpuwarden reservation release`: who holds which GPU.

Release names the one reservation that was shown. The controller refuses it while the pod
exists or the node shows the pod.
"""

import re
import sys
from collections.abc import Iterable
from typing import Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.connection.options import (
    HERE,
    AsRecordedBy,
    Connection,
    Namespace,
    Output,
    Yes,
    check_person,
    demand_yes,
    note_who_acted,
)
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.filters import STATE, ReservationState
from gpuwarden.cli.text.output import Format, plain, printed
from gpuwarden.cli.text.screen import on_screen
from gpuwarden.cli.text.tables import Column
from gpuwarden.cli.text.terminal import age, facts, short_uuid, shown
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as pb

_RELEASING: Final = "Releasing"
_BEGINNING: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}[0-9a-f-]{0,27}", re.IGNORECASE)


def gpu_text(gpu: pb.ReservedGpu, state: str, *, whole: bool = False) -> str:
    """A GPU, and what is special about it."""
    uuid = gpu.uuid if whole else short_uuid(gpu.uuid)
    notes = []
    if gpu.state != state:
        notes.append(gpu.state or "no record")
    if gpu.holders > 1:
        notes.append(f"{gpu.holders} holders")
    return f"{uuid} ({', '.join(notes)})" if notes else uuid


def _gpus(one: pb.Reservation, *, whole: bool = False) -> str:
    return ", ".join(gpu_text(x, one.state, whole=whole) for x in one.gpus)


RESERVATIONS: Final[tuple[Column[pb.Reservation], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace, is_name=True),
    Column("POD", lambda x: x.pod, is_name=True),
    Column("STATE", lambda x: x.state),
    Column("NODE", lambda x: x.node, is_name=True),
    Column("AGE", lambda x: age(x.age_s)),
    Column("ORIGIN", lambda x: x.origin, wide=True),
    Column("SHARED", lambda x: x.share_group, wide=True),
    Column("RESTORED", lambda x: "yes" if x.restored else "", wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("RESERVATION", lambda x: x.id, wide=True),
    Column("FULL-UUIDS", lambda x: _gpus(x, whole=True), wide=True),
    Column("GPUS", _gpus),
)


def reservations(
    *,
    node: str = "",
    namespace: Namespace = "",
    state: Annotated[list[ReservationState] | None, STATE] = None,
    pods: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """List who holds which GPU, by namespace and pod.

    Parameters
    ----------
    node
        Only reservations on this node.
    namespace
        Only reservations of this namespace's pods.
    state
        Only reservations in this state; may be repeated.
    pods
        Give pods as NAMESPACE/NAME, in the place of reservation IDs, where only names are printed.
    output
        How to print; `name` gives reservation ids only.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.reservations(node, namespace))
    found = [x for x in found if not state or x.state in state]
    found.sort(key=lambda x: (x.namespace, x.pod, x.id))
    text = printed(
        {"reservations": [plain(x) for x in found]},
        output,
        names=dict.fromkeys(_pods_of(found)) if pods else (x.id for x in found),
        text=lambda: on_screen(RESERVATIONS, found, output) or "No reservations.\n",
    )
    sys.stdout.write(text)


def _pods_of(found: Iterable[pb.Reservation]) -> Iterable[str]:
    return (f"{x.namespace}/{x.pod}" for x in found if x.pod)


def release(
    gpu: str,
    /,
    *,
    reason: str,
    pod: str = "",
    reservation: str = "",
    as_recorded_by: AsRecordedBy = "",
    yes: Yes = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Release a GPU of a silent node from a pod that has ended.

    Parameters
    ----------
    gpu
        UUID of the GPU or MIG device, or a beginning that no other reserved one has: `GPU-` and at
        least 8 digits.
    reason
        Why, for the audit log: 1 to 500 printable characters.
    pod
        Pod that holds the GPU, as NAMESPACE/NAME.
    reservation
        ID of the reservation, instead of --pod; `reservations -o wide` shows it.
    as_recorded_by
        Who you are, for the audit log; recorded as a claim beside what is proven.
    yes
        Do not ask; for programs.
    output
        How to print what was done; `name` gives the GPU's UUID.
    connection
        How to reach the controller.

    """
    check_person(as_recorded_by)
    if bool(pod) == bool(reservation):
        raise CliError(ExitCode.USAGE, "give one of --pod and --reservation")
    namespace, name = _split(pod) if pod else ("", "")
    listed = ask(connection, lambda client: client.reservations("", namespace))
    meant = [x for x in listed if x.id == reservation or (pod and x.pod == name)]
    gpu = _whole(gpu, meant)
    found = [x for x in meant if _state(x, gpu)]
    if len(found) > 1:
        found = [x for x in found if _state(x, gpu) == _RELEASING]
        if len(found) != 1:
            text = f"{len(found)} reservations of {shown(pod)} are being released there"
            raise CliError(ExitCode.ERROR, f"{text}: give --reservation")
    if pod and not found:
        _print(gpu, ops.ReleaseGpuResponse(already=True), output, pod)
        return
    one = found[0].id if found else reservation
    text = "\n".join(map(_shown_to_ask, found))
    demand_yes(f"Does nothing of the pod run any more? Release {shown(gpu)}?", text, yes=yes)
    done = ask(connection, lambda client: client.release_gpu(gpu, one, reason, as_recorded_by))
    note_who_acted(as_recorded_by, connection)
    _print(gpu, done, output, pod or one)


def _whole(gpu: str, meant: Iterable[pb.Reservation]) -> str:
    """The UUID that begins so; as given where none or several do."""
    if not _BEGINNING.fullmatch(gpu):
        return gpu
    begun = gpu.lower()
    named = {x.uuid for one in meant for x in one.gpus if x.uuid.lower().startswith(begun)}
    if len(named) > 1:
        raise CliError(ExitCode.USAGE, f"{shown(gpu)} begins {len(named)} UUIDs: give more of it")
    return next(iter(named), gpu)


def _shown_to_ask(one: pb.Reservation) -> str:
    return facts(
        (
            ("Pod", f"{one.namespace}/{one.pod or '-'}"),
            ("Pod UID", one.uid),
            ("State", one.state),
            ("Node", one.node),
            ("Age", age(one.age_s)),
            ("GPUs", _gpus(one, whole=True)),
            ("Reservation", one.id),
        )
    )


def _split(pod: str) -> tuple[str, str]:
    namespace, slash, name = pod.partition("/")
    if not namespace or not slash or not name or "/" in name:
        text = f"--pod: expected NAMESPACE/NAME, got '{shown(pod[:80])}'"
        raise CliError(ExitCode.USAGE, text)
    return namespace, name


def _state(one: pb.Reservation, gpu: str) -> str:
    """State of the reservation for this GPU; empty if it does not hold the GPU."""
    return next((x.state for x in one.gpus if x.uuid.lower() == gpu.lower()), "")


def _print(gpu: str, done: ops.ReleaseGpuResponse, output: Format, whose: str) -> None:
    pod = f"{shown(done.namespace)}/{shown(done.pod or '-')}"
    text = f"released from {pod} on {shown(done.node)}"
    if done.already:
        text = f"{shown(whose)} does not hold it; nothing was done"
    line = f"{shown(gpu)}: {text}\n"
    sys.stdout.write(printed(done, output, names=(gpu,), text=lambda: line))
