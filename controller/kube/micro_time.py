"""meta/v1 MicroTime. Pure."""

from datetime import UTC, datetime
from typing import Final

_SECOND: Final = 1_000_000_000


def micro_time(wall_ns: int) -> str:
    """RFC 3339 in UTC with six digits of a second."""
    at = datetime.fromtimestamp(wall_ns // _SECOND, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{wall_ns % _SECOND // 1000:06d}Z"
