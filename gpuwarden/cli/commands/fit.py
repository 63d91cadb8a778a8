"""`gpuwarden fit`: the nodes on which a pod would pass, before it exists."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from cyclopts import Parameter

from gpuwarden.cli.client import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.output import Format, printed
from gpuwarden.cli.terminal import Column, shown, table
from gpuwarden.wire.v1 import fleet_pb2 as pb

MAX_BYTES: Final = 1024 * 1024
_TEXT: Final = "tag:yaml.org,2002:str"

FITS: Final[tuple[Column[pb.Fit], ...]] = (
    Column("NODE", lambda x: x.node),
    Column("FITS", lambda x: "yes" if x.passes else "no"),
    Column("SCORE", lambda x: str(x.score) if x.passes else ""),
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
    """List the nodes where a pod would pass; exits with 3 if there is none.

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
    sys.stdout.write(printed(found, output, names=passing, text=lambda: _text(found)))
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


def _text(found: pb.FitPodResponse) -> str:
    if found.code:
        return f"The pod is refused: {found.code} {shown(found.detail)}\n"
    if not found.guarded:
        return "The pod has no GPU requirement; gpuwarden does not manage it.\n"
    asks = "".join(f"  {shown(one)}\n" for one in found.requirements)
    nodes = table(FITS, found.fits) if found.fits else "No nodes.\n"
    return f"The pod requires:\n{asks}\n{nodes}"


# --- the manifest


class ManifestError(ValueError):
    """The text is not one manifest; says where and what was expected."""


class _Loader(yaml.SafeLoader):
    """SafeLoader without anchors, duplicate keys and timestamps."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the signature of the library
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != _TEXT:
                text = "a key must be text; quote it"
                raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
            if key.value in seen:
                text = f"key {key.value[:80]!a} appears twice"
                raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_manifest(content: bytes) -> dict[str, Any]:
    """The one object in `content` (UTF-8 YAML or JSON); raises ManifestError."""
    if len(content) > MAX_BYTES:
        raise ManifestError(f"larger than {MAX_BYTES} bytes")
    try:
        documents = [x for x in yaml.load_all(content.decode(), _Loader) if x is not None]
    except UnicodeDecodeError as error:
        raise ManifestError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ManifestError("nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"not YAML or JSON: {_where(error)}") from None
    if len(documents) != 1:
        raise ManifestError(f"expected one manifest, found {len(documents)}")
    if not isinstance(documents[0], dict):
        raise ManifestError("expected an object such as a Pod or Deployment")
    return documents[0]


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem
