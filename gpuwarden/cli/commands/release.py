"""`gpuwarden reservation release`: an operator's word that nothing is left of a pod on a GPU.

What is sent names the one reservation that was shown; the controller refuses it while the pod
lives or the node shows it.
"""

import sys
from typing import Final

from gpuwarden.cli.client import ask
from gpuwarden.cli.confirmation import Yes, demand_yes
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.reservation_columns import RESERVATIONS
from gpuwarden.cli.terminal import shown, table, visible
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as pb

_RELEASING: Final = "Releasing"


def release(
    gpu: str,
    /,
    *,
    reason: str,
    pod: str = "",
    reservation: str = "",
    yes: Yes = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Release a GPU of a silent node from a pod that has ended.

    For a node that is gone or does not answer: whoever says so makes sure that nothing of the
    pod runs there any more. Refused while the pod lives and while the node shows it. Ends 0 where
    the GPU is free of the reservation already.

    Parameters
    ----------
    gpu
        UUID of the GPU or MIG device.
    reason
        Why, for the audit log: 1 to 500 printable characters.
    pod
        Whose part in the GPU, as NAMESPACE/NAME.
    reservation
        Or the id of the reservation, as `reservations -o wide` shows it.
    yes
        Do not ask; for programs.
    output
        How to print what was done; `name` gives the GPU's UUID.
    connection
        How to reach the controller.

    """
    if bool(pod) == bool(reservation):
        raise CliError(ExitCode.USAGE, "give one of --pod and --reservation")
    namespace, name = _split(pod) if pod else ("", "")
    listed = ask(connection, lambda asker: asker.reservations("", namespace))
    found = [x for x in listed if _has(x, gpu) and (x.id == reservation or (pod and x.pod == name))]
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
    demand_yes(f"Is nothing of it left, and {shown(gpu)} to be released?", text, yes=yes)
    done = ask(connection, lambda asker: asker.release_gpu(gpu, one, reason))
    _print(gpu, done, output, pod or one)


def _split(pod: str) -> tuple[str, str]:
    namespace, slash, name = pod.partition("/")
    if not namespace or not slash or not name or "/" in name:
        text = f"--pod: expected NAMESPACE/NAME, got '{shown(pod[:80])}'"
        raise CliError(ExitCode.USAGE, text)
    return namespace, name


def _state(one: pb.Reservation, gpu: str) -> str:
    """Where the reservation stands there; empty where it has no part in the GPU."""
    return next((x.state for x in one.gpus if x.uuid.lower() == gpu.lower()), "")


def _has(one: pb.Reservation, gpu: str) -> bool:
    return bool(_state(one, gpu))


def _print(gpu: str, done: ops.ReleaseGpuResponse, output: Format, whose: str) -> None:
    if output in STRUCTURED:
        sys.stdout.write(structured(plain(done), output))
    elif output is Format.NAME:
        sys.stdout.write(f"{shown(gpu)}\n")
    elif done.already:
        sys.stdout.write(f"{shown(gpu)}: {shown(whose)} has no part in it, nothing was done\n")
    else:
        pod = f"{shown(done.namespace)}/{shown(done.pod or '-')}"
        sys.stdout.write(f"{shown(gpu)}: released from {pod} on {shown(done.node)}\n")
