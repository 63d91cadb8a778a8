"""`gpuwarden fit`: which nodes would pass for a pod, before there is one."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuwarden.cli.client import ask
from gpuwarden.cli.fleet_columns import FITS
from gpuwarden.cli.manifest import MAX_BYTES, ManifestError, parse_manifest
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import shown, table
from gpuwarden.wire.v1 import fleet_pb2 as pb


def fit(
    *,
    file: Annotated[str, Parameter(name=["--file", "-f"], allow_leading_hyphen=True)],
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "default",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Say which nodes a pod would pass on and why the others refuse it; exits with 3 if none.

    Parameters
    ----------
    file
        YAML or JSON of a Pod, or of an object that holds a pod template; `-` reads standard input.
    namespace
        Namespace of the pod where the manifest has none.
    output
        How to print; `name` gives the nodes that pass.
    connection
        How to reach the controller.

    """
    pod = json.dumps(_manifest(file)).encode()
    found = ask(connection, lambda asker: asker.fit(pod, namespace))
    sys.stdout.write(_text(found, output))
    return ExitCode.OK if _passes(found) else ExitCode.FINDING


def _manifest(file: str) -> object:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
        return parse_manifest(content)
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"--file: {shown(file)}: {error.strerror}") from None
    except ManifestError as error:
        raise CliError(ExitCode.USAGE, f"--file: {shown(file)}: {error}") from None


def _passes(found: pb.FitPodResponse) -> bool:
    return not found.code and (not found.guarded or any(one.passes for one in found.fits))


def _text(found: pb.FitPodResponse, output: Format) -> str:
    if output in STRUCTURED:
        return structured(plain(found), output)
    if output is Format.NAME:
        return "".join(f"{shown(one.node)}\n" for one in found.fits if one.passes)
    if found.code:
        return f"The pod is refused: {found.code} {shown(found.detail)}\n"
    if not found.guarded:
        return "The pod asks for nothing of gpuwarden and passes untouched.\n"
    asks = "".join(f"  {shown(one)}\n" for one in found.requirements)
    nodes = table(FITS, found.fits) if found.fits else "No nodes.\n"
    return f"The pod asks for:\n{asks}\n{nodes}"
