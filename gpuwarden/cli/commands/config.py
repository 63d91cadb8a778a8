"""`gpuwarden config print|validate|schema`: configurations of the processes, and policies.

The same readers that the processes start with, so what is valid here is valid there.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from gpuwarden.cli.connection.options import OWN_VARIABLES, Output
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format, printed, structured
from gpuwarden.cli.text.terminal import shown
from gpuwarden.finding import Finding, near_miss, quoted, required
from gpuwarden.policy.document import KIND as POLICY
from gpuwarden.policy.document import MAX_BYTES as MAX_POLICY_BYTES
from gpuwarden.policy.document import PolicyInvalidError, read_policy
from gpuwarden.policy.objects import OBJECT_KINDS, has_objects, read_objects
from gpuwarden.settings.controller import ControllerSettings
from gpuwarden.settings.loader import (
    AGENT,
    CONTROLLER,
    SCORE,
    ConfigType,
    Inputs,
    Loaded,
    SettingsError,
    kind_of,
    load,
)
from gpuwarden.settings.report import effective, json_schema, render
from gpuwarden.settings.start import CONFIG_VARIABLE, read_config_file, read_secret_file

Process = Literal["agent", "controller", "score"]
Subject = Process | Literal["policy", "objects"]
"""What a file can be: a configuration, a policy, or a policy's custom resources."""
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
    process: Process | None = None,
    config: File = "",
    values: Values = None,
    environment: Environment = True,
) -> None:
    """Check a configuration or a policy; exits with 2 and all findings.

    Parameters
    ----------
    process
        Whose configuration it is; without it, the file's `kind` says so.
    config
        Configuration of a process, or a policy: as a file or as custom resources.
    values
        Set a key, as KEY=VALUE; may be repeated.
    environment
        Whether environment variables count, as they do for the process.

    """
    subject = process or _subject_of(config)
    if subject in {"agent", "controller", "score"}:
        loaded = _loaded(subject, config, values or (), environment=environment)
        lines = [f"{config or 'flags and environment'}: valid {loaded.config.kind}"]
        lines += _policy_of(loaded.settings)
    elif values:
        raise CliError(ExitCode.USAGE, "--set: a policy has no keys to set")
    elif subject == "policy":
        lines = [_checked_policy(config, opaque_hashes=False)]
    else:
        lines = _checked_objects(config)
    sys.stdout.write("".join(f"{shown(line)}\n" for line in lines))


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
        raise _refused(error.findings) from None


def _subject_of(config: str) -> Subject:
    """What the file says that it is."""
    if not config:
        raise CliError(ExitCode.USAGE, "--config or --process is required: what is to be checked?")
    try:
        data = read_config_file(config, max_bytes=MAX_POLICY_BYTES)
        if has_objects(data):
            return "objects"
        kind, line = kind_of(config, data)
    except SettingsError as error:
        raise _refused(error.findings) from None
    if kind in _CHECKED:
        return _CHECKED[kind]
    place = f"file {config}" if line is None else f"file {config}, line {line}"
    expected = f"{', '.join(_CHECKED)}"
    near = near_miss(kind, _CHECKED)
    hint = f"; did you mean {near}?" if near else ""
    finding = (
        Finding("kind", quoted(kind), f"one of {expected}{hint}", place)
        if kind
        else required("kind", f"one of {expected}", place)
    )
    raise _refused([finding])


_CHECKED: Final[Mapping[str, Subject]] = {
    AGENT.kind: "agent",
    CONTROLLER.kind: "controller",
    SCORE.kind: "score",
    POLICY: "policy",
    **dict.fromkeys(OBJECT_KINDS, "objects"),
}
"""Kind of a file -> what it is."""


def _policy_of(settings: object) -> list[str]:
    """What there is to say of the policy that a controller's configuration names."""
    if not isinstance(settings, ControllerSettings) or settings.policy.file is None:
        return []
    path = settings.policy.file
    if not path.exists():
        return [f"{path}: policy.file is not on this machine, so it is not checked"]
    return [_checked_policy(str(path), opaque_hashes=settings.insecure_static_hashes)]


def _checked_policy(name: str, *, opaque_hashes: bool) -> str:
    with _faults_of(name):
        data = read_config_file(name, max_bytes=MAX_POLICY_BYTES)
        read_policy(data, opaque_hashes=opaque_hashes)
    return f"{name}: valid {POLICY}"


def _checked_objects(name: str) -> list[str]:
    with _faults_of(name):
        keys = read_objects(read_config_file(name, max_bytes=MAX_POLICY_BYTES))
    return [f"{name}: valid {key}" for key in keys]


@contextmanager
def _faults_of(name: str) -> Iterator[None]:
    """Whatever is wrong with the file is a usage error that names it."""
    try:
        yield
    except SettingsError as error:
        raise _refused(error.findings) from None
    except PolicyInvalidError as error:
        raise _refused(
            replace(found, source=", ".join(filter(None, (f"file {name}", found.source))))
            for found in error.findings
        ) from None


def _refused(findings: Iterable[Finding]) -> CliError:
    return CliError(ExitCode.USAGE, "\n".join(map(str, findings)))


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
    return _TYPES[process]


_TYPES: Final[Mapping[Process, ConfigType[Any]]] = {
    "agent": AGENT,
    "controller": CONTROLLER,
    "score": SCORE,
}
