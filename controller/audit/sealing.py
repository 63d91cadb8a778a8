"""Turns a record into the line that follows a given head: fields, chain, size. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import cast

from controller.audit.record import Json, Record
from gpuwarden.audit.chain import Head
from gpuwarden.audit.record import FORMAT, MAX_RECORD_BYTES, format_timestamp
from gpuwarden.evidence.canonical import CanonicalValue, canonical_json, sha256_hex
from gpuwarden.evidence.errors import CanonicalError

_MAX_NAME = 256
_MAX_CODES = 16
_SAMPLE = 3
"""Items of a summarised list that are kept for people."""
_ROOM = 512
"""For seq, ts and prev, and to spare."""


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
            f',"codes":[{",".join(_text(code) for code in _bounded_codes(record.codes))}]'
            f',"decision":{_text(record.decision)},"instance":{self._instance}'
            f',"kind":{_text(record.kind)},"origin":{self._origin},"prev":"{after.digest}","refs":'
        ).encode()
        seq = after.seq + 1
        after_refs = (
            f',"seq":{seq},"subject":{_text(record.subject)}'
            f',"ts":"{format_timestamp(wall_ns)}","v":"{FORMAT}"}}'
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
    digest = sha256_hex(encoded)
    shorter: dict[str, Json] = dict(refs)
    by_size = sorted(refs, key=lambda key: -len(canonical_json(cast("CanonicalValue", refs[key]))))
    for key in by_size:
        shorter[key] = summarised(refs[key])
        encoded = canonical_json(cast("CanonicalValue", shorter))
        if len(encoded) <= room:
            return encoded
    return canonical_json({"bytes": len(encoded), "digest": digest})


def summarised(value: Json) -> Json:
    """Count, digest and first items of a list, or count and digest of anything else that is long.

    The digest is SHA-256 over the canonical form of the whole value.
    """
    encoded = canonical_json(cast("CanonicalValue", value))
    summary: dict[str, Json] = {"digest": sha256_hex(encoded)}
    match value:
        case list() | tuple():
            summary["count"] = len(value)
            sample = list(value[:_SAMPLE])
            if len(canonical_json(cast("CanonicalValue", sample))) <= _MAX_NAME:
                summary["first"] = sample
        case Mapping():
            summary["count"] = len(value)
        case _:
            summary["bytes"] = len(encoded)
    return summary if len(canonical_json(summary)) < len(encoded) else value


def _bounded_codes(codes: tuple[str, ...]) -> tuple[str, ...]:
    if len(codes) <= _MAX_CODES:
        return codes
    return (*codes[: _MAX_CODES - 1], f"+{len(codes) - _MAX_CODES + 1}")


def _text(text: str) -> str:
    """Quote a name of bounded length; what is not Unicode is written as escapes."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > _MAX_NAME:
        text = f"{text[: _MAX_NAME - 20]}…{sha256_hex(text.encode())[:16]}"
    return encode_basestring(text)
