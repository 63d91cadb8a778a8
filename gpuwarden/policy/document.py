"""The policy file: its schema, and every fault of a document that is to be one. Pure.

The controller reads a policy from a file or from custom resources, and `gpuwarden config validate`
checks both: all by `read_policy` and `judge_policy`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, inspect

from gpuwarden.finding import Finding, near_miss, required, unknown
from gpuwarden.policy.selector import ASSIGN, is_label_name, parse_selector
from gpuwarden.policy.texts import (
    RequirementTextError,
    image_digest,
    is_attestation_hash,
    is_opaque_hash,
)
from gpuwarden.policy.texts import shown as shown_key
from gpuwarden.strict_yaml import YamlError, parse_plain

# --- the document: keys, types and what each means, as in the custom resources

API_VERSION = "config.gpuwarden.dev/v1alpha1"
KIND = "Policy"
ATTESTORS: Final = ("k8s_psat", "x509pop")
"""Node attestors of SPIRE whose nodes can reach L1."""

_Text = Annotated[str, Meta(min_length=1, max_length=253)]
_Hash = Annotated[str, Meta(min_length=1, max_length=253)]
_Levels = Literal["L0", "L1", "L2", "L3"]
_Modes = Literal["env", "plugin", "per-gpu", "dra"]
_Consequences = Literal["none", "process", "reset"]
_XID = re.compile(r"[1-9][0-9]{0,9}")


class _Section(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Parent of every mapping below."""


class ClassHashDocument(_Section, frozen=True):
    """One hash of a class, and when it counts (RFC 3339 with offset; notAfter no longer does)."""

    hash: _Hash
    not_before: str | None = None
    not_after: str | None = None


class ClassDocumentEntry(_Section, frozen=True):
    """A named set of hashes; several of them let a driver upgrade roll through a fleet."""

    name: _Text
    hashes: Annotated[list[ClassHashDocument], Meta(min_length=1, max_length=256)]
    min_level: _Levels = "L0"


class VersionsDocument(_Section, frozen=True):
    """Versions that may and may not be; no `allowed` = any."""

    allowed: Annotated[list[_Text], Meta(min_length=1, max_length=1024)] | None = None
    denied: Annotated[list[_Text], Meta(max_length=1024)] = []


class AttestorDocument(_Section, frozen=True):
    """What is demanded of nodes whose SPIRE agent attested in this way; no `images` = any."""

    selectors: Annotated[list[_Text], Meta(min_length=1, max_length=64)] | None = None
    images: Annotated[list[_Text], Meta(min_length=1, max_length=1024)] | None = None


class PoolDocument(_Section, frozen=True):
    """Nodes by name pattern (`*`, `?`, `[…]`), their mode, and what enrolment demands."""

    pattern: _Text
    mode: _Modes | None = None
    uuids: Annotated[list[_Text], Meta(max_length=100_000)] = []
    serials: Annotated[list[_Text], Meta(max_length=100_000)] = []
    honours_variable: bool = False
    mig_strategy: Literal["none", "single", "mixed"] | None = None


class PolicyDocument(_Section, frozen=True):
    """The whole file. What is left out demands nothing."""

    api_version: Literal["config.gpuwarden.dev/v1alpha1"]
    kind: Literal["Policy"]
    classes: Annotated[list[ClassDocumentEntry], Meta(max_length=1024)] = []
    allowed_hashes: Annotated[list[_Hash], Meta(min_length=1, max_length=4096)] | None = None
    min_level: _Levels = "L0"
    drivers: VersionsDocument = VersionsDocument()
    vbios: VersionsDocument = VersionsDocument()
    attestors: dict[str, AttestorDocument] | None = None
    denied_keys: Annotated[list[_Text], Meta(max_length=100_000)] = []
    labels: Annotated[dict[str, str], Meta(max_length=1024)] = {}
    pools: Annotated[list[PoolDocument], Meta(max_length=1024)] = []
    default_mode: _Modes = "plugin"
    processes_count_as_use: bool = True
    evict_mismatched: bool = False
    xids: Annotated[dict[str, _Consequences], Meta(max_length=1024)] = {}
    hint_weight: Annotated[int, Meta(ge=0, le=100)] = 0


# --- findings: every fault of a parsed document, not the first

_SHOWN_CHARS = 80


def shown(value: object) -> str:
    """A value on one printable line of bounded length."""
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def document_findings(value: object, type_: type[msgspec.Struct]) -> tuple[Finding, ...]:
    """Every fault of `value` (plain lists, mappings and scalars) as a `type_`."""
    return tuple(_check(value, inspect.type_info(type_), ""))


def _check(value: object, wanted: inspect.Type, path: str) -> Iterator[Finding]:
    if isinstance(wanted, inspect.UnionType):
        if value is not None:
            (inner,) = (each for each in wanted.types if not isinstance(each, inspect.NoneType))
            yield from _check(value, inner, path)
    elif isinstance(wanted, inspect.StructType) and isinstance(value, dict):
        yield from _check_struct(value, wanted, path)
    elif isinstance(wanted, inspect.ListType) and isinstance(value, list):
        yield from _check_length(value, wanted, path)
        for index, item in enumerate(value):
            yield from _check(item, wanted.item_type, f"{path}[{index}]")
    elif isinstance(wanted, inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            yield from _check(item, wanted.value_type, f"{path}.{shown_key(str(key))}")
    else:
        yield from _check_leaf(value, wanted, path)


def _check_struct(
    value: dict[object, object], wanted: inspect.StructType, path: str
) -> Iterator[Finding]:
    fields = {field.encode_name: field for field in wanted.fields}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in fields:
            yield from _check(item, fields[str(key)].type, where)
        else:
            yield _unknown_key(path, str(key), fields)
    for name, field in fields.items():
        if field.required and name not in value:
            where = f"{path}.{name}" if path else name
            yield required(where, _expectation(field.type))


def _unknown_key(path: str, key: str, known: Iterable[str]) -> Finding:
    where = shown_key(f"{path}.{key}" if path else key)
    return unknown(where, near_miss(key, known), known=f"one of {', '.join(known)}")


def _check_length(value: list[object], wanted: inspect.ListType, path: str) -> Iterator[Finding]:
    least, most = wanted.min_length or 0, wanted.max_length
    if len(value) < least or (most is not None and len(value) > most):
        yield Finding(path, shown(value), f"{least} to {most} elements")


def _check_leaf(value: object, wanted: inspect.Type, path: str) -> Iterator[Finding]:
    if not _fits(value, wanted):
        yield Finding(path or "the document", shown(value), _expectation(wanted))


def _fits(value: object, wanted: inspect.Type) -> bool:
    match wanted:
        case inspect.LiteralType():
            return isinstance(value, str) and value in wanted.values
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            return is_number and value in range(wanted.ge or 0, (wanted.le or 0) + 1)
        case inspect.StrType():
            least, most = wanted.min_length or 0, wanted.max_length
            return isinstance(value, str) and least <= len(value) <= (most or len(value))
        case _:
            return False


def _expectation(wanted: inspect.Type) -> str:
    match wanted:
        case inspect.LiteralType():
            return " or ".join(map(str, wanted.values))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number from {wanted.ge} to {wanted.le}"
        case inspect.StrType():
            most = "" if wanted.max_length is None else f" of 1 to {wanted.max_length} characters"
            return f"a text{most} (quote it if it looks like a number)"
        case inspect.ListType():
            return "a list"
        case _:
            return "a mapping"


# --- reading

MAX_BYTES: Final = 1 << 20
_SELECTOR: Final = re.compile(r"[A-Za-z0-9_-]+(?::[!-~]+)?")


class PolicyInvalidError(Exception):
    """The file, or what stands in its place, is no policy; carries every finding."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings


def read_policy(data: bytes, *, opaque_hashes: bool = False) -> PolicyDocument:
    """Read a policy file; raises PolicyInvalidError with all its faults.

    `opaque_hashes` allows seed-style hashes (only with insecure static hashes).
    """
    return judge_policy(_load(data), opaque_hashes=opaque_hashes)


def judge_policy(document: object, *, opaque_hashes: bool = False) -> PolicyDocument:
    """Judge a parsed document (plain lists, mappings and scalars).

    Raises PolicyInvalidError with all its faults; what is of another kind has no others.
    """
    findings = document_findings(document, PolicyDocument)
    if isinstance(document, dict) and isinstance(document.get("kind"), str):
        is_policy = document["kind"] == KIND
        findings = tuple(x for x in findings if is_policy or x.key in {"apiVersion", "kind"})
    if findings:
        raise PolicyInvalidError(findings)
    decoded = msgspec.convert(document, PolicyDocument)
    if findings := tuple(_meaning(decoded, opaque_hashes=opaque_hashes)):
        raise PolicyInvalidError(findings)
    return decoded


def _load(data: bytes) -> object:
    try:
        return parse_plain(data, max_bytes=MAX_BYTES)
    except YamlError as error:
        source = "" if error.line is None else f"line {error.line}"
        finding = Finding("the document", error.got, error.expected, source)
        raise PolicyInvalidError((finding,)) from None


def _meaning(document: PolicyDocument, *, opaque_hashes: bool) -> Iterator[Finding]:
    """Faults that types cannot show."""

    def is_hash(text: str) -> bool:
        return is_attestation_hash(text) or (opaque_hashes and is_opaque_hash(text))

    expected = "v1:sha256: and 64 lower-case hex digits"
    names = [entry.name for entry in document.classes]
    for number, entry in enumerate(document.classes):
        path = f"classes[{number}]"
        if names.count(entry.name) > 1:
            yield Finding(f"{path}.name", shown(entry.name), "each class once")
        for index, item in enumerate(entry.hashes):
            where = f"{path}.hashes[{index}]"
            if not is_hash(item.hash):
                yield Finding(f"{where}.hash", shown(item.hash), expected)
            yield from _window(where, item.not_before, item.not_after)
    for index, text in enumerate(document.allowed_hashes or ()):
        if not is_hash(text):
            yield Finding(f"allowedHashes[{index}]", shown(text), expected)
    yield from _label_faults(document.labels)
    yield from _attestor_faults(document.attestors)
    for text in document.xids:
        if not _XID.fullmatch(text):
            yield Finding(f"xids.{shown_key(text)}", shown_key(text), 'an XID, such as "94"')


def _attestor_faults(attestors: Mapping[str, AttestorDocument] | None) -> Iterator[Finding]:
    if attestors is not None and not attestors:
        yield Finding("attestors", "nothing", f"at least one of {', '.join(ATTESTORS)}")
    for name, rules in (attestors or {}).items():
        path = f"attestors.{shown_key(name)}"
        if name not in ATTESTORS:
            yield _unknown_key("attestors", name, ATTESTORS)
        for index, text in enumerate(rules.selectors or ()):
            if not _SELECTOR.fullmatch(text):
                expected = "type:value, or its beginning, such as k8s:ns or k8s:ns:gpuwarden"
                yield Finding(f"{path}.selectors[{index}]", shown(text), expected)
        for index, text in enumerate(rules.images or ()):
            if image_digest(text) is None:
                expected = "an image by digest: sha256: and 64 hex digits, a name and @ before it"
                yield Finding(f"{path}.images[{index}]", shown(text), expected)


def _window(where: str, before: str | None, after: str | None) -> Iterator[Finding]:
    for key, text in (("notBefore", before), ("notAfter", after)):
        if text is not None and parse_time(text) is None:
            yield Finding(f"{where}.{key}", shown(text), "a time such as 2026-01-31T12:00:00Z")
    start, end = parse_time(before), parse_time(after)
    if start is not None and end is not None and start >= end:
        yield Finding(f"{where}.notAfter", shown(after), "a time after notBefore")


def _label_faults(labels: Mapping[str, str]) -> Iterator[Finding]:
    for name, text in labels.items():
        if not is_label_name(name) or name == ASSIGN:
            yield Finding(
                f"labels.{shown_key(name)}",
                shown(text),
                f"a name of up to 59 letters, digits, '.', '_' and '-', not {ASSIGN}",
            )
        try:
            parse_selector(text)
        except RequirementTextError as error:
            yield Finding(f"labels.{shown_key(name)}", shown(text), str(error))


def parse_time(text: str | None) -> datetime | None:
    """The time in UTC; None for none, and for what is no time with an offset."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo is not None and "T" in text else None
    except (ValueError, OverflowError):
        return None


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of the file, to which that of the custom resources is held."""
    return msgspec.json.schema(PolicyDocument)
