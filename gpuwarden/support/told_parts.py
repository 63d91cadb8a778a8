"""Takes a part that came over the wire: its form is checked, whatever the sender meant. Pure."""

import json

from gpuwarden.support.exposition import metrics_part
from gpuwarden.support.part import MAX_WHY, Part, json_bytes, json_line, missing

_MAX_NAMES = 256


def told_part(part: Part) -> Part:
    """The part in our own spelling, ASCII throughout; missing where it is not what it says."""
    if part.content is None:
        return missing(part.name, _plain(part.missing)[:MAX_WHY])
    try:
        content = _written_again(part.name, part.content)
    except (ValueError, RecursionError) as error:
        return missing(part.name, f"is not what its name says: {type(error).__name__}")
    withheld = tuple(_plain(one)[:MAX_WHY] for one in part.withheld[:_MAX_NAMES])
    return Part(part.name, content, withheld=withheld, left_out=part.left_out)


def _written_again(name: str, content: bytes) -> bytes:
    if name.endswith(".json"):
        return json_bytes(json.loads(content))
    if name.endswith(".jsonl"):
        return b"".join(json_line(json.loads(line)) for line in content.splitlines())
    return metrics_part(name, content).content or b""


def _plain(text: str) -> str:
    return "".join(x if x.isascii() and x.isprintable() else "?" for x in text)
