"""Chooses and reads every value: flag > environment > file > default; all findings at once.

Pure: the caller reads files and the environment.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuwarden.settings.agent import KIND as AGENT_KIND
from gpuwarden.settings.agent import AgentSettings
from gpuwarden.settings.controller import KIND as CONTROLLER_KIND
from gpuwarden.settings.controller import ControllerSettings
from gpuwarden.settings.finding import Finding, SettingsError, quoted
from gpuwarden.settings.key import Key, build, keys_of
from gpuwarden.settings.rules import agent_rules, controller_rules
from gpuwarden.settings.sources import (
    Raw,
    ReadSecret,
    Source,
    from_environment,
    from_file,
    from_flags,
)
from gpuwarden.settings.yaml_file import parse_yaml

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ConfigType(Generic[S]):
    """The configuration of one kind of process."""

    kind: str
    settings: type[S]
    rules: Callable[[S], list[Finding]]

    @property
    def keys(self) -> tuple[Key, ...]:
        """All keys in order."""
        return tuple(keys_of(self.settings))


AGENT = ConfigType(AGENT_KIND, AgentSettings, agent_rules)
CONTROLLER = ConfigType(CONTROLLER_KIND, ControllerSettings, controller_rules)
CONFIG_TYPES: Mapping[str, ConfigType[Any]] = {AGENT.kind: AGENT, CONTROLLER.kind: CONTROLLER}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that is not default."""

    flags: Sequence[tuple[str, str, str]] = ()
    """Key, text, flag as typed."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: tuple[str, bytes] | None = None
    """Name and content."""
    read_secret: ReadSecret | None = None
    """Reads the files that secrets' `…_FILE` variables name; without it they are errors."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings, and for each key where its value came from."""

    config: ConfigType[S]
    settings: S
    values: Mapping[str, Any]
    sources: Mapping[str, str]


def load(config: ConfigType[S], inputs: Inputs) -> Loaded[S]:
    """Read everything; raises SettingsError with every finding."""
    keys = config.keys
    findings: list[Finding] = []
    sources = _sources(config, keys, inputs, findings)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key in keys:
        raw = _choose(key, sources, inputs.environment)
        if raw is not None:
            origins[key.name] = raw.source
            _read(key, raw, values, findings)
        elif key.required:
            findings.append(_missing(key))
        else:
            values[key.name], origins[key.name] = key.default, "default"
    if findings:
        raise SettingsError(findings)
    settings: S = build(config.settings, values)
    broken = [
        dataclasses.replace(found, source=origins.get(found.key, ""))
        for found in config.rules(settings)
    ]
    if broken:
        raise SettingsError(broken)
    return Loaded(config, settings, values, origins)


def _sources(
    config: ConfigType[S], keys: Sequence[Key], inputs: Inputs, findings: list[Finding]
) -> list[Source]:
    """Return flags, environment, file in their order of rank."""
    read_secret = inputs.read_secret or _no_secret_files
    others = [
        key for other in CONFIG_TYPES.values() if other.kind != config.kind for key in other.keys
    ]
    sources = [
        from_flags(keys, inputs.flags),
        from_environment(keys, others, inputs.environment, read_secret),
    ]
    for source in sources:
        findings += source.findings
    if inputs.file is not None:
        name, data = inputs.file
        try:
            root = parse_yaml(data, name)
        except SettingsError as error:
            # What the file would have said is unknown, so nothing can be missed either.
            raise SettingsError([*error.findings, *findings]) from None
        sources.append(from_file(keys, config.kind, root, name, read_secret))
        findings += sources[-1].findings
    return sources


def _choose(key: Key, sources: Sequence[Source], environment: Mapping[str, str]) -> Raw | None:
    for source in sources:
        if key.name in source.values:
            return source.values[key.name]
    if environment.get(key.spec.default_from):
        return Raw(environment[key.spec.default_from], f"default from ${key.spec.default_from}")
    return None


def _read(key: Key, raw: Raw, values: dict[str, Any], findings: list[Finding]) -> None:
    shown = "<redacted>" if key.spec.secret else quoted(raw.text)
    if raw.problem:
        findings.append(Finding(key.name, raw.source, shown, raw.problem))
        return
    try:
        values[key.name] = key.spec.kind.parse(raw.text)
    except ValueError:
        findings.append(Finding(key.name, raw.source, shown, key.spec.kind.expects))


def _missing(key: Key) -> Finding:
    also = f", or ${key.spec.default_from}" if key.spec.default_from else ""
    expected = f"{key.spec.kind.expects}; set it in the file, as --{key.name}, as {key.env}{also}"
    return Finding(key.name, "", "nothing", expected)


def _no_secret_files(path: str) -> str:
    raise OSError(f"{path} is not read here")
