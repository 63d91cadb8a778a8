"""Value types of settings and how people write them. Pure.

Each `parse` raises ValueError whose text says what was expected, never what was given
(the caller knows whether the value is secret).
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from gpuwarden.moment import NS_PER_MS, NS_PER_S

_UNIT_NS = {"h": 3600 * NS_PER_S, "m": 60 * NS_PER_S, "s": NS_PER_S, "ms": NS_PER_MS}
_DAY_NS = 24 * _UNIT_NS["h"]
_DURATION = re.compile(
    r"(?:(\d{1,5})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?",
    re.ASCII,
)
_QUANTITY = re.compile(r"(\d{1,16})(Ki|Mi|Gi|k|M|G)?", re.ASCII)
_QUANTITY_UNIT = {
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    None: 1,
}
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time in nanoseconds, written `25s`, `1m30s`, `250ms`, `90d`."""

    ns: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a Go-style duration of whole units, largest first (`d` added)."""
        match = _DURATION.fullmatch(text)
        if match is None or not text:
            raise ValueError("a duration such as 25s, 1m30s or 90d")
        units = (_DAY_NS, *_UNIT_NS.values())
        return cls(sum(int(n) * unit for n, unit in zip(match.groups(), units, strict=True) if n))

    @property
    def seconds(self) -> float:
        """The same in seconds, for timers."""
        return self.ns / NS_PER_S

    def __str__(self) -> str:
        rest, parts = self.ns, []
        for unit, size in (("d", _DAY_NS), *_UNIT_NS.items()):
            count, rest = divmod(rest, size)
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts) or "0s"


def parse_quantity(text: str) -> int:
    """Read a number of bytes or things: `20000`, `256Ki`, `128Mi`."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("a whole number with an optional unit (Ki, Mi, Gi, k, M, G)")
    return int(match[1]) * _QUANTITY_UNIT[match[2]]


def format_quantity(value: int) -> str:
    """Write a quantity with the largest binary unit that divides it."""
    for unit in ("Gi", "Mi", "Ki"):
        if value and value % _QUANTITY_UNIT[unit] == 0:
            return f"{value // _QUANTITY_UNIT[unit]}{unit}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port. An empty host means every local address, port 0 any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host:port`, `:8080`, `127.0.0.1:0` or `[::1]:9`."""
        host, colon, port = text.rpartition(":")
        if not colon or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > _MAX_PORT:
            raise ValueError("host:port, such as :8080 or [::1]:8080")
        if host.startswith("[") and host.endswith("]"):
            try:
                return cls(str(ipaddress.IPv6Address(host[1:-1])), int(port))
            except ValueError:
                raise ValueError("host:port with an IPv6 address in brackets") from None
        if host and not _HOST.fullmatch(host):
            raise ValueError("host:port, such as :8080 or [::1]:8080")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; names other than `localhost` do not count."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_BUCKET = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)=([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)")
_MOST_SCORE = 100


@dataclass(frozen=True, slots=True)
class PriorityBucket:
    """From which score on, 0 to 100, pods get a priority class."""

    least: float
    priority_class: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `90=gpu-ultra`; the cluster's own classes (`system-…`) are for its own pods."""
        match = _BUCKET.fullmatch(text)
        if match is None or float(match[1]) > _MOST_SCORE or match[2].startswith("system-"):
            raise ValueError("a score from 0 to 100, '=' and a priority class, as in 90=gpu-ultra")
        return cls(float(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.least:g}={self.priority_class}"
