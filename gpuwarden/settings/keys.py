"""What a key of the configuration is: its name, its default, and the kind of value it takes.

A kind reads text: flags and environment hand it over as it is, the file hands over scalars in
which YAML sees the type that the key wants. A `Spec` hangs on each settings field. Names follow
from the fields: `challenge_ttl` in section `attestation` is the key `attestation.challengeTtl`,
the flag `--attestation.challengeTtl` and the environment variable
`GPUWARDEN_ATTESTATION_CHALLENGE_TTL`. Pure.
"""

import dataclasses
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from gpuwarden.dead_letter_files import EXPORTERS as EXPORTER_NAMES
from gpuwarden.identity.spiffe_id import SpiffeIdError, parse_spiffe_id, parse_trust_domain
from gpuwarden.identity.spiffe_id import is_node_name as _is_dns_subdomain
from gpuwarden.settings.database import SCHEMES, PostgresDatabase
from gpuwarden.settings.values import (
    Address,
    Duration,
    PriorityBucket,
    format_quantity,
    parse_quantity,
)

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

ENV_PREFIX = "GPUWARDEN_"
FILE_SUFFIX = "_FILE"

_MAX_TEXT = 4096
_FLAGS = ("true", "1", "yes", "false", "0", "no")
_GPU_TYPE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MOST_GIB = 1e6
_MAX_STATIC_NODES = 100_000
_MAX_TRACES = 64
_MAX_HOST_PATHS = 64
_ANNOTATION_KEY = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_RESOURCES = re.compile(r"[a-z0-9][A-Za-z0-9./_-]{0,315}[A-Za-z0-9*./_-]")
_PATH_PREFIX = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,8}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_PRINTABLE = re.compile(r"[!-~]{1,253}")
_SERVER_HOST = re.compile(r"/[!-~]{1,100}|[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
_DATABASE_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,63}")
_SECRET = re.compile(r"[^\x00-\x1f\x7f]{1,4096}")
_TABLE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,39}\.)?[A-Za-z_][A-Za-z0-9_]{0,39}")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_OBJECT_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/=-]{0,512}")
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_PARTITION = re.compile(r"(?:[A-Za-z0-9=_./-]|%[YmdH]){0,200}")


class Shape(Enum):
    """What the value is in the file."""

    TEXT = auto()
    WORD = auto()
    """One of a closed set of words."""
    NUMBER = auto()
    """A plain number, or a quantity as text."""
    BOOLEAN = auto()
    LIST = auto()
    MAP = auto()


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How one kind of value is read (`parse`: text, raises ValueError) and written (`show`)."""

    expects: str
    """Completes "expected …" in an error."""
    parse: Callable[[str], T]
    show: Callable[[T], str] = str
    shape: Shape = Shape.TEXT
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    """JSON Schema of the value in the file."""
    closed: bool = False
    """Numbers, words and names from closed sets: no value of this kind can hold a secret."""


def _server_or_off(text: str) -> Address | None:
    if text == "off":
        return None
    address = Address.parse(text)
    if not address.host or not address.port:
        raise ValueError("a host and a port from 1 to 65535")
    return address


def _absolute_path_or_off(text: str) -> Path | None:
    return None if text == "off" else _absolute_path(text)


def _count_or_off(text: str) -> int | None:
    if text == "off":
        return None
    if not _COUNT.fullmatch(text):
        raise ValueError("a whole number")
    return int(text)


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("true or false")
    return text == "true"


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(pattern.pattern)
    return text


def _path(text: str) -> Path:
    if not text or "\0" in text or len(text) > _MAX_TEXT:
        raise ValueError("a path")
    return Path(text)


def _absolute_path(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("an absolute path")
    return _path(text)


def _score_database(text: str) -> Path | PostgresDatabase:
    if text.startswith(tuple(f"{scheme}:" for scheme in SCHEMES)):
        return PostgresDatabase.parse(text)
    if "://" in text:
        raise ValueError("a path")
    return _path(text)


def _controller_id(text: str) -> str:
    try:
        return str(parse_spiffe_id(text))
    except SpiffeIdError:
        raise ValueError("a SPIFFE ID") from None


def _trust_domain(text: str) -> str:
    try:
        return parse_trust_domain(text)
    except SpiffeIdError:
        raise ValueError("a trust domain") from None


def _node_name(text: str) -> str:
    if not _is_dns_subdomain(text):
        raise ValueError("a node name")
    return text


def _workload_api(text: str) -> str:
    scheme, _, rest = text.partition(":")
    path = rest.removeprefix("//")
    if scheme == "unix" and path.startswith("/") and "\0" not in path:
        return text
    if scheme == "tcp" and rest.startswith("//"):
        Address.parse(path)
        return text
    raise ValueError("a socket")


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[!-?A-~]{1,2000}", text):
        raise ValueError("a URL")
    return text


def _service_accounts(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > _MAX_TRACES:
        raise ValueError("a list")
    for part in parts:
        namespace, slash, name = part.partition("/")
        if not (slash and _LABEL.fullmatch(namespace) and _is_dns_subdomain(name)):
            raise ValueError("namespace/name")
    return tuple(dict.fromkeys(parts))


def _spiffe_ids(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > _MAX_TRACES:
        raise ValueError("a list")
    return tuple(dict.fromkeys(map(_controller_id, parts)))


def _host_paths(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > _MAX_HOST_PATHS:
        raise ValueError("a list")
    for part in parts:
        is_plain = part != "/" and posixpath.normpath(part) == part
        if not (part.startswith("/") and not part.startswith("//") and is_plain):
            raise ValueError("an absolute path")
        _path(part)
    return tuple(dict.fromkeys(parts))


def _buckets(text: str) -> tuple[PriorityBucket, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    found = tuple(dict.fromkeys(map(PriorityBucket.parse, parts)))
    if len(found) > _MAX_TRACES or len({each.least for each in found}) < len(found):
        raise ValueError("a list")
    return found


def _exporters(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    named = ["postgres" if part == "postgress" else part for part in parts]
    if not set(named) <= {*EXPORTER_NAMES}:
        raise ValueError("exporters")
    return tuple(dict.fromkeys(named))


def _headers(text: str) -> Mapping[str, str]:
    pairs = [part.partition("=") for part in text.strip().split(",")]
    if not all(sep and re.fullmatch(r"[A-Za-z0-9-]{1,64}", key.strip()) for key, sep, _ in pairs):
        raise ValueError("headers")
    return MappingProxyType({key.strip(): value.strip() for key, _, value in pairs})


def _gpu_memories(text: str) -> Mapping[str, float]:
    pairs = [part.strip().partition("=") for part in text.split(",")] if text.strip() else []
    found = {name: float(size) for name, _, size in pairs}
    if len(found) < len(pairs) or not all(
        _GPU_TYPE.fullmatch(name) and 0 < size <= _MOST_GIB for name, size in found.items()
    ):
        raise ValueError("GPU types with their memory")
    return MappingProxyType(found)


def _node_map(text: str) -> Mapping[str, str]:
    try:
        found = json.loads(text, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise ValueError("a flat map") from None
    if not isinstance(found, dict) or len(found) > _MAX_STATIC_NODES:
        raise ValueError("a map")
    for node, value in found.items():
        if not _is_dns_subdomain(node) or not isinstance(value, str):
            raise ValueError("a map of node names to strings")
        _matching(_PRINTABLE, value)
    return MappingProxyType(found)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a map without repeated keys")
    return dict(pairs)


def _show_map(value: Mapping[str, str]) -> str:
    return json.dumps(dict(value), sort_keys=True)


def list_of(item: Kind[T], *, most: int = 64) -> Kind[tuple[T, ...]]:
    """Make the kind of a non-empty list: `a,b` as text, a YAML sequence in the file."""

    def parse(text: str) -> tuple[T, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(parts) or len(parts) > most:
            raise ValueError("a list")
        return tuple(dict.fromkeys(item.parse(part) for part in parts))

    def show(values: tuple[T, ...]) -> str:
        return ",".join(item.show(value) for value in values)

    return Kind(
        expects=f"1 to {most} values separated by commas, each {item.expects}",
        parse=parse,
        show=show,
        shape=Shape.LIST,
        schema={"type": "array", "items": dict(item.schema), "minItems": 1, "maxItems": most},
        closed=item.closed,
    )


def one_of(choices: type[E]) -> Kind[E]:
    """Make the kind of a closed set of words."""
    words = [choice.value for choice in choices]

    def parse(text: str) -> E:
        return choices(text)

    return Kind(
        expects=" or ".join(words) if len(words) > 1 else f"{words[0]} (the only one available)",
        parse=parse,
        show=lambda choice: choice.value,
        shape=Shape.WORD,
        schema={"type": "string", "enum": words},
        closed=True,
    )


def whole_number(least: int, most: int) -> Kind[int]:
    """Make the kind of a plain number or quantity within bounds."""

    def parse(text: str) -> int:
        value = parse_quantity(text)
        if not least <= value <= most:
            raise ValueError("a number within bounds")
        return value

    return Kind(
        expects=f"a whole number from {format_quantity(least)} to {format_quantity(most)}"
        " (units: Ki, Mi, Gi, k, M, G)",
        parse=parse,
        show=format_quantity,
        shape=Shape.NUMBER,
        schema={"type": ["integer", "string"]},
        closed=True,
    )


def duration(least: str, most: str) -> Kind[Duration]:
    """Make the kind of a duration within bounds."""
    low, high = Duration.parse(least), Duration.parse(most)

    def parse(text: str) -> Duration:
        value = Duration.parse(text)
        if not low <= value <= high:
            raise ValueError("a duration within bounds")
        return value

    return Kind(
        expects=f"a duration from {least} to {most}, such as 25s, 1m30s or 90d",
        parse=parse,
        closed=True,
    )


def decimal(least: float, most: float, *, above: bool = False) -> Kind[float]:
    """Make the kind of a number within bounds, with decimals; `above` leaves `least` out."""

    def parse(text: str) -> float:
        value = float(text)
        if not least <= value <= most or (above and value == least):
            raise ValueError("a number within bounds")
        return value

    return Kind(
        expects=f"a number {f'above {least:g}' if above else f'from {least:g}'} to {most:g}",
        parse=parse,
        show=lambda value: f"{value:g}",
        shape=Shape.WORD,
        schema={"type": ["number", "string"]},
        closed=True,
    )


BOOLEAN: Kind[bool] = Kind(
    "true or false",
    _boolean,
    lambda value: "true" if value else "false",
    Shape.BOOLEAN,
    {"type": "boolean"},
    closed=True,
)
FLAG: Kind[bool] = Kind(
    "true or false (or 1, 0, yes, no, in any case)",
    lambda text: _FLAGS.index(text.lower()) < len(_FLAGS) // 2,
    lambda value: "true" if value else "false",
    Shape.WORD,
    {"type": ["boolean", "string", "integer"]},
    closed=True,
)
GPU_MEMORIES: Kind[Mapping[str, float]] = Kind(
    "nothing, or TYPE=GiB pairs separated by commas, such as A100-80GB=80,L4-24GB=24",
    _gpu_memories,
    lambda found: ",".join(f"{name}={size:g}" for name, size in found.items()),
    closed=True,
)
ADDRESS: Kind[Address] = Kind(
    "host:port, such as :8080, 127.0.0.1:0 or [::1]:8080", Address.parse, closed=True
)
SERVER_OR_OFF: Kind[Address | None] = Kind(
    "host:port of a server, such as spire-server:8081, or off",
    _server_or_off,
    shape=Shape.WORD,
    closed=True,
)
ADDRESS_OR_OFF: Kind[Address | None] = Kind(
    "host:port, such as :9090 or 127.0.0.1:0, or off",
    lambda text: None if text == "off" else Address.parse(text),
    shape=Shape.WORD,
    closed=True,
)
COUNT_OR_OFF: Kind[int | None] = Kind(
    "a whole number from 1 to 999999999, or off", _count_or_off, shape=Shape.WORD, closed=True
)
PATH: Kind[Path] = Kind("a path", _path)
ABSOLUTE_PATH: Kind[Path] = Kind("an absolute path", _absolute_path)
SCORE_DATABASE: Kind[Path | PostgresDatabase] = Kind(
    "a path, or postgresql://USER@HOST:PORT/DATABASE, perhaps with ?sslmode=MODE and"
    " &sslrootcert=FILE; no password in it",
    _score_database,
)
PATH_OR_OFF: Kind[Path | None] = Kind(
    "an absolute path, or off", _absolute_path_or_off, shape=Shape.WORD
)
TRUST_DOMAIN: Kind[str] = Kind("a trust domain name ([a-z0-9._-])", _trust_domain, closed=True)
SPIFFE_ID: Kind[str] = Kind("a SPIFFE ID (spiffe://trust-domain/path)", _controller_id, closed=True)
IDENTIFIER: Kind[str] = Kind(
    "a name of letters, digits, '.', '_' and '-', at most 253 long",
    lambda text: _matching(_IDENTIFIER, text),
    closed=True,
)
NODE_NAME: Kind[str] = Kind("a node name (RFC 1123 subdomain)", _node_name, closed=True)
NAMESPACE: Kind[str] = Kind("a namespace (RFC 1123 label)", lambda text: _matching(_LABEL, text))
CONTEXT: Kind[str] = Kind(
    "the name of a context, 1 to 253 printable characters without blanks",
    lambda text: _matching(_PRINTABLE, text),
)
SERVICE_ACCOUNTS: Kind[tuple[str, ...]] = Kind(
    f"0 to {_MAX_TRACES} service accounts separated by commas, each namespace/name",
    _service_accounts,
    ",".join,
    Shape.LIST,
    {"type": "array", "items": {"type": "string"}, "maxItems": _MAX_TRACES},
)
SPIFFE_IDS: Kind[tuple[str, ...]] = Kind(
    f"0 to {_MAX_TRACES} SPIFFE IDs separated by commas",
    _spiffe_ids,
    ",".join,
    Shape.LIST,
    {"type": "array", "items": {"type": "string"}, "maxItems": _MAX_TRACES},
)
HOST_PATHS: Kind[tuple[str, ...]] = Kind(
    f"0 to {_MAX_HOST_PATHS} paths separated by commas, each absolute and plain, and not /",
    _host_paths,
    ",".join,
    Shape.LIST,
    {"type": "array", "items": {"type": "string"}, "maxItems": _MAX_HOST_PATHS},
)
PRIORITY_BUCKETS: Kind[tuple[PriorityBucket, ...]] = Kind(
    f"0 to {_MAX_TRACES} of SCORE=CLASS separated by commas, such as 90=gpu-ultra, each score once,"
    " from 0 to 100, and no class of the cluster's own (system-…)",
    _buckets,
    lambda found: ",".join(map(str, found)),
    Shape.LIST,
    {"type": "array", "items": {"type": "string"}, "maxItems": _MAX_TRACES},
    closed=True,
)
EXPORTERS: Kind[tuple[str, ...]] = Kind(
    "stdout, http, postgres (or postgress), s3, or some of them separated by commas, or nothing",
    _exporters,
    ",".join,
    Shape.LIST,
    {
        "type": "array",
        "items": {"type": "string", "enum": [*EXPORTER_NAMES, "postgress"]},
    },
    closed=True,
)
SECRET: Kind[str] = Kind(
    "1 to 4096 characters without control characters", lambda text: _matching(_SECRET, text)
)
SERVER_HOST: Kind[str] = Kind(
    "a host name, an address, or an absolute path", lambda text: _matching(_SERVER_HOST, text)
)
DATABASE_NAME: Kind[str] = Kind(
    "1 to 63 characters without control characters", lambda text: _matching(_DATABASE_NAME, text)
)
TABLE: Kind[str] = Kind(
    "a name of letters, digits and '_', at most 40 long, perhaps after a schema and a dot",
    lambda text: _matching(_TABLE, text),
    closed=True,
)
BUCKET: Kind[str] = Kind(
    "the name of a bucket, 3 to 63 letters, digits, '.', '_' and '-'",
    lambda text: _matching(_BUCKET, text),
)
OBJECT_PREFIX: Kind[str] = Kind(
    "at most 512 letters, digits and !_.*'()/=-", lambda text: _matching(_OBJECT_PREFIX, text)
)
REGION: Kind[str] = Kind(
    "the name of a region, such as eu-central-1", lambda text: _matching(_REGION, text), closed=True
)
PARTITION: Kind[str] = Kind(
    "at most 200 letters, digits and =_./-, with %Y, %m, %d and %H",
    lambda text: _matching(_PARTITION, text),
    closed=True,
)
PATH_PREFIX: Kind[str] = Kind(
    "a SPIFFE path prefix such as /gpuwarden",
    lambda text: _matching(_PATH_PREFIX, text),
    closed=True,
)
WORKLOAD_API: Kind[str] = Kind("unix:///path/to/socket or tcp://address:port", _workload_api)
URL: Kind[str] = Kind("an http:// or https:// URL without user name and password", _url)
HEADERS: Kind[Mapping[str, str]] = Kind(
    "name=value pairs separated by commas",
    _headers,
    lambda headers: ",".join(f"{key}={value}" for key, value in headers.items()),
)
ANNOTATION_KEY: Kind[str] = Kind(
    "a Kubernetes annotation or resource name, such as example.org/name",
    lambda text: _matching(_ANNOTATION_KEY, text),
    closed=True,
)
RESOURCES: Kind[str] = Kind(
    "the name of an extended resource or DRA driver, or the beginning of such names and a '*'",
    lambda text: _matching(_RESOURCES, text),
    closed=True,
)
NODE_MAP: Kind[Mapping[str, str]] = Kind(
    "a map from node name to a printable string of at most 253 characters"
    " (a JSON object in flags and environment)",
    _node_map,
    _show_map,
    Shape.MAP,
    {"type": "object", "additionalProperties": {"type": "string"}},
)


# --- keys


@dataclass(frozen=True, slots=True)
class Spec:
    """Part of a field's `Annotated`; makes it a key."""

    kind: Kind[Any]
    help: str
    secret: bool = False
    """Never shown; may also be given as the name of a file that holds it."""
    default_from: str = ""
    """Environment variable that gives the default, below the file in rank."""
    aliases: tuple[str, ...] = ()
    """Environment variables of other programs that are accepted for the same thing."""
    alias_adds: bool = False
    """Whether an alias adds to the default list instead of replacing it."""
    alias_warns: bool = False
    """Whether an alias with a wrong value means the default, with a warning, instead of an error.

    So does the program whose variable it is.
    """


@dataclass(frozen=True, slots=True)
class Key:
    """One key with its place: `path` names sections and field as in the file."""

    path: tuple[str, ...]
    spec: Spec
    default: Any
    """The default, or `dataclasses.MISSING` where the key is required."""

    @property
    def name(self) -> str:
        """`attestation.challengeTtl`."""
        return ".".join(self.path)

    @property
    def env(self) -> str:
        """`GPUWARDEN_ATTESTATION_CHALLENGE_TTL`."""
        return environment_name(self.path)

    @property
    def required(self) -> bool:
        """Whether there is no default at all."""
        return self.default is dataclasses.MISSING

    def shown(self, value: object) -> str:
        """Return the value as people may see it."""
        if value is None:
            return "none"
        return "<redacted>" if self.spec.secret else self.spec.kind.show(value)


def environment_name(path: tuple[str, ...]) -> str:
    """Name of the variable for a key's path."""
    return ENV_PREFIX + "_".join(_screaming(part) for part in path)


def keys_of(settings: type, prefix: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every key of a settings class in order of declaration, sections included."""
    hints = get_type_hints(settings, include_extras=True)
    for each in dataclasses.fields(settings):
        path = (*prefix, _camel(each.name))
        hint = hints[each.name]
        if get_origin(hint) is Annotated:
            yield Key(path, get_args(hint)[1], _default(each))
        else:
            yield from keys_of(hint, path)


def build(settings: type, values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 -- one function builds every section class
    """Make a settings object from the values of all its keys by name."""
    hints = get_type_hints(settings, include_extras=True)
    arguments = {}
    for each in dataclasses.fields(settings):
        path = (*prefix, _camel(each.name))
        if get_origin(hints[each.name]) is not Annotated:
            arguments[each.name] = build(hints[each.name], values, path)
        else:
            arguments[each.name] = values[".".join(path)]
    return settings(**arguments)


def _default(each: "dataclasses.Field[Any]") -> Any:  # noqa: ANN401 -- keys have any type
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return each.default


def _camel(snake: str) -> str:
    first, *rest = snake.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _screaming(camel: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).upper()
