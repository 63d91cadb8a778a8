"""The parts of a support bundle: a file each, or why it is missing, and which there are. Pure.

The command line imports this for each command; `disclosure` costs it the settings and all metrics.
"""

import json
from dataclasses import dataclass, field
from typing import Final

MAX_PART_BYTES: Final = 8 << 20
MAX_WHY: Final = 300

CONTROLLER_PARTS: Final = (
    "versions.json",
    "settings.json",
    "readiness.json",
    "identity.json",
    "fleet.json",
    "nodes.jsonl",
    "refusals.json",
    "audit.json",
    "store.json",
    "metrics.prom",
)
"""The parts of a controller, in this order."""


@dataclass(frozen=True, slots=True)
class Part:
    """`content` is None where it is missing, and `missing` is why."""

    name: str
    content: bytes | None
    missing: str = ""
    withheld: tuple[str, ...] = ()
    """What was left out on purpose, by the name of its key."""
    left_out: int = 0
    """Entries that there was no room for."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a source makes: a JSON value, and what it withheld."""

    value: object
    withheld: tuple[str, ...] = ()
    left_out: int = field(default=0)


def json_part(name: str, content: Content) -> Part:
    """The part of a JSON value."""
    data = json_bytes(content.value)
    if len(data) > MAX_PART_BYTES:
        return missing(name, f"larger than {MAX_PART_BYTES} bytes")
    return Part(name, data, withheld=content.withheld, left_out=content.left_out)


def missing(name: str, why: str) -> Part:
    """A part that could not be made."""
    return Part(name, None, why[:MAX_WHY])


def json_bytes(value: object) -> bytes:
    """JSON for people, in ASCII: no terminal and no editor sees a control character."""
    return f"{json.dumps(value, indent=1)}\n".replace("\x7f", "\\u007f").encode("ascii")


def json_line(value: object) -> bytes:
    """One line of JSON, in ASCII."""
    text = json.dumps(value, separators=(",", ":"))
    return f"{text}\n".replace("\x7f", "\\u007f").encode("ascii")
