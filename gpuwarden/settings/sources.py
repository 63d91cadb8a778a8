"""Raw values of keys from flags, environment and file, and what does not belong there. Pure.

Each source becomes a mapping from key to `Raw`; unknown names become findings with the
nearest known name. Which source wins is decided in `loader`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gpuwarden.settings.finding import Finding, quoted
from gpuwarden.settings.key import ENV_PREFIX, FILE_SUFFIX, Key, environment_name
from gpuwarden.settings.kinds import Shape
from gpuwarden.settings.yaml_file import ListValue, MapValue, Scalar, ScalarValue, Value

API_VERSION = "config.gpuwarden.dev/v1alpha1"
FILE_KEY_SUFFIX = "File"
_MAX_NAME = 100

OTHER_VARIABLES = frozenset(
    {"GPUWARDEN_CONFIG", "GPUWARDEN_SERVER", "GPUWARDEN_SVID", "GPUWARDEN_KEY", "GPUWARDEN_BUNDLE"}
)
"""Ours, but not settings: the file's name, and what the command line client takes."""

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
"""Variables that Kubernetes sets in every pod for a Service, such as our own."""

_PLANNED = frozenset(
    {
        "extender.idKeys",
        "store.path",
    }
)
"""Keys of the design that would do nothing yet."""


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


def from_flags(keys: Sequence[Key], flags: Iterable[tuple[str, str, str]]) -> Source:
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


def from_environment(
    keys: Sequence[Key],
    others: Iterable[Key],
    environment: Mapping[str, str],
    read_secret: ReadSecret,
) -> Source:
    """Take our variables; those of `others` (the other process's keys) are left alone."""
    values: dict[str, Raw] = {}
    findings: list[Finding] = []
    expected: set[str] = set(OTHER_VARIABLES)
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


def from_file(
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
        # The seeds know one value; dropping ours for it would let pods out of sight.
        text = f"{key.spec.kind.show(key.default)},{text}"
    return Raw(text, f"environment {name}")


def _wrong_header(kind: str, root: MapValue, name: str) -> list[Finding]:
    findings = []
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        value = root.entries.get(key)
        text = value.text if isinstance(value, ScalarValue) else ""
        if text != expected:
            line = f"file {name}, line {value.line}" if value else f"file {name}"
            findings.append(Finding(key, line, quoted(text) if text else "nothing", expected))
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
        findings.append(Finding(key.name, f"environment {name}", "both", f"{key.env} or {name}"))
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
        return Finding(path, where, quoted(_shown(value)), "a section, that is a mapping of keys")
    if path.startswith("'"):
        return Finding(path, where, "", "a known name; sections are nested, not joined by dots")
    return _unknown(path, where, known)


def _unknown(name: str, source: str, known: Iterable[str]) -> Finding:
    if _is_planned(name):
        return Finding(name, source, "", "no such key: it is not available in this version")
    near = get_close_matches(name, list(known), n=1, cutoff=0.7)
    hint = f"a known name; did you mean {near[0]}?" if near else "a known name"
    return Finding(name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…", source, "", hint)


def _is_planned(name: str) -> bool:
    if name.startswith(ENV_PREFIX):
        planned = [environment_name(tuple(key.split("."))) for key in _PLANNED]
        return any(name == env or name.startswith(f"{env}_") for env in planned)
    return any(name == key or name.startswith(f"{key}.") for key in _PLANNED)
