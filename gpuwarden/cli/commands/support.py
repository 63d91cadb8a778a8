"""`gpuwarden support-bundle`: one archive about a controller or an agent, for a bug report.

It holds the controller's parts and those of this machine. A part that is missing is named with
its reason; only an archive that cannot be written is an error. `gpuwarden.support` decides what
may be in a part; this module takes parts by their known names only.
"""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from gpuwarden.cli.connection.options import HERE, OWN_VARIABLES, Connection
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import MEANING, CliError, ExitCode
from gpuwarden.cli.text.terminal import shown
from gpuwarden.settings.loader import AGENT, CONTROLLER, Inputs, Loaded, SettingsError, load
from gpuwarden.settings.start import CONFIG_VARIABLE, read_config_file, read_secret_file
from gpuwarden.settings.values import Address
from gpuwarden.support.archive import Bundle, pack, write_new
from gpuwarden.support.disclosure import known_words, received_part
from gpuwarden.support.local import ops_parts, reachable, settings_parts, versions_part
from gpuwarden.support.part import CONTROLLER_PARTS, Part, missing

Process = Literal["agent", "controller"]
File = Annotated[str, Parameter(name=["--config", "-f"], env_var=CONFIG_VARIABLE)]
Target = Annotated[str, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)]

_STDOUT: Final = "-"
_OPS_PARTS: Final = ("readyz.json", "metrics.prom")


def support_bundle(
    *,
    output: Target = "",
    process: Process = "controller",
    config: File = "",
    ops: str = "",
    connection: Connection = HERE,
) -> None:
    """Collect what helps with a bug report into one archive, without secrets.

    Parameters
    ----------
    output
        File to write, which must not exist, or `-` for standard output; by default a name
        with the time, in the current folder.
    process
        What it is about: with `agent`, the agent of this machine; no controller is asked.
    config
        Configuration file of the process, to add what this machine shows.
    ops
        Address of its ops listener (`listen.ops`), `HOST:PORT`; by default as configured.
    connection
        How to reach the controller.

    """
    if output == _STDOUT and sys.stdout.isatty():
        raise CliError(ExitCode.USAGE, "--output -: standard output is a terminal; redirect it")
    if output.startswith("-") and output != _STDOUT:
        raise CliError(ExitCode.USAGE, f"--output: expected a file or -, got {shown(output)}")
    if output not in {"", _STDOUT} and os.path.lexists(output):
        raise CliError(ExitCode.USAGE, f"--output: {shown(output)} exists already")
    address = _address(ops)
    sections: dict[str, list[Part]] = {}
    if process == "controller":
        sections["controller"] = _asked(connection)
    sections["local"] = _local(process, config, address)
    bundle = pack(sections, datetime.now(UTC))
    written = _written(bundle, output)
    for path, why in bundle.gaps:
        sys.stderr.write(f"gpuwarden: missing in the bundle: {path}: {why}\n")
    if written:
        sys.stdout.write(f"{shown(written)}\n")


def _asked(connection: Connection) -> list[Part]:
    """The controller's parts, each of them or why it is missing."""
    try:
        received = {part.name: part for part in ask(connection, lambda client: client.support())}
    except CliError as error:
        sys.stderr.write(f"gpuwarden: {error}\n")
        words = " ".join([MEANING[error.code], *known_words(str(error))])
        return [missing(name, words) for name in CONTROLLER_PARTS]
    return [
        received_part(received.get(name, missing(name, "the controller did not send it")))
        for name in CONTROLLER_PARTS
    ]


def _address(ops: str) -> Address | None:
    try:
        return Address.parse(ops) if ops else None
    except ValueError:
        text = f"--ops: expected HOST:PORT, got {shown(ops[:80])}"
        raise CliError(ExitCode.USAGE, text) from None


def _local(process: Process, config: str, address: Address | None) -> list[Part]:
    parts = [versions_part()]
    found = _settings(process, config)
    if isinstance(found, Part):
        parts.append(found)
    else:
        parts += settings_parts(found)
        address = address or reachable(found.settings.listen.ops)
    if address is None:
        why = "its address is not known; give --ops"
        return [*parts, *(missing(name, why) for name in _OPS_PARTS)]
    return [*parts, *ops_parts(address)]


def _settings(process: Process, config: str) -> Loaded[Any] | Part:
    """The settings as the process would load them, or the keys that are wrong."""
    variables = {name: text for name, text in os.environ.items() if name not in OWN_VARIABLES}
    try:
        file = (config, read_config_file(config)) if config else None
        inputs = Inputs((), variables, file, read_secret_file)
        return load(AGENT if process == "agent" else CONTROLLER, inputs)
    except SettingsError as error:
        keys = sorted({finding.setting or finding.key for finding in error.findings} & _KEYS)
        return missing("settings.json", f"incomplete configuration (--config): {', '.join(keys)}")


_KEYS: Final = {key.name for config in (AGENT, CONTROLLER) for key in config.keys} | {"--config"}


def _written(bundle: Bundle, output: str) -> str:
    """Name of the file; empty where it went to standard output."""
    if output == _STDOUT:
        sys.stdout.buffer.write(bundle.data)
        return ""
    path = Path(output or bundle.name)
    try:
        write_new(bundle.data, path)
    except OSError as error:
        text = f"--output: cannot write {shown(str(path))}: {error.strerror}"
        raise CliError(ExitCode.ERROR, text) from None
    return str(path)
