"""From which addresses TCP connections to a port of this machine come, as the kernel lists them.

Addresses are written as gRPC writes a peer, `ipv4:10.0.0.1:4000`. Linux only; elsewhere there are
none. Source of the form: Linux, Documentation/networking/proc_net_tcp.rst.
"""

import sys
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"
_WORD: Final = 8
"""Hex digits of 32 bits, which the kernel writes in the machine's byte order."""
_COLUMNS: Final = 4


def tcp_peers(port: int, tables: Iterable[Path] = _TABLES) -> frozenset[str]:
    """Who is connected to `port` now."""
    found: set[str] = set()
    for table in tables:
        try:
            found.update(_peers(table.read_text(encoding="ascii"), port))
        except OSError:
            continue  # a kernel without this family
    return frozenset(found)


def _peers(text: str, port: int) -> Iterator[str]:
    for line in text.splitlines()[1:]:
        columns = line.split(maxsplit=_COLUMNS)
        if len(columns) < _COLUMNS or columns[3] != _ESTABLISHED:
            continue
        if int(columns[1].rpartition(":")[2], 16) == port:
            yield _peer(columns[2])


def _peer(column: str) -> str:
    digits, _, port = column.partition(":")
    words = (int(digits[at : at + _WORD], 16) for at in range(0, len(digits), _WORD))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    if len(packed) == len(IPv4Address(0).packed):
        return f"ipv4:{IPv4Address(packed)}:{int(port, 16)}"
    address = IPv6Address(packed)
    if address.ipv4_mapped is not None:
        return f"ipv4:{address.ipv4_mapped}:{int(port, 16)}"
    return f"ipv6:[{address}]:{int(port, 16)}"
