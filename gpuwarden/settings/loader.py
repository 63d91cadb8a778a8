"""Reads every value: flag > environment > file > default. Reports all findings at once.

Each source becomes a mapping from key to `Raw`; what it does not know becomes a finding with the
nearest known name. Pure: the caller reads files and the environment.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from gpuwarden.finding import Finding, quoted
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
from gpuwarden.settings.rules import agent_rules, controller_rules
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
_MAX_NAME = 100

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
    source: str
    problem: str = ""
    """Set if the source itself is wrong: what was expected of it."""


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
    warnings: tuple[Finding, ...] = ()
    """What other programs' variables give that cannot be used: the default is in its place."""


def load(config: ConfigType[S], inputs: Inputs) -> Loaded[S]:
    """Read everything; raises SettingsError with every finding."""
    keys = config.keys
    findings: list[Finding] = []
    sources = _sources(config, keys, inputs, findings)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    warnings: list[Finding] = []
    for key in keys:
        raw = _choose(key, sources, inputs.environment)
        if raw is not None and _is_forgiven(key, raw):
            _read(key, raw, values, warnings)
            values[key.name], origins[key.name] = key.default, "default"
        elif raw is not None:
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
    return Loaded(config, settings, values, origins, tuple(warnings))


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
        sources.append(_from_file(keys, config.kind, root, name, read_secret))
        findings += sources[-1].findings
    return sources


def _parse_file(name: str, data: bytes) -> MapValue:
    try:
        root = parse_tree(data, max_bytes=MAX_FILE_BYTES) or MapValue({}, 1)
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
        return Raw(environment[key.spec.default_from], f"default from ${key.spec.default_from}")
    return None


def _read(key: Key, raw: Raw, values: dict[str, Any], findings: list[Finding]) -> None:
    shown = "<redacted>" if key.spec.secret else quoted(raw.text)
    if raw.problem:
        findings.append(Finding(key.name, shown, raw.problem, raw.source))
        return
    try:
        values[key.name] = key.spec.kind.parse(raw.text)
    except ValueError:
        findings.append(Finding(key.name, shown, key.spec.kind.expects, raw.source))


def _is_forgiven(key: Key, raw: Raw) -> bool:
    """Whether it is an alias's wrong value, in whose place the default stands."""
    if not key.spec.alias_warns or raw.source not in map(_environment, key.spec.aliases):
        return False
    try:
        key.spec.kind.parse(raw.text)
    except ValueError:
        return True
    return False


def _missing(key: Key) -> Finding:
    also = f", or ${key.spec.default_from}" if key.spec.default_from else ""
    expected = f"{key.spec.kind.expects}; set it in the file, as --{key.name}, as {key.env}{also}"
    return Finding(key.name, "nothing", expected)


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
            values[name] = Raw(text, f"flag {typed}")
        else:
            findings.append(_unknown(name, f"flag {typed}", known))
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
        _unknown(name, "environment", expected)
        for name in sorted(environment)
        if name.startswith(ENV_PREFIX) and name not in expected and not _SERVICE_LINK.search(name)
    ]
    return Source(values, tuple(findings))


def _from_file(
    keys: Sequence[Key], kind: str, root: MapValue, name: str, read_secret: ReadSecret
) -> Source:
    """Take a parsed file; `apiVersion` and `kind` must be right, every key known."""
    findings = _wrong_header(kind, root, name)
    values: dict[str, Raw] = {}
    by_name = {key.name: key for key in keys}
    for key in keys:
        if key.spec.secret:
            by_name[key.name + FILE_KEY_SUFFIX] = key
    for path, value in _leaves(root, by_name, ()):
        where = f"file {name}, line {value.line}"
        key_found = by_name.get(path)
        if key_found is None:
            findings.append(_not_a_key(path, value, where, set(by_name)))
        elif path != key_found.name:
            values[key_found.name] = _secret_text(_raw(key_found, value, where), read_secret)
        elif not _is_null(value):
            values[path] = _raw(key_found, value, where)
    return Source(values, tuple(findings))


def _from_variable(key: Key, name: str, text: str) -> Raw:
    if key.spec.alias_adds and name != key.env:
        # The seeds know one value; dropping the default for it would hide pods.
        text = f"{key.spec.kind.show(key.default)},{text}"
    return Raw(text, _environment(name))


def _environment(name: str) -> str:
    """The source that a variable is."""
    return f"environment {name}"


def _wrong_header(kind: str, root: MapValue, name: str) -> list[Finding]:
    findings = []
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        value = root.entries.get(key)
        text = value.text if isinstance(value, ScalarValue) else ""
        if text != expected:
            line = f"file {name}, line {value.line}" if value else f"file {name}"
            findings.append(Finding(key, quoted(text) if text else "nothing", expected, line))
    return findings


def _leaves(
    root: MapValue, known: Mapping[str, Key], prefix: tuple[str, ...]
) -> Iterable[tuple[str, Value]]:
    """Yield everything that is a key or cannot be a section."""
    for part, value in root.entries.items():
        path = ".".join((*prefix, part))
        if not prefix and part in {"apiVersion", "kind"}:
            continue
        is_section = "." not in part and any(name.startswith(f"{path}.") for name in known)
        if is_section and isinstance(value, MapValue):
            yield from _leaves(value, known, (*prefix, part))
        elif "." in part:
            yield f"{path!r}", value
        elif not (is_section and _is_null(value)):
            yield path, value


def _is_null(value: Value) -> bool:
    return isinstance(value, ScalarValue) and value.type is Scalar.NULL


def _raw(key: Key, value: Value, where: str) -> Raw:
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
            return Raw(_shown(value), where, _wanted(key, value))


def _raw_list(key: Key, items: tuple[Value, ...], where: str) -> Raw:
    texts = [text for text in map(_plain_text, items) if text is not None and "," not in text]
    if len(texts) == len(items):
        return Raw(",".join(texts), where)
    return Raw("a list", where, f"a YAML list of {key.spec.kind.expects}")


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
        findings.append(Finding(key.name, "both", f"{key.env} or {name}", f"environment {name}"))
        return
    values[key.name] = _secret_text(Raw(environment[name], f"environment {name}"), read_secret)


def _secret_text(raw: Raw, read_secret: ReadSecret) -> Raw:
    if raw.problem:
        return raw
    try:
        return Raw(read_secret(raw.text).strip(), raw.source)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Raw(raw.text, raw.source, f"a readable file ({reason})")


def _not_a_key(path: str, value: Value, where: str, known: set[str]) -> Finding:
    if any(name.startswith(f"{path}.") for name in known):
        return Finding(path, quoted(_shown(value)), "a section, that is a mapping of keys", where)
    if path.startswith("'"):
        return Finding(path, "", "a known name; sections are nested, not joined by dots", where)
    return _unknown(path, where, known)


def _unknown(name: str, source: str, known: Iterable[str]) -> Finding:
    near = get_close_matches(name, list(known), n=1, cutoff=0.7)
    hint = f"a known name; did you mean {near[0]}?" if near else "a known name"
    return Finding(name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…", "", hint, source)
