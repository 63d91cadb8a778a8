"""`gpuwarden config print|validate|schema`: the configuration of agent and controller.

The same loader that the processes start with, so what is valid here is valid there.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.options import OWN_VARIABLES, Output
from gpuwarden.cli.output import Format, printed, structured
from gpuwarden.settings.loader import (
    AGENT,
    CONTROLLER,
    ConfigType,
    Inputs,
    Loaded,
    SettingsError,
    load,
)
from gpuwarden.settings.report import effective, json_schema, render
from gpuwarden.settings.start import CONFIG_VARIABLE, read_config_file, read_secret_file

Process = Literal["agent", "controller"]
File = Annotated[str, Parameter(name=["--config", "-f"], env_var=CONFIG_VARIABLE)]
Values = Annotated[list[str] | None, Parameter(name="--set", negative="")]
Environment = Annotated[bool, Parameter(name="--environment")]


def print_(
    *,
    process: Process,
    config: File = "",
    values: Values = None,
    environment: Environment = True,
    output: Output = Format.TABLE,
) -> None:
    """Print every effective value and where it comes from, secrets left out.

    Parameters
    ----------
    process
        Whose configuration it is.
    config
        Configuration file.
    values
        Set a key, as KEY=VALUE; may be repeated.
    environment
        Whether environment variables count, as they do for the process.
    output
        `table` prints a configuration file with comments, `json` and `yaml` values and sources.

    """
    loaded = _loaded(process, config, values or (), environment=environment)
    values_ = effective(loaded)
    sys.stdout.write(printed(values_, output, names=values_, text=lambda: render(loaded)))


def validate(
    *,
    process: Process,
    config: File = "",
    values: Values = None,
    environment: Environment = True,
) -> None:
    """Check whether a process would start with this configuration; exits with 2 and all findings.

    Parameters
    ----------
    process
        Whose configuration it is.
    config
        Configuration file.
    values
        Set a key, as KEY=VALUE; may be repeated.
    environment
        Whether environment variables count, as they do for the process.

    """
    loaded = _loaded(process, config, values or (), environment=environment)
    sys.stdout.write(f"{loaded.config.kind}: valid\n")


def schema(*, process: Process, output: Output = Format.JSON) -> None:
    """Print the JSON Schema of a configuration file, for editors and pipelines.

    Parameters
    ----------
    process
        Whose configuration it is.
    output
        `yaml`, or JSON.

    """
    format_ = Format.YAML if output is Format.YAML else Format.JSON
    sys.stdout.write(structured(json_schema(_type(process)), format_))


def _loaded(
    process: Process, config: str, values: Sequence[str], *, environment: bool
) -> Loaded[Any]:
    try:
        file = (config, read_config_file(config)) if config else None
        variables = _environment() if environment else {}
        inputs = Inputs(_flags(values), variables, file, read_secret_file)
        return load(_type(process), inputs)
    except SettingsError as error:
        text = "\n".join(str(finding) for finding in error.findings)
        raise CliError(ExitCode.USAGE, text) from None


def _environment() -> dict[str, str]:
    """Without the variables of this program, which the process would refuse as unknown."""
    return {name: text for name, text in os.environ.items() if name not in OWN_VARIABLES}


def _flags(values: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    pairs = [value.partition("=") for value in values]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise CliError(ExitCode.USAGE, f"--set {wrong[0]}: expected KEY=VALUE")
    return tuple((key, text, f"--set {key}") for key, _, text in pairs)


def _type(process: Process) -> ConfigType[Any]:
    return AGENT if process == "agent" else CONTROLLER
