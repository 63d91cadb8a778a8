"""The policy as custom resources: AttestationPolicy and AttestationClass. Pure.

Together they are one document of the file's schema. The controller judges what the API server has,
and `gpuwarden config validate` a file of manifests: both by `judge_objects`. What the API server
could not have stored by the schema in deploy/ is refused here, not repaired.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from gpuwarden.finding import Finding, near_miss, unknown
from gpuwarden.policy.document import (
    API_VERSION,
    KIND,
    MAX_BYTES,
    PolicyDocument,
    PolicyInvalidError,
    judge_policy,
    shown,
)
from gpuwarden.policy.texts import shown as shown_key
from gpuwarden.strict_yaml import Document, YamlError, parse_documents

OBJECT_VERSION: Final = "gpuwarden.dev/v1alpha1"
POLICY, CLASS = "AttestationPolicy", "AttestationClass"
OBJECT_KINDS: Final = (POLICY, CLASS)
NAME: Final = "cluster"
"""Of the only AttestationPolicy."""
_NOT_IN_SPEC: Final = {POLICY: ("apiVersion", "kind", "classes"), CLASS: ("name",)}
"""Keys of the document that are not for an object's spec to say."""
_CLASS_KEY: Final = re.compile(r"classes\[([0-9]+)\]\.?(.*)")
_OBJECT_KEYS: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_MAX_NAME: Final = 253
_MANIFEST: Final = re.compile(
    rb"^kind:[ \t]*[\"']?(?:AttestationPolicy|AttestationClass)\b", re.MULTILINE
)
_EXPECTED_NAME: Final = f"1 to {_MAX_NAME} characters of a-z, 0-9, '-' and '.'"


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Which object."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def judge_objects(
    specs: Mapping[ObjectKey, object], *, opaque_hashes: bool = False
) -> tuple[PolicyDocument, bytes]:
    """Judge the specs of all objects as one document; it, and its canonical text.

    Raises PolicyInvalidError with all faults, each with its object's name.
    """
    if findings := tuple(_faults(specs)):
        raise PolicyInvalidError(findings)
    names = [key.name for key in specs if key.kind == CLASS]
    document = {
        **_mapping(specs[ObjectKey(POLICY, NAME)]),
        "apiVersion": API_VERSION,
        "kind": KIND,
        "classes": [{**_mapping(specs[ObjectKey(CLASS, name)]), "name": name} for name in names],
    }
    text = msgspec.json.encode(document, order="sorted")
    if len(text) > MAX_BYTES:
        expected = f"at most {MAX_BYTES} bytes"
        found = Finding("all objects together", f"{len(text)} bytes", expected)
        raise PolicyInvalidError((found,))
    try:
        return judge_policy(document, opaque_hashes=opaque_hashes), text
    except PolicyInvalidError as error:
        renamed = tuple(replace(x, key=_place(x.key, names)) for x in error.findings)
        raise PolicyInvalidError(renamed) from None


def _mapping(spec: object) -> dict[str, Any]:
    return spec if isinstance(spec, dict) else {}


def _faults(specs: Mapping[ObjectKey, object]) -> Iterator[Finding]:
    """What the file's parser cannot see."""
    if ObjectKey(POLICY, NAME) not in specs:
        yield Finding(f"{POLICY}/{NAME}", "nothing", "an AttestationPolicy of that name")
    for key, spec in specs.items():
        if key.kind == POLICY and key.name != NAME:
            yield Finding(f"{key}: metadata.name", shown(key.name), NAME)
        if not isinstance(spec, dict):
            yield Finding(f"{key}: spec", shown(spec), "a mapping")
            continue
        for name in _NOT_IN_SPEC[key.kind]:
            if name in spec:
                expected = "no such key: the object itself says it"
                yield Finding(f"{key}: spec.{name}", shown(spec[name]), expected)


def _place(key: str, classes: list[str]) -> str:
    """`classes[3].hashes[0].hash` as the object and the field that stand behind it."""
    match = _CLASS_KEY.fullmatch(key)
    if match is None:
        return f"{POLICY}/{NAME}: spec.{key}"
    field = f"spec.{match[2]}" if match[2] else "spec"
    return f"{CLASS}/{classes[int(match[1])]}: {field}"


# --- a file of manifests


def has_objects(data: bytes) -> bool:
    """Whether a line of the file begins such a manifest, also where the file cannot be read."""
    return _MANIFEST.search(data) is not None


def read_objects(data: bytes) -> tuple[ObjectKey, ...]:
    """Judge the manifests of a file, and say which objects they are.

    A file need not have the AttestationPolicy: what is in it is judged as beside an empty one.
    Raises PolicyInvalidError with all faults.
    """
    try:
        documents = parse_documents(data, max_bytes=MAX_BYTES)
    except YamlError as error:
        source = "" if error.line is None else f"line {error.line}"
        finding = Finding("the document", error.got, error.expected, source)
        raise PolicyInvalidError((finding,)) from None
    specs: dict[ObjectKey, object] = {}
    findings: list[Finding] = []
    for document in documents:
        key, faults = _header(document)
        findings += faults
        if key in specs:
            again = Finding(str(key), "it again", "each object once", f"line {document.line}")
            findings.append(again)
        elif key is not None:
            specs[key] = _mapping(document.value).get("spec")
    keys = tuple(specs)
    if not any(key.kind == POLICY for key in keys):
        specs[ObjectKey(POLICY, NAME)] = {}
    try:
        judge_objects(specs)
    except PolicyInvalidError as error:
        findings += error.findings
    if findings:
        raise PolicyInvalidError(tuple(findings))
    return keys


def _header(document: Document) -> tuple[ObjectKey | None, tuple[Finding, ...]]:
    """Which object it is, where that can be told, and what is wrong around its spec."""
    line, value = f"line {document.line}", document.value
    if not isinstance(value, dict):
        return None, (Finding("the document", shown(value), "a mapping", line),)
    kind = value.get("kind")
    if kind not in OBJECT_KINDS:
        return None, (_no_kind(kind, line),)
    name = _mapping(value.get("metadata")).get("name")
    if not _is_name(name):
        return None, (Finding(f"{kind}: metadata.name", shown(name), _EXPECTED_NAME, line),)
    key = ObjectKey(str(kind), str(name))
    return key, tuple(_around(key, value, line))


def _no_kind(kind: object, line: str) -> Finding:
    expected = " or ".join(OBJECT_KINDS)
    near = near_miss(kind, OBJECT_KINDS) if isinstance(kind, str) else None
    hint = f"; did you mean {near}?" if near else ""
    return Finding("kind", shown(kind), f"{expected}{hint}", line)


def _is_name(name: object) -> bool:
    is_text = isinstance(name, str) and len(name) <= _MAX_NAME
    return is_text and _OBJECT_NAME.fullmatch(str(name)) is not None


def _around(key: ObjectKey, value: dict[str, object], line: str) -> Iterator[Finding]:
    """What the API server refuses, or drops."""
    version = value.get("apiVersion")
    if version != OBJECT_VERSION:
        yield Finding(f"{key}: apiVersion", shown(version), OBJECT_VERSION, line)
    for name in value:
        if name not in _OBJECT_KEYS:
            known = f"one of {', '.join(_OBJECT_KEYS)}"
            where = f"{key}: {shown_key(name)}"
            yield unknown(where, near_miss(name, _OBJECT_KEYS), line, known=known)
