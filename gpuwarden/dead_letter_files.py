"""Names of the dead-letter files of exporters, and the request to replay one. Pure.

The controller keeps the files, the command line reads them and leaves requests.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

LETTERS: Final = "{exporter}.ndjson"
REPLAYING: Final = "{exporter}.replaying.ndjson"
REQUEST: Final = "{exporter}.replay.json"
EXPORTERS: Final = ("stdout", "http", "postgres", "s3")
_MOST_TEXT: Final = 500
_LETTERS: Final = re.compile(rf"({'|'.join(EXPORTERS)})(\.replaying)?\.ndjson")


@dataclass(frozen=True, slots=True)
class Request:
    """Who wants a replay, and why."""

    by: str
    reason: str


def exporter_of(name: str) -> str | None:
    """Whose records a file of this name holds; None for another file."""
    match = _LETTERS.fullmatch(name)
    return None if match is None else match[1]


def request_text(request: Request) -> str:
    """The request as a file has it."""
    return json.dumps({"by": request.by, "reason": request.reason})


def read_request(data: bytes) -> Request:
    """A request; what cannot be read is one without name and reason."""
    try:
        found = json.loads(data)
        return Request(str(found["by"])[:_MOST_TEXT], str(found["reason"])[:_MOST_TEXT])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Request("unknown", "")
