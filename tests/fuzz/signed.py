"""Envelopes for the fuzzer: how one input is cut into three, and the few that were signed."""

from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from gpuwarden.evidence.envelope import pae
from gpuwarden.evidence.model import TYPE_BAD_NEWS, TYPE_EVIDENCE
from tests.golden.signers import certificate, fixed_key, sign_again

_KEY: Final = fixed_key(7, ec.SECP256R1())
SIGNER: Final = certificate(_KEY, "spiffe://example.org/gpuwarden/agent/n1", 7)
SIGNED: Final = frozenset({(TYPE_EVIDENCE, b'{"a":1}'), (TYPE_BAD_NEWS, b"{}"), ("", b"")})

CHALLENGE_DIGEST: Final = b"c" * 64
"""Stands in seeds for the digest of a challenge, which differs in each run."""


def split(data: bytes) -> tuple[str, bytes, bytes]:
    """Type, signature, payload: a length of one byte each before the first two."""
    kind, rest = _cut(data)
    signature, payload = _cut(rest)
    return kind.decode("utf-8", "replace"), signature, payload


def joined(kind: str, payload: bytes) -> bytes:
    """The input that holds what `SIGNER` signed."""
    signature = sign_again(_KEY, pae(kind, payload))
    text = kind.encode()
    return bytes([len(text)]) + text + bytes([len(signature)]) + signature + payload


def _cut(data: bytes) -> tuple[bytes, bytes]:
    length = data[0] if data else 0
    return data[1 : 1 + length], data[1 + length :]
