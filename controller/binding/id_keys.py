"""Reads the keys of reservation ids (`admission.idKeys`): one file that all replicas share.

One line per key, `<key id> <secret in hex>`, at least 32 bytes; blank lines and those that
begin with # do not count. The first key makes ids, all of them read them. Small file, read
once at start; what is in it stands in no message.
"""

from pathlib import Path
from typing import Final

from controller.ledger.reservation_id import ReservationIds, ReservationKey

_MAX_BYTES: Final = 64 * 1024


class IdKeysError(Exception):
    """The file cannot be used; names it, and what was expected."""


def read_ids(cluster: str, path: Path) -> ReservationIds:
    """The ids of a cluster by the keys in `path`; raises IdKeysError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise IdKeysError(f"{path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise IdKeysError(f"{path}: more than {_MAX_BYTES} bytes")
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise IdKeysError(f"{path}: expected ASCII") from None
    keys = tuple(
        _key(path, number, line.split())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    try:
        return ReservationIds(cluster, keys)
    except ValueError as error:
        raise IdKeysError(f"{path}: {error}") from None


def _key(path: Path, number: int, words: list[str]) -> ReservationKey:
    expected = f"{path} line {number}: expected a key id (1 to 16 of a-z and 0-9) and hex digits"
    try:
        key_id, secret = words
        return ReservationKey(key_id, bytes.fromhex(secret))
    except ValueError:
        raise IdKeysError(f"{expected} of 32 bytes or more") from None
