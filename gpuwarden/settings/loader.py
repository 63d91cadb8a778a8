"""Reads every value: flag > environment > file > default. Reports all findings at once.

Each source becomes a mapping from key to `Raw`; what it does not know becomes a finding with the
nearest known name. A finding names the key as it was written: the flag, the variable, or the path
in the file. Pure: the caller reads files and the environment.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuwarden.finding import Finding, quoted, required
from gpuwarden.settings.agent import KIND as AGENT_KIND
from gpuwarden.settings.agent import AgentSettings
from gpuwarden.settings.controller import KIND as CONTROLLER_KIND
from gpuwarden.settings.controller import ControllerSettings
from gpuwarden.settings.keys import (
    ENV_PREFIX,
    FILE_SUFFIX,
    Key,
    Shape,
    build,
    keys_of,
)
from gpuwarden.settings.rules import agent_rules, controller_rules, score_rules
from gpuwarden.settings.score import KIND as SCORE_KIND
from gpuwarden.settings.score import ScoreSettings
from gpuwarden.settings.unknown_names import unknown_flag, unknown_key, unknown_variable
from gpuwarden.strict_yaml import (
    ListValue,
    MapValue,
    Scalar,
    ScalarValue,
    Value,
    YamlError,
    parse_tree,
)

S = TypeVar("S")

API_VERSION = "config.gpuwarden.dev/v1alpha1"
FILE_KEY_SUFFIX = "File"
MAX_FILE_BYTES = 256 << 10

_OTHER_VARIABLES = frozenset(
    {"GPUWARDEN_CONFIG", "GPUWARDEN_SERVER", "GPUWARDEN_SVID", "GPUWARDEN_KEY", "GPUWARDEN_BUNDLE"}
)
"""Names with the prefix that are no settings: the file's name, and what the command line takes."""

_SCALARS = {
    Shape.TEXT: (Scalar.TEXT,),
    Shape.NUMBER: (Scalar.TEXT, Scalar.NUMBER),
    Shape.BOOLEAN: (Scalar.BOOLEAN,),
    Shape.WORD: (Scalar.TEXT, Scalar.BOOLEAN, Scalar.NUMBER, Scalar.OTHER),
}
"""What YAML may see in a scalar of each shape; a closed set of words cannot be misread."""

_SERVICE_LINK = re.compile(
    r"_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)"
)
"""Variables that Kubernetes sets in every pod for a Service, such as gpuwarden's own."""


class SettingsError(Exception):
    """The configuration cannot be used; `findings` has every reason."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in findings))


@dataclass(frozen=True, slots=True)
class Raw:
    """A value before its kind has read it."""

    text: str
    origin: "Origin"
    problem: str = ""
    """Set if the source itself is wrong: what was expected of it."""
    is_text: bool = True
    """Whether the writer gave `text`, and not a list or mapping that `text` describes."""

    def finding(self, key: "Key", expected: str) -> Finding:
        """What is wrong with it."""
        shown = quoted(self.text) if self.is_text else self.text
        return Finding(
            self.origin.name,
            "<redacted>" if key.spec.secret else shown,
            expected,
            self.origin.place,
            setting=key.name,
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was given, and under which name."""

    place: str
    """`flag`, `environment`, `file f.yaml, line 3`."""
    name: str
    """As it was written: a flag, a variable, a key of the file."""
    text: str
    """Both, for who asks where an effective value comes from."""


@dataclass(frozen=True, slots=True)
class Source:
    """What one source gives."""

    values: Mapping[str, Raw]
    findings: tuple[Finding, ...] = ()


ReadSecret = Callable[[str], str]
"""Reads the file that a `…_FILE` variable or `…File` key names; raises OSError, ValueError."""


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
SCORE = ConfigType(SCORE_KIND, ScoreSettings, score_rules)
CONFIG_TYPES: Mapping[str, ConfigType[Any]] = {
    config.kind: config for config in (AGENT, CONTROLLER, SCORE)
}


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
    warnings: tuple[Finding, ...] = ()
    """What other programs' variables give that cannot be used: the default is in its place."""


def load(config: ConfigType[S], inputs: Inputs) -> Loaded[S]:
    """Read everything; raises SettingsError with every finding."""
    keys = config.keys
    findings: list[Finding] = []
    sources = _sources(config, keys, inputs, findings)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    warnings: list[Finding] = []
    for key in keys:
        raw = _choose(key, sources, inputs.environment)
        if raw is not None and _is_forgiven(key, raw):
            _read(key, raw, values, warnings)
            values[key.name] = key.default
        elif raw is not None:
            origins[key.name] = raw.origin
            _read(key, raw, values, findings)
        elif key.required:
            findings.append(_missing(key))
        else:
            values[key.name] = key.default
    if findings:
        raise SettingsError(findings)
    settings: S = build(config.settings, values)
    if broken := config.rules(settings):
        raise SettingsError([_as_written(found, origins.get(found.key)) for found in broken])
    sources_ = {
        key.name: origins[key.name].text if key.name in origins else "default" for key in keys
    }
    return Loaded(config, settings, values, sources_, tuple(warnings))


def _as_written(found: Finding, origin: Origin | None) -> Finding:
    """A fault of settings that do not fit together, under the name that its value came by."""
    if origin is None:
        return dataclasses.replace(found, setting=found.key)
    return dataclasses.replace(found, key=origin.name, source=origin.place, setting=found.key)


def _sources(
    config: ConfigType[S], keys: Sequence[Key], inputs: Inputs, findings: list[Finding]
) -> list[Source]:
    """Return flags, environment, file in their order of rank."""
    read_secret = inputs.read_secret or _no_secret_files
    others = [
        key for other in CONFIG_TYPES.values() if other.kind != config.kind for key in other.keys
    ]
    sources = [
        _from_flags(keys, inputs.flags),
        _from_environment(keys, others, inputs.environment, read_secret),
    ]
    for source in sources:
        findings += source.findings
    if inputs.file is not None:
        name, data = inputs.file
        try:
            root = _parse_file(name, data)
        except SettingsError as error:
            # The file's values are unknown, so nothing can be reported as missing.
            raise SettingsError([*error.findings, *findings]) from None
        if (header := _wrong_header(config.kind, root, name)) and is_of_another_kind(header):
            raise SettingsError([*header, *findings])
        sources.append(_from_file(keys, header, root, name, read_secret))
        findings += sources[-1].findings
    return sources


def is_of_another_kind(header: Iterable[Finding]) -> bool:
    """Whether the file says that it is something else: then its keys are no faults."""
    return any(found.key == "kind" and not found.problem for found in header)


def kind_of(name: str, data: bytes) -> tuple[str, int | None]:
    """What a file says that it is, empty if nothing, and in which line; raises SettingsError."""
    value = _parse_file(name, data, max_bytes=len(data)).entries.get("kind")
    if value is None:
        return "", None
    return (value.text if isinstance(value, ScalarValue) else _shown(value)), value.line


def _parse_file(name: str, data: bytes, *, max_bytes: int = MAX_FILE_BYTES) -> MapValue:
    try:
        root = parse_tree(data, max_bytes=max_bytes) or MapValue({}, 1)
    except YamlError as error:
        raise _no_file(name, error.line, error.got, error.expected) from None
    if not isinstance(root, MapValue):
        raise _no_file(name, root.line, "something else", "a mapping of keys")
    return root


def _no_file(name: str, line: int | None, got: str, expected: str) -> SettingsError:
    return SettingsError([Finding(name, got, expected, "" if line is None else f"line {line}")])


def _choose(key: Key, sources: Sequence[Source], environment: Mapping[str, str]) -> Raw | None:
    for source in sources:
        if key.name in source.values:
            return source.values[key.name]
    if environment.get(key.spec.default_from):
        name = key.spec.default_from
        return Raw(environment[name], Origin("environment", name, f"default from ${name}"))
    return None


def _read(key: Key, raw: Raw, values: dict[str, Any], findings: list[Finding]) -> None:
    if raw.problem:
        findings.append(raw.finding(key, raw.problem))
        return
    try:
        values[key.name] = key.spec.kind.parse(raw.text)
    except ValueError:
        findings.append(raw.finding(key, key.spec.kind.expects))


def _is_forgiven(key: Key, raw: Raw) -> bool:
    """Whether it is an alias's wrong value, in whose place the default stands."""
    if not key.spec.alias_warns or raw.origin.name not in key.spec.aliases:
        return False
    try:
        key.spec.kind.parse(raw.text)
    except ValueError:
        return True
    return False


def _missing(key: Key) -> Finding:
    also = f", or ${key.spec.default_from}" if key.spec.default_from else ""
    expected = f"{key.spec.kind.expects}; set it in the file, as --{key.name}, as {key.env}{also}"
    return required(key.name, expected, setting=key.name)


def _no_secret_files(path: str) -> str:
    raise OSError(f"{path} is not read here")


# --- sources


def _from_flags(keys: Sequence[Key], flags: Iterable[tuple[str, str, str]]) -> Source:
    """Take `(key, text, flag as typed)` triples; a later one wins."""
    known = {key.name for key in keys}
    values: dict[str, Raw] = {}
    findings = []
    for name, text, typed in flags:
        if name in known:
            values[name] = Raw(text, Origin("flag", typed, f"flag {typed}"))
        else:
            findings.append(unknown_flag(name, typed, [key.path for key in keys]))
    return Source(values, tuple(findings))


def _from_environment(
    keys: Sequence[Key],
    others: Iterable[Key],
    environment: Mapping[str, str],
    read_secret: ReadSecret,
) -> Source:
    """Take this process's variables; `others` (the other process's keys) are left alone."""
    values: dict[str, Raw] = {}
    findings: list[Finding] = []
    expected: set[str] = set(_OTHER_VARIABLES)
    for key in keys:
        names = [key.env, *key.spec.aliases]
        expected.update(names)
        given = [name for name in names if name in environment]
        if given:
            values[key.name] = _from_variable(key, given[0], environment[given[0]])
        if key.spec.secret:
            expected.add(key.env + FILE_SUFFIX)
            _take_secret(key, environment, values, findings, read_secret)
    expected.update(key.env for key in others)
    expected.update(key.env + FILE_SUFFIX for key in others if key.spec.secret)
    findings += [
        unknown_variable(name, expected)
        for name in sorted(environment)
        if name.startswith(ENV_PREFIX) and name not in expected and not _SERVICE_LINK.search(name)
    ]
    return Source(values, tuple(findings))


def _from_file(
    keys: Sequence[Key],
    header: Sequence[Finding],
    root: MapValue,
    name: str,
    read_secret: ReadSecret,
) -> Source:
    """Take a parsed file; every key must be known."""
    findings = list(header)
    values: dict[str, Raw] = {}
    by_path = {key.path: key for key in keys}
    for key in keys:
        if key.spec.secret:
            by_path[*key.path[:-1], key.path[-1] + FILE_KEY_SUFFIX] = key
    for path, value in _leaves(root, by_path, ()):
        place = f"file {name}, line {value.line}"
        where = Origin(place, ".".join(path), place)
        key_found = by_path.get(path)
        if key_found is None:
            findings.append(_not_a_key(path, value, place, list(by_path)))
        elif path != key_found.path:
            values[key_found.name] = _secret_text(_raw(key_found, value, where), read_secret)
        elif not _is_null(value):
            values[key_found.name] = _raw(key_found, value, where)
    return Source(values, tuple(findings))


def _from_variable(key: Key, name: str, text: str) -> Raw:
    if key.spec.alias_adds and name != key.env:
        # The seeds know one value; dropping the default for it would hide pods.
        text = f"{key.spec.kind.show(key.default)},{text}"
    return Raw(text, _environment(name))


def _environment(name: str) -> Origin:
    """Where a variable's value comes from."""
    return Origin("environment", name, f"environment {name}")


def _wrong_header(kind: str, root: MapValue, name: str) -> list[Finding]:
    findings = []
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        value = root.entries.get(key)
        if value is None:
            findings.append(required(key, expected, f"file {name}"))
        elif not (isinstance(value, ScalarValue) and value.text == expected):
            got = quoted(value.text) if isinstance(value, ScalarValue) else _shown(value)
            findings.append(Finding(key, got, expected, f"file {name}, line {value.line}"))
    return findings


def _leaves(
    root: MapValue, known: Mapping[tuple[str, ...], Key], prefix: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], Value]]:
    """Yield everything that is a key or cannot be a section."""
    for part, value in root.entries.items():
        path = (*prefix, part)
        if not prefix and part in {"apiVersion", "kind"}:
            continue
        is_section = any(len(each) > len(path) and each[: len(path)] == path for each in known)
        if is_section and isinstance(value, MapValue):
            yield from _leaves(value, known, path)
        elif not (is_section and _is_null(value)):
            yield path, value


def _is_null(value: Value) -> bool:
    return isinstance(value, ScalarValue) and value.type is Scalar.NULL


def _raw(key: Key, value: Value, where: Origin) -> Raw:
    """Turn a file's value into text, if YAML sees in it what the key wants."""
    shape = key.spec.kind.shape
    match value:
        case ScalarValue(text, seen) if seen in _SCALARS.get(shape, ()):
            return Raw(text, where)
        case ListValue(items) if shape is Shape.LIST:
            return _raw_list(key, items, where)
        case MapValue(entries) if shape is Shape.MAP:
            mapped = {name: _plain_text(item) for name, item in entries.items()}
            problem = key.spec.kind.expects if None in mapped.values() else ""
            return Raw(json.dumps(mapped), where, problem)
        case _:
            return Raw(_shown(value), where, _wanted(key, value), isinstance(value, ScalarValue))


def _raw_list(key: Key, items: tuple[Value, ...], where: Origin) -> Raw:
    texts = [text for text in map(_plain_text, items) if text is not None and "," not in text]
    if len(texts) == len(items):
        return Raw(",".join(texts), where)
    return Raw("a list", where, f"a YAML list of {key.spec.kind.expects}", is_text=False)


def _plain_text(value: Value) -> str | None:
    return value.text if isinstance(value, ScalarValue) and value.type is Scalar.TEXT else None


def _shown(value: Value) -> str:
    match value:
        case ScalarValue(text):
            return text
        case ListValue():
            return "a list"
        case _:
            return "a mapping"


def _wanted(key: Key, value: Value) -> str:
    expects = key.spec.kind.expects
    if key.spec.kind.shape is Shape.LIST:
        return f"a YAML list of {expects}"
    if isinstance(value, ScalarValue) and key.spec.kind.shape is Shape.TEXT:
        return f"{expects}, in quotes: YAML does not read this as text"
    return expects


def _take_secret(
    key: Key,
    environment: Mapping[str, str],
    values: dict[str, Raw],
    findings: list[Finding],
    read_secret: ReadSecret,
) -> None:
    name = key.env + FILE_SUFFIX
    if name not in environment:
        return
    if key.name in values:
        other = values[key.name].origin.name
        expected = f"{name} or {other}"
        findings.append(Finding(name, "both", expected, "environment", setting=key.name))
        return
    values[key.name] = _secret_text(Raw(environment[name], _environment(name)), read_secret)


def _secret_text(raw: Raw, read_secret: ReadSecret) -> Raw:
    if raw.problem:
        return raw
    try:
        return Raw(read_secret(raw.text).strip(), raw.origin)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Raw(raw.text, raw.origin, f"a readable file ({reason})")


def _not_a_key(
    parts: tuple[str, ...], value: Value, where: str, known: Sequence[tuple[str, ...]]
) -> Finding:
    if any(each[: len(parts)] == parts for each in known):
        got = quoted(value.text) if isinstance(value, ScalarValue) else _shown(value)
        return Finding(".".join(parts), got, "a section, that is a mapping of keys", where)
    return unknown_key(parts, where, known)
