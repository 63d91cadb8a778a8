"""Signed notes: a text with Ed25519 signatures below it, as C2SP signed-note defines them.

    text, whose last line ends with a line feed
    (empty line)
    — <key name> <base64 of key id and signature>

A verifier key is written `<name>+<key id>+<base64 of 01 and the public key>`. Signatures
of keys that nobody asked for are passed over, so that witnesses may add theirs.
Source: https://c2sp.org/signed-note. Pure.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_NOTE: Final = 16 * 1024
MAX_SIGNATURES: Final = 16
_ED25519: Final = b"\x01"
_ID_BYTES: Final = 4
"""Of a key id, which begins a signature."""
_NAME: Final = r"[!-*,-~]{1,520}"
"""A key's name: printable ASCII without space and plus."""
_VERIFIER_KEY: Final = re.compile(rf"({_NAME})\+([0-9a-f]{{8}})\+([A-Za-z0-9+/=]{{44}})")
_SIGNATURE: Final = re.compile(rf"\u2014 ({_NAME}) ([A-Za-z0-9+/=]{{1,200}})")
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class NoteError(Exception):
    """A note that is not accepted; the message is why."""


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """An Ed25519 public key with its name."""

    name: str
    public: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a verifier key; raises NoteError."""
        match = _VERIFIER_KEY.fullmatch(text)
        encoded = _decoded(match[3]) if match else None
        if match is None or encoded is None or encoded[:1] != _ED25519:
            raise NoteError("a verifier key is NAME+KEYID+BASE64, of an Ed25519 key")
        key = cls(match[1], encoded[1:])
        if key.key_id.hex() != match[2]:
            raise NoteError("the key id does not belong to this name and key")
        return key

    def __str__(self) -> str:
        encoded = b64encode(_ED25519 + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    @property
    def key_id(self) -> bytes:
        """Four bytes that distinguish keys of one name; they prove nothing."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:_ID_BYTES]

    @property
    def digest(self) -> str:
        """SHA-256 of the raw public key, 64 lower-case hex digits: what a pin is."""
        return sha256(self.public).hexdigest()

    def verifies(self, text: str, signature: bytes) -> bool:
        """Whether this key made the signature."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text.encode())
        except (InvalidSignature, ValueError):
            return False
        return True


class Signer:
    """An Ed25519 private key with its name."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.key = VerifierKey(name, private.public_key().public_bytes_raw())

    def line(self, text: str) -> str:
        """The signature line below `text`."""
        signature = self.key.key_id + self._private.sign(text.encode())
        return f"\u2014 {self.key.name} {b64encode(signature).decode()}\n"


def sign_note(text: str, signers: Sequence[Signer]) -> str:
    """The note of `text`, which ends with a line feed, signed by each of the signers."""
    return f"{text}\n{''.join(signer.line(text) for signer in signers)}"


def open_note(note: str, *keys: VerifierKey) -> str:
    """The text of a note that each of `keys` has signed; raises NoteError.

    Without keys the text is only cut out: nothing is known about who wrote it.
    """
    text, signatures = _parts(note)
    for key in keys:
        mine = [
            blob[_ID_BYTES:] for name, blob in signatures if (name, blob[:_ID_BYTES]) == _hint(key)
        ]
        if not mine:
            raise NoteError(f"not signed by the key {key.name}+{key.key_id.hex()}")
        if not all(key.verifies(text, signature) for signature in mine):
            raise NoteError(f"the signature of {key.name}+{key.key_id.hex()} does not hold")
    return text


def _hint(key: VerifierKey) -> tuple[str, bytes]:
    return key.name, key.key_id


def _parts(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    body, blank, below = note.rpartition("\n\n")
    lines = below.split("\n")
    if not blank or len(note) > MAX_NOTE or _CONTROL.search(note) or lines.pop():
        raise NoteError("not a signed note: text, an empty line, signature lines")
    if not 1 <= len(lines) <= MAX_SIGNATURES:
        raise NoteError(f"a note has 1 to {MAX_SIGNATURES} signatures")
    return f"{body}\n", [_signature(line) for line in lines]


def _signature(line: str) -> tuple[str, bytes]:
    match = _SIGNATURE.fullmatch(line)
    blob = _decoded(match[2]) if match else None
    if match is None or blob is None or len(blob) <= _ID_BYTES:
        raise NoteError("a signature line is not as it should be")
    return match[1], blob


def _decoded(text: str) -> bytes | None:
    """Base64 in its one canonical form."""
    try:
        decoded = b64decode(text)
    except ValueError:
        return None
    return decoded if b64encode(decoded).decode() == text else None
