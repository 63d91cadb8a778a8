"""Settings of a process that starts: reads files and environment, or ends with a message.

The rim of this package: nothing else here touches files, the environment or streams.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gpuwarden.settings.finding import Finding, SettingsError, quoted
from gpuwarden.settings.flags import Arguments, parse_arguments
from gpuwarden.settings.loader import ConfigType, Inputs, Loaded, load
from gpuwarden.settings.report import render
from gpuwarden.settings.yaml_file import MAX_BYTES

EXIT_BAD_CONFIGURATION = 2
CONFIG_VARIABLE = "GPUWARDEN_CONFIG"
MAX_SECRET_BYTES = 64 << 10

S = TypeVar("S")


def settings_or_exit(
    program: str,
    config: ConfigType[S],
    argv: Sequence[str],
    environment: Mapping[str, str] = os.environ,
) -> Loaded[S]:
    """Return the settings; prints every finding and exits 2, or prints the settings and exits 0."""
    arguments = parse_arguments(program, config.keys, argv)
    try:
        loaded = load(config, read_inputs(arguments, environment))
    except SettingsError as error:
        for finding in error.findings:
            sys.stderr.write(f"{program}: {finding}\n")
        raise SystemExit(EXIT_BAD_CONFIGURATION) from None
    if arguments.print_config:
        sys.stdout.write(render(loaded))
        raise SystemExit(0)
    return loaded


def read_inputs(arguments: Arguments, environment: Mapping[str, str]) -> Inputs:
    """Read the file that flag or environment names; raises SettingsError if that fails."""
    name = arguments.config or environment.get(CONFIG_VARIABLE)
    file = (name, read_config_file(name)) if name else None
    return Inputs(arguments.flags, environment, file, read_secret_file)


def read_config_file(name: str) -> bytes:
    """Read a configuration file, at most one byte more than is allowed."""
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(
            [Finding("--config", "", quoted(name), f"a readable file ({_reason(error)})")]
        ) from None


def read_secret_file(name: str) -> str:
    """Read a secret; raises OSError, ValueError."""
    with Path(name).open("rb") as file:
        data = file.read(MAX_SECRET_BYTES + 1)
    if len(data) > MAX_SECRET_BYTES:
        raise ValueError(f"more than {MAX_SECRET_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
