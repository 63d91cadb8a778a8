"""Looks for secrets in whatever a program let out, in every spelling that a careless line uses."""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_private_key

_PEM_LINE = 48
"""Bytes in one line of PEM (RFC 7468, section 2)."""
_WINDOW = 72
"""Bytes of a body that nothing else has a reason to repeat."""


@dataclass
class SecretSearch:
    """What must not be seen, by name."""

    needles: dict[bytes, str] = field(default_factory=lambda: {b"-----BEGIN": "PEM"})

    def add_text(self, name: str, text: str) -> None:
        """A token or password."""
        self.needles[text.encode()] = name
        self.needles[base64.b64encode(text.encode()).rstrip(b"=")] = name

    def add_bytes(self, name: str, data: bytes) -> None:
        """Key material or a nonce: as it is, in hex, base64, decimal, and as Python shows it."""
        for spelling in _spellings(data):
            self.needles[spelling] = name

    def add_key(self, name: str, pkcs8_der: bytes) -> None:
        """A private key: its number, and the lines of its PEM that have a part of it."""
        key = load_der_private_key(pkcs8_der, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        size = (key.key_size + 7) // 8
        number = key.private_numbers().private_value.to_bytes(size, "big")
        self.add_bytes(name, number)
        begin = pkcs8_der.index(number)
        for start in range(0, begin + size, _PEM_LINE):  # what follows is the public key
            if start + _PEM_LINE > begin:
                self.needles[base64.b64encode(pkcs8_der[start : start + _PEM_LINE])] = name

    def add_pem_key(self, name: str, pem: bytes) -> None:
        """A private key in a file that may have it."""
        for line in pem.splitlines()[1:-1]:
            self.needles[line] = name

    def add_body(self, name: str, body: bytes, around: bytes) -> None:
        """A signed body: in base64 and hex, and the part that begins at `around`, escaped too."""
        self.needles[base64.b64encode(body)[:_WINDOW]] = name
        self.needles[body.hex().encode()[:_WINDOW]] = name
        at = body.index(around)
        part = body[at : at + _WINDOW]
        self.needles[part] = name
        self.needles[json.dumps(part.decode()).encode().strip(b'"')] = name

    def found_in(self, data: bytes) -> set[str]:
        """Names of the secrets that `data` lets out."""
        return {name for needle, name in self.needles.items() if needle in data}

    def found_below(self, folders: Iterable[Path]) -> dict[str, set[str]]:
        """The same for every file below `folders`, by file name; empty where nothing is let out."""
        found = {}
        for folder in folders:
            for path in (path for path in folder.rglob("*") if path.is_file()):
                if names := self.found_in(path.read_bytes()):
                    found[path.name] = names
        return found


def _spellings(data: bytes) -> Iterator[bytes]:
    yield data
    yield data.hex().encode()
    yield data.hex().upper().encode()
    yield base64.b64encode(data).rstrip(b"=")
    yield base64.urlsafe_b64encode(data).rstrip(b"=")
    yield str(int.from_bytes(data, "big")).encode()
    yield repr(data)[2:-1].encode()
