"""What may leave a process in a support bundle: the words and values in its parts. Pure.

Everything here lists what may leave; what is not listed stays. A text that others wrote (an
error, a detail, a reason) may repeat what a peer, a file or a library said, secrets included.
Only words from closed sets are kept of it.
"""

import errno
import json
import os
import re
from ipaddress import ip_address
from typing import Any, Final

from gpuwarden.reasons import ReasonCode
from gpuwarden.redaction import REDACTED
from gpuwarden.settings.keys import Key
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.values import Address
from gpuwarden.support.part import (
    MAX_PART_BYTES,
    MAX_WHY,
    Content,
    Part,
    json_bytes,
    json_line,
    missing,
)
from gpuwarden.telemetry.every_metric import METRICS
from gpuwarden.telemetry.names import PAGE

# --- words of a text

_MAX_WORDS: Final = 8
_STATUSES: Final = frozenset(
    {
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "UNAUTHENTICATED",
    }
)
"""Of gRPC."""
_TERMS: Final = frozenset(
    {
        "denied",
        "expired",
        "fault",
        "foreign",
        "lags",
        "locked",
        "refused",
        "timeout",
        "unreachable",
        "untrusted",
        "withdrawn",
        "wrong-identity",
    }
)
_KNOWN: Final = frozenset(code.value for code in ReasonCode) | _STATUSES | _TERMS
_ERRORS: Final = {os.strerror(number): name for number, name in errno.errorcode.items()}
_WORD: Final = re.compile(r"[A-Za-z_-]{3,64}")
_MAX_READ: Final = 4096


def known_words(text: str) -> list[str]:
    """The words of the text that the lists above hold: sorted, each once.

    That is reason codes, gRPC statuses and names of errors of the operating system.
    """
    text = text[:_MAX_READ]
    found = {word for word in _WORD.findall(text) if word in _KNOWN}
    found |= {name for message, name in _ERRORS.items() if message in text}
    return sorted(found)[:_MAX_WORDS]


# --- settings

_DEFAULT: Final = "default"
_SOURCES: Final = ("flag", "environment", "default from", _DEFAULT)


def disclosed_settings(loaded: Loaded[Any]) -> Content:
    """Value and kind of source of each key; withheld are the keys whose value is not shown."""
    shown, withheld = {}, []
    for key in loaded.config.keys:
        value, source = loaded.values[key.name], loaded.sources[key.name]
        if not may_be_shown(key, source):
            withheld.append(key.name)
        shown[key.name] = {
            "value": key.shown(value) if may_be_shown(key, source) else REDACTED,
            "source": next((one for one in _SOURCES if source.startswith(one)), "file"),
        }
    return Content({"kind": loaded.config.kind, "settings": shown}, tuple(withheld))


def may_be_shown(key: Key, source: str) -> bool:
    """Whether the value of `key` may be shown to somebody outside."""
    if key.spec.secret:
        return False
    return key.spec.kind.closed or source == _DEFAULT


# --- /readyz

_MAX_ENTRIES: Final = 64
_HEADS: Final = frozenset({"draining", "first round", "svid", "audit", "stores", "directory"})
_STATES: Final = frozenset({"connecting", "open", "accepted"})
_LEVELS: Final = frozenset({"none", "L0", "L1", "L2", "L3"})
_HASH: Final = re.compile(r"v1:sha256:[0-9a-f]{64}")


def disclosed_reasons(reasons: object) -> list[dict[str, object]]:
    """Each reason as the part that it begins with, and the words that are known."""
    return [
        {"about": _among(text.partition(":")[0], _HEADS), "words": known_words(text)}
        for text in _list(reasons)
        if isinstance(text, str)
    ]


def disclosed_readiness(body: bytes) -> Content:
    """For an agent's or a controller's answer; raises ValueError where it is none."""
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise TypeError("not an object")
    return Content(
        {
            "ready": answer.get("ready") is True,
            "reasons": disclosed_reasons(answer.get("reasons")),
            "warnings": disclosed_reasons(answer.get("warnings")),
            "alarms": [known_words(str(one)) for one in _list(answer.get("alarms"))],
            "identity": known_words(str(answer.get("identity", ""))),
            "replicas": [
                _replica(one) for one in _list(answer.get("replicas")) if isinstance(one, dict)
            ],
        },
        ("reasons", "detail", "identity"),
    )


def _replica(one: dict[str, Any]) -> dict[str, object]:
    fresh = one.get("freshForSeconds")
    return {
        "address": _address(one.get("address")),
        "state": _among(one.get("state"), _STATES),
        "codes": known_words(str(one.get("code", ""))),
        "about": known_words(str(one.get("detail", ""))),
        "level": _among(one.get("level"), _LEVELS),
        "attestationHash": _hash(one.get("attestationHash")),
        "freshForSeconds": fresh if isinstance(fresh, int) else None,
    }


def _address(text: object) -> str | None:
    """Of a replica it is an IP address; a name could be anything."""
    try:
        address = Address.parse(str(text))
        ip_address(address.host)
    except ValueError:
        return None
    return str(address)


def _hash(text: object) -> str | None:
    return text if isinstance(text, str) and _HASH.fullmatch(text) else None


def _among(text: object, known: frozenset[str]) -> str | None:
    return text if isinstance(text, str) and text in known else None


def _list(value: object) -> list[object]:
    return value[:_MAX_ENTRIES] if isinstance(value, list) else []


# --- /metrics

_SAMPLE: Final = re.compile(
    r'([a-z_]{1,80})(\{[a-z_]+="[A-Za-z0-9_.:/+-]{0,80}"(?:,[a-z_]+="[A-Za-z0-9_.:/+-]{0,80}")*\})?'
    r" ([0-9.e+-]{1,32}|NaN|\+Inf)"
)
_LABEL: Final = re.compile(r'([a-z_]+)="')
_ENDINGS: Final = ("_bucket", "_count", "_sum")
_LABELS: Final = {
    metric.name: frozenset(metric.labels) | {"le"} for metric in METRICS if metric.page == PAGE
}
_OF_PROCESS: Final = re.compile(
    r"process_(?:cpu_seconds_total|open_fds|max_fds|resident_memory_bytes|start_time_seconds"
    r"|virtual_memory_bytes)"
)


def metrics_part(name: str, exposition: bytes) -> Part:
    """The part; `left_out` counts what was not kept."""
    kept, others = [], 0
    for line in exposition.decode("utf-8", "replace").splitlines():
        if line.startswith("#") or not line:
            continue
        if _is_declared(line):
            kept.append(line)
        else:
            others += 1
    data = "".join(f"{line}\n" for line in kept).encode("ascii")
    if len(data) > MAX_PART_BYTES:
        return missing(name, f"larger than {MAX_PART_BYTES} bytes")
    return Part(name, data, left_out=others)


def _is_declared(line: str) -> bool:
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return False
    name, labels = found[1], found[2] or ""
    if _OF_PROCESS.fullmatch(name):
        return not labels
    for ending in _ENDINGS:
        if name.endswith(ending) and name.removesuffix(ending) in _LABELS:
            name = name.removesuffix(ending)
    return name in _LABELS and set(_LABEL.findall(labels)) <= _LABELS[name]


# --- parts that another process sent

_MAX_NAMES = 256


def received_part(part: Part) -> Part:
    """A part from the wire, decoded and encoded again; missing if it is not what its name says."""
    if part.content is None:
        return missing(part.name, _plain(part.missing)[:MAX_WHY])
    try:
        content = _encode_again(part.name, part.content)
    except (ValueError, RecursionError) as error:
        return missing(part.name, f"is not what its name says: {type(error).__name__}")
    withheld = tuple(_plain(one)[:MAX_WHY] for one in part.withheld[:_MAX_NAMES])
    return Part(part.name, content, withheld=withheld, left_out=part.left_out)


def _encode_again(name: str, content: bytes) -> bytes:
    if name.endswith(".json"):
        return json_bytes(json.loads(content))
    if name.endswith(".jsonl"):
        return b"".join(json_line(json.loads(line)) for line in content.splitlines())
    return metrics_part(name, content).content or b""


def _plain(text: str) -> str:
    return "".join(x if x.isascii() and x.isprintable() else "?" for x in text)
