"""Envelopes for the fuzzer: how one input is cut into three, and the few that were signed."""

from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from gpuwarden.evidence.envelope import pae
from gpuwarden.evidence.model import TYPE_EVIDENCE, TYPE_FAILURE_NOTICE
from tests.golden.signers import certificate, fixed_key, sign_again

_KEY: Final = fixed_key(7, ec.SECP256R1())
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SIGNER: Final = certificate(_KEY, "spiffe://example.org/gpuwarden/agent/n1", 7)
SIGNED: Final = frozenset({(TYPE_EVIDENCE, b'{"a":1}'), (TYPE_FAILURE_NOTICE, b"{}"), ("", b"")})

CHALLENGE_DIGEST: Final = b"c" * 64
"""Stands in seeds for the digest of a challenge, which differs in each run."""


def split(data: bytes) -> tuple[str, bytes, bytes]:
    """Type, signature, payload: a length of one byte each before the first two."""
    kind, rest = _cut(data)
    signature, payload = _cut(rest)
    return kind.decode("utf-8", "replace"), signature, payload


def joined(kind: str, payload: bytes) -> bytes:
    """The input that holds what `SIGNER` signed."""
    text, signature = kind.encode(), _signature(kind, payload)
    return bytes([len(text)]) + text + bytes([len(signature)]) + signature + payload


def is_signature(kind: str, payload: bytes, signature: bytes) -> bool:
    """Whether it is the one signature (r, s) that was made over these, or its twin (r, n-s)."""
    if (kind, payload) not in SIGNED:
        return False
    r, s = decode_dss_signature(_signature(kind, payload))
    return decode_dss_signature(signature) in {(r, s), (r, _P256_ORDER - s)}


@cache
def _signature(kind: str, payload: bytes) -> bytes:
    return sign_again(_KEY, pae(kind, payload))


def _cut(data: bytes) -> tuple[bytes, bytes]:
    length = data[0] if data else 0
    return data[1 : 1 + length], data[1 + length :]
