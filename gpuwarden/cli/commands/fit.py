"""`gpuwarden fit`: the nodes on which a pod would pass, before it exists."""

import json
import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.commands.classes import class_change_text
from gpuwarden.cli.connection.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.pod_texts import refused
from gpuwarden.cli.text.screen import on_screen
from gpuwarden.cli.text.tables import Column, Tone
from gpuwarden.cli.text.terminal import paragraph, shown
from gpuwarden.strict_yaml import YamlError, parse_plain
from gpuwarden.wire.v1 import fleet_pb2 as pb

MAX_BYTES: Final = 1024 * 1024

POD: Final[Column[pb.Fit]] = Column("POD", lambda x: x.pod, is_name=True)
FITS: Final[tuple[Column[pb.Fit], ...]] = (
    Column("NODE", lambda x: x.node, is_name=True),
    Column(
        "FITS",
        lambda x: "yes" if x.passes else "no",
        tone=lambda x: Tone.GOOD if x.passes else Tone.BAD,
    ),
    Column("SCORE", lambda x: str(x.score) if x.passes else "", wide=True),
    Column("GUARANTEE", lambda x: x.guarantee),
    Column("REASON", lambda x: x.code),
    Column("DETAIL", lambda x: x.detail),
)


def fit(
    *,
    file: Annotated[str, Parameter(name=["--file", "-f"], allow_leading_hyphen=True)],
    namespace: Namespace = "default",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Show whether a pod is refused, and where it would pass; exits with 3 if that is nowhere.

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
    found = ask(connection, lambda client: client.fit(pod, namespace))
    passing = (one.node for one in found.fits if one.passes)
    sys.stdout.write(printed(found, output, names=passing, text=lambda: _text(found, output)))
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
    except YamlError as error:
        raise CliError(ExitCode.USAGE, f"--file: {shown(file)}: {error}") from None


def _passes(found: pb.FitPodResponse) -> bool:
    """Whether each pod of the object has a node."""
    if found.code:
        return False
    pods = {one.pod for one in found.fits}
    placed = {one.pod for one in found.fits if one.passes}
    return not found.managed or (bool(placed) and placed == pods)


def _text(found: pb.FitPodResponse, output: Format) -> str:
    warned = "".join(paragraph(one, first="Warning: ", indent=9) for one in found.warnings)
    if found.code:
        text = warned + paragraph(f"The pod {refused(found.code, found.detail)}")
        return f"{text}\n{_nodes(found, output)}" if found.fits else text
    if not found.managed:
        return f"{warned}The pod has no GPU requirement; gpuwarden does not manage it.\n"
    asks = "".join(paragraph(one, first="  ", indent=2) for one in found.requirements)
    return f"{warned}The pod requires:\n{asks}\n{_nodes(found, output)}"


def _nodes(found: pb.FitPodResponse, output: Format) -> str:
    columns = (POD, *FITS) if any(one.pod for one in found.fits) else FITS
    table = on_screen(columns, found.fits, output) or "No nodes.\n"
    return "\n".join((table, *_class_changes(found, output)))


def _class_changes(found: pb.FitPodResponse, output: Format) -> list[str]:
    """Of nodes whose class the pod does not want, each once."""
    changed = {x.node: x.class_change for x in found.fits if x.HasField("class_change")}
    return [class_change_text(f"{node}: its", x, output) for node, x in sorted(changed.items())]


def parse_manifest(content: bytes) -> dict[str, object]:
    """The one object in `content` (UTF-8 YAML or JSON); raises YamlError."""
    found = parse_plain(content, max_bytes=MAX_BYTES)
    if not isinstance(found, dict):
        raise YamlError(None, "no object", "an object such as a Pod or Deployment")
    return found
