"""The Ed25519 keys that sign checkpoints, and the statements that the key changed.

A file holds one or more private keys in PEM (PKCS #8, as `openssl genpkey -algorithm
ed25519` writes them): the first signs, the others are former ones, so that the log can
go over to a new key with a statement of both. A configured file is never written; where none is
configured, the log's folder has its own.
"""

import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from controller.audit.files import LogBrokenError
from gpuwarden.audit.checkpoint import MAX_CHANGES, KeyChange
from gpuwarden.audit.files import KEY_CHANGES, KEY_FILE
from gpuwarden.audit.note import NoteError, Signer, VerifierKey
from gpuwarden.regular_file import open_new, open_to_read

MAX_FILE_BYTES = 64 * 1024
MAX_KEYS = 8
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----\n?", re.DOTALL)


class LogKeyError(LogBrokenError):
    """The key cannot be used, so the log cannot go on; says why, without the key."""


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Who signs, and who signed before."""

    current: Signer
    former: tuple[Signer, ...] = ()

    def of(self, key: VerifierKey) -> Signer | None:
        """The signer of this key, if its private half is here."""
        return next((one for one in (self.current, *self.former) if one.key == key), None)


def log_keys(path: Path | None, folder: Path, origin: str) -> LogKeys:
    """Read the configured file, or the folder's own, which is made if there is none.

    Raises LogKeyError, and OSError where the folder's own cannot be made.
    """
    if path is None:
        path = folder / KEY_FILE
        _make(path)
    try:
        return _keys(path, origin)
    except OSError as error:
        raise LogKeyError(f"audit.key: {path}: {error.strerror}") from error


def _keys(path: Path, origin: str) -> LogKeys:
    with open_to_read(path) as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007:
            raise LogKeyError(f"audit.key: {path} is open to everybody; chmod o= it")
        blocks = _PEM.findall(file.read(MAX_FILE_BYTES))
    if not 1 <= len(blocks) <= MAX_KEYS:
        raise LogKeyError(f"audit.key: {path}: expected 1 to {MAX_KEYS} private keys in PEM")
    current, *former = (Signer(origin, _private(block, path)) for block in blocks)
    return LogKeys(current, tuple(former))


def _private(block: bytes, path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(block, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise LogKeyError(f"audit.key: {path}: expected unencrypted Ed25519 keys")
    return key


def _make(path: Path) -> None:
    """Make the folder's own key, once: whole and durable, or not at all."""
    if path.exists():
        return
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    fresh = path.with_suffix(".new")
    with open_new(fresh) as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


# --- statements that the key changed

_MAX_BYTES = 64 * 1024


class KeyChanges:
    """The file `key-changes` beside the log, oldest first. What is not a statement is skipped.

    The statements are in `log.key` records too; but those may be past retention when a witness
    comes back that knows an old key.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY_CHANGES
        self.statements = self._read()

    def add(self, statement: str) -> None:
        """Keep one more; raises OSError."""
        if statement in self.statements:
            return
        self.statements = (*self.statements, statement)[-MAX_CHANGES:]
        fresh = self._path.with_suffix(".new")
        with open_new(fresh) as file:
            file.write(json.dumps(self.statements).encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def _read(self) -> tuple[str, ...]:
        found: object = ()
        with suppress(OSError, ValueError), open_to_read(self._path) as file:
            found = json.loads(file.read(_MAX_BYTES))
        return tuple(note for note in found if _is_change(note)) if isinstance(found, list) else ()


def _is_change(note: object) -> bool:
    try:
        KeyChange.open(note if isinstance(note, str) else "")
    except NoteError:
        return False
    return True
