"""Turns a record into the line that follows a given head: fields, chain, size. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import cast

from controller.record import Json, Record
from gpuwarden.audit.chain import Head
from gpuwarden.audit.record import FORMAT, MAX_RECORD_BYTES
from gpuwarden.evidence.canonical import CanonicalError, CanonicalValue, canonical_json, sha256_hex
from gpuwarden.moment import rfc3339

_MAX_NAME = 300
"""Bytes of a name as it stands in the line, quotes included."""
_MAX_WORD = 64
_MAX_CODES = 16
_MAX_SAMPLE = 256
_SAMPLE = 3
"""Items of a summarised list that are kept for people."""


_SPECIAL = re.compile(r"[^ !#-\[\]-~]")
"""What needs more than one byte in JSON."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What is the same in every record that this process writes."""

    origin: str
    boot: str
    instance: str


@dataclass(frozen=True, slots=True)
class SealedLine:
    """A line without its LF, and the head after it."""

    line: bytes
    head: Head


class Sealer:
    """Seals records for one process; keys are written in their RFC 8785 order."""

    def __init__(self, identity: LogIdentity) -> None:
        self._boot = _text(identity.boot)
        self._instance = _text(identity.instance)
        self._origin = _text(identity.origin)

    def seal(self, record: Record, wall_ns: int, after: Head) -> SealedLine:
        """Give the record its place behind `after`; summarises what is too long, never fails."""
        before_refs = (
            f'{{"actor":{_text(record.actor)},"boot":{self._boot}'
            f',"codes":[{_codes(record.codes)}]'
            f',"decision":{_text(record.decision, _MAX_WORD)},"instance":{self._instance}'
            f',"kind":{_text(record.kind)},"origin":{self._origin},"prev":"{after.digest}","refs":'
        ).encode()
        seq = after.seq + 1
        after_refs = (
            f',"seq":{seq},"subject":{_text(record.subject)}'
            f',"ts":"{rfc3339(wall_ns)}","v":"{FORMAT}"}}'
        ).encode()
        room = MAX_RECORD_BYTES - len(before_refs) - len(after_refs)
        line = before_refs + encode_refs(record.refs, room) + after_refs
        return SealedLine(line, Head(seq, sha256_hex(line)))


def encode_refs(refs: Mapping[str, Json], room: int) -> bytes:
    """Encode refs into at most `room` bytes: longest lists become count, digest and a sample.

    If that is not enough, everything becomes one digest. Values that have no canonical
    form are a fault of the caller and are said to be, because the record must not be lost.
    """
    try:
        encoded = canonical_json(cast("CanonicalValue", refs))
    except (CanonicalError, UnicodeError) as error:
        return canonical_json({"unencodable": type(error).__name__})
    if len(encoded) <= room:
        return encoded
    excess = len(encoded) - room
    shorter: dict[str, Json] = dict(refs)
    sizes = {key: len(canonical_json(cast("CanonicalValue", refs[key]))) for key in refs}
    for key in sorted(sizes, key=lambda name: -sizes[name]):
        shorter[key] = summarised(refs[key])
        excess -= sizes[key] - len(canonical_json(cast("CanonicalValue", shorter[key])))
        if excess <= 0:
            return canonical_json(cast("CanonicalValue", shorter))
    return canonical_json({"bytes": len(encoded), "digest": sha256_hex(encoded)})


def summarised(value: Json, *, keep: int = 0) -> Json:
    """Count, digest and first items of a list, or count and digest of anything else that is long.

    A list of at most `keep` items stays as it is. The digest is SHA-256 over the
    canonical form of the whole value.
    """
    if isinstance(value, list | tuple) and len(value) <= keep:
        return value
    encoded = canonical_json(cast("CanonicalValue", value))
    summary: dict[str, Json] = {"digest": sha256_hex(encoded)}
    match value:
        case list() | tuple():
            summary["count"] = len(value)
            sample = list(value[:_SAMPLE])
            if len(canonical_json(cast("CanonicalValue", sample))) <= _MAX_SAMPLE:
                summary["first"] = sample
        case Mapping():
            summary["count"] = len(value)
        case _:
            summary["bytes"] = len(encoded)
    return summary if len(canonical_json(summary)) < len(encoded) else value


def _codes(codes: tuple[str, ...]) -> str:
    if len(codes) > _MAX_CODES:
        codes = (*codes[: _MAX_CODES - 1], f"+{len(codes) - _MAX_CODES + 1}")
    return ",".join(_text(code, _MAX_WORD) for code in codes)


def _text(text: str, limit: int = _MAX_NAME) -> str:
    """Quote a name of bounded length; what is not Unicode is written as escapes."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    quoted = encode_basestring(text)
    if len(quoted.encode()) <= limit:
        return quoted
    digest = sha256_hex(text.encode())[:16]
    plain = _SPECIAL.sub("?", text[: limit - len(digest) - 3])
    return f'"{plain}~{digest}"'
