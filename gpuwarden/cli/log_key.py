"""Which public key an audit log must be signed with, as people give it."""

import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.cli.outcome import CliError, ExitCode

_MAX_BYTES = 16 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_KEY = "expected an Ed25519 public key in PEM, or a verifier key NAME+KEYID+BASE64"


def pinned(key: Path | None, pin: str) -> str:
    """SHA-256 of the raw public key in hex, empty if none was given; raises OSError, CliError."""
    if key is not None and pin:
        raise CliError(ExitCode.USAGE, "give either --key or --pin")
    if key is not None:
        with key.open("rb") as file:
            return _digest_of(file.read(_MAX_BYTES), f"--key {key}")
    if not pin or _DIGEST.fullmatch(pin):
        return pin
    try:
        return VerifierKey.parse(pin).digest
    except NoteError as error:
        text = f"--pin: expected 64 lower-case hex digits or a verifier key: {error}"
        raise CliError(ExitCode.USAGE, text) from None


def _digest_of(data: bytes, what: str) -> str:
    if b"-----BEGIN" not in data:
        try:
            return VerifierKey.parse(data.decode("utf-8", "replace").strip()).digest
        except NoteError:
            raise CliError(ExitCode.USAGE, f"{what}: {_NO_KEY}") from None
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise CliError(ExitCode.USAGE, f"{what}: {_NO_KEY}")
    return VerifierKey("", key.public_bytes_raw()).digest
