"""`gpuwarden explain pod`: a pod's way to its GPUs, or why it waits."""

import sys
from typing import Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.account_text import account_text, waits
from gpuwarden.cli.client import ask
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import shown
from gpuwarden.wire.v1 import placement_pb2 as pb

_SHOWN: Final = 80


def pod(
    name: str,
    /,
    *,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "default",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Explain a pod: what it wished, what is reserved, where it went, what kubelet and NVML say.

    Exits with 3 where one of these is missing or does not agree with those before, and where
    the pod waits and no node would pass now.

    Parameters
    ----------
    name
        The pod, as `NAMESPACE/NAME` or `NAME`.
    namespace
        Namespace of a pod that is given by its name alone.
    output
        How to print; `name` gives the reason codes for which nodes reject it now.
    connection
        How to reach the controller.

    """
    where, what = _parted(name, namespace)
    found = ask(connection, lambda asker: asker.account(where, what))
    sys.stdout.write(_text(found, output))
    stuck = waits(found) and found.guarded and (found.code or not found.passing)
    return ExitCode.FINDING if found.wrong or stuck else ExitCode.OK


def _parted(name: str, namespace: str) -> tuple[str, str]:
    before, slash, after = name.partition("/")
    where, what = (before, after) if slash else (namespace, before)
    if not where or not what or "/" in what:
        text = f"expected NAMESPACE/NAME or NAME, got '{shown(name[:_SHOWN])}'"
        raise CliError(ExitCode.USAGE, text)
    return where, what


def _text(found: pb.ExplainPodResponse, output: Format) -> str:
    if output in STRUCTURED:
        return structured(plain(found), output)
    if output is Format.NAME:
        codes = (*filter(None, (found.code,)), *(x.code for x in found.rejections))
        return "".join(f"{shown(x)}\n" for x in dict.fromkeys(codes))
    return account_text(found, wide=output is Format.WIDE)
