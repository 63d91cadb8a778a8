"""`gpuwarden reservations` and `gpuwarden reservation release`: who holds which GPU.

Release names the one reservation that was shown. The controller refuses it while the pod
exists or the node shows the pod.
"""

import sys
from typing import Final

from gpuwarden.cli.client import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.options import (
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
from gpuwarden.cli.output import Format, plain, printed
from gpuwarden.cli.terminal import Column, age, joined, shown, table, visible
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as pb

_RELEASING: Final = "Releasing"


def gpu_text(gpu: pb.ReservedGpu, state: str) -> str:
    """A GPU, and what is special about it."""
    notes = []
    if gpu.state != state:
        notes.append(gpu.state or "no record")
    if gpu.holders > 1:
        notes.append(f"{gpu.holders} holders")
    return f"{gpu.uuid}({', '.join(notes)})" if notes else gpu.uuid


RESERVATIONS: Final[tuple[Column[pb.Reservation], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace),
    Column("POD", lambda x: x.pod),
    Column("STATE", lambda x: x.state),
    Column("NODE", lambda x: x.node),
    Column("GPUS", lambda x: joined(gpu_text(one, x.state) for one in x.gpus)),
    Column("ORIGIN", lambda x: x.origin),
    Column("SHARED", lambda x: x.share_group),
    Column("AGE", lambda x: age(x.age_s)),
    Column("RESTORED", lambda x: "yes" if x.adopted else "", wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("RESERVATION", lambda x: x.id, wide=True),
)


def reservations(
    *,
    node: str = "",
    namespace: Namespace = "",
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
    output
        How to print; `name` gives reservation ids only.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.reservations(node, namespace))
    found.sort(key=lambda x: (x.namespace, x.pod, x.id))
    columns = visible(RESERVATIONS, wide=output is Format.WIDE)
    text = printed(
        {"reservations": [plain(x) for x in found]},
        output,
        names=(x.id for x in found),
        text=lambda: table(columns, found) if found else "No reservations.\n",
    )
    sys.stdout.write(text)


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
        UUID of the GPU or MIG device.
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
    text = table(visible(RESERVATIONS, wide=True), found) if found else ""
    demand_yes(f"Does nothing of the pod run any more? Release {shown(gpu)}?", text, yes=yes)
    done = ask(connection, lambda client: client.release_gpu(gpu, one, reason, as_recorded_by))
    note_who_acted(as_recorded_by, connection)
    _print(gpu, done, output, pod or one)


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
