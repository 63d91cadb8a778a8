"""The policy file: its schema, its decoding to a `Policy`, and reading it again when it changes.

An invalid file is refused as a whole with every fault named, and the policy in force stays.
`policy_of` is the one way from a document to a policy, for the custom resources too.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, inspect

from controller.placement.keys import ASSIGN
from controller.placement.selector import is_label_name, parse_selector
from controller.placement.values import RequirementTextError, is_attestation_hash, is_opaque_hash
from controller.placement.values import shown as shown_key
from controller.policy import (
    AttestationClass,
    AttestorRules,
    ClassHash,
    Consequence,
    Level,
    MigStrategy,
    NodeMode,
    NodePool,
    Policy,
)
from controller.spire.snapshot import ATTESTORS
from controller.spire.verification import image_digest
from gpuwarden.finding import Finding
from gpuwarden.strict_yaml import YamlError, parse_plain

# --- the document: keys, types and what each means, as in the custom resources

API_VERSION = "config.gpuwarden.dev/v1alpha1"
KIND = "Policy"

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
            expected = f"a key out of {', '.join(fields)}"
            yield Finding(shown_key(where), shown(item), expected)
    for name, field in fields.items():
        if field.required and name not in value:
            where = f"{path}.{name}" if path else name
            yield Finding(where, "nothing", _expectation(field.type))


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
        case inspect.StrType():
            most = "" if wanted.max_length is None else f" of 1 to {wanted.max_length} characters"
            return f"a text{most} (quote it if it looks like a number)"
        case inspect.ListType():
            return "a list"
        case _:
            return "a mapping"


# --- decoding

MAX_BYTES: Final = 1 << 20
_SELECTOR: Final = re.compile(r"[A-Za-z0-9_-]+(?::[!-~]+)?")


class PolicyInvalidError(Exception):
    """The file, or what stands in its place, is no policy; carries every finding."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = findings


def decode_policy(data: bytes, *, opaque_hashes: bool = False) -> Policy:
    """Decode a policy file; raises PolicyInvalidError with all its faults.

    `opaque_hashes` allows seed-style hashes (only with insecure static hashes).
    """
    digest = hashlib.sha256(data).hexdigest()
    return policy_of(_load(data), digest, opaque_hashes=opaque_hashes)


def policy_of(document: object, digest: str, *, opaque_hashes: bool = False) -> Policy:
    """Judge a parsed document (plain lists, mappings and scalars); `digest` names it in audit.

    Raises PolicyInvalidError with all its faults.
    """
    findings = list(document_findings(document, PolicyDocument))
    if findings:
        raise PolicyInvalidError(tuple(findings))
    decoded = msgspec.convert(document, PolicyDocument)
    findings.extend(_meaning(decoded, opaque_hashes=opaque_hashes))
    if findings:
        raise PolicyInvalidError(tuple(findings))
    return _policy(decoded, digest)


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of the file, to which that of the custom resources is held."""
    return msgspec.json.schema(PolicyDocument)


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a poll found: a policy to use from now on, or why the old one stays."""

    policy: Policy | None
    findings: tuple[Finding, ...]


class PolicyFile:
    """One file on disk, read when asked; blocking, a few milliseconds."""

    def __init__(self, path: Path, *, opaque_hashes: bool = False) -> None:
        """Read the file; raises PolicyInvalidError when it is no policy now."""
        self._path = path
        self._opaque_hashes = opaque_hashes
        self._seen = b""
        change = self.refresh()
        if change is None or change.policy is None:
            raise PolicyInvalidError(change.findings if change else ())
        self.current: Policy = change.policy
        """The policy in force: of the last valid file."""

    async def poll(self) -> PolicyChange | None:
        """As `refresh`, beside the event loop."""
        return await asyncio.to_thread(self.refresh)

    def refresh(self) -> PolicyChange | None:
        """Read the file; None when it is as it was the last time."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            fault = Finding(str(self._path), error.strerror or "unreadable", "a readable file")
            return self._news(b"unreadable " + fault.value.encode(), PolicyChange(None, (fault,)))
        digest = hashlib.sha256(data).digest()
        if digest == self._seen:
            return None
        try:
            change = PolicyChange(decode_policy(data, opaque_hashes=self._opaque_hashes), ())
        except PolicyInvalidError as error:
            change = PolicyChange(None, error.findings)
        return self._news(digest, change)

    def _news(self, seen: bytes, change: PolicyChange) -> PolicyChange | None:
        if seen == self._seen:
            return None
        self._seen = seen
        if change.policy is not None:
            self.current = change.policy
        return change


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
        yield Finding("attestors", "nothing", f"at least one of {_names()}")
    for name, rules in (attestors or {}).items():
        path = f"attestors.{shown_key(name)}"
        if name not in ATTESTORS:
            yield Finding(path, shown_key(name), f"a node attestor out of {_names()}")
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
        if text is not None and _time(text) is None:
            yield Finding(f"{where}.{key}", shown(text), "a time such as 2026-01-31T12:00:00Z")
    start, end = _time(before), _time(after)
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


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo is not None and "T" in text else None
    except (ValueError, OverflowError):
        return None


def _policy(document: PolicyDocument, digest: str) -> Policy:
    return Policy(
        classes=MappingProxyType({entry.name: _class(entry) for entry in document.classes}),
        allowed_hashes=_set(document.allowed_hashes),
        min_level=Level(document.min_level),
        allowed_drivers=_set(document.drivers.allowed),
        denied_drivers=frozenset(document.drivers.denied),
        allowed_vbios=_set(document.vbios.allowed),
        denied_vbios=frozenset(document.vbios.denied),
        attestors=_attestors(document),
        denied_keys=frozenset(document.denied_keys),
        labels=MappingProxyType(dict(document.labels)),
        pools=tuple(
            NodePool(
                pool.pattern,
                None if pool.mode is None else NodeMode(pool.mode),
                frozenset(pool.uuids),
                frozenset(pool.serials),
                pool.honours_variable,
                None if pool.mig_strategy is None else MigStrategy(pool.mig_strategy),
            )
            for pool in document.pools
        ),
        default_mode=NodeMode(document.default_mode),
        processes_count_as_use=document.processes_count_as_use,
        evicts_mismatched=document.evict_mismatched,
        xids=MappingProxyType({int(x): Consequence(each) for x, each in document.xids.items()}),
        digest=digest,
    )


def _attestors(document: PolicyDocument) -> Mapping[str, AttestorRules] | None:
    if document.attestors is None:
        return None
    return MappingProxyType(
        {
            name: AttestorRules(
                None if rules.selectors is None else tuple(rules.selectors),
                None if rules.images is None else frozenset(map(_digest, rules.images)),
            )
            for name, rules in document.attestors.items()
        }
    )


def _class(entry: ClassDocumentEntry) -> AttestationClass:
    hashes = tuple(
        ClassHash(item.hash, _time(item.not_before), _time(item.not_after)) for item in entry.hashes
    )
    return AttestationClass(entry.name, hashes, Level(entry.min_level))


def _digest(image: str) -> str:
    return image_digest(image) or image


def _names() -> str:
    return ", ".join(ATTESTORS)


def _set(values: list[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)
