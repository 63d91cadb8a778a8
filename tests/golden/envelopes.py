"""Vectors of DSSE envelopes: the encoding that is signed, its digest, signatures, and refusals.

RSA-PSS signatures hold a random salt, so `rsa.json` was made once and is only verified.
"""

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from gpuwarden.evidence.envelope import evidence_digest, pae
from gpuwarden.evidence.model import TYPE_EVIDENCE
from tests.golden.signers import certificate, fixed_key, pem, sign_again

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_AGENT = "spiffe://example.org/gpuwarden/agent/gpu-a1"
_PAYLOAD = b'{"hello":"world"}'


def envelopes() -> dict[str, Any]:
    return {
        "pae": [_pae(kind, payload) for kind, payload in _TEXTS],
        "signed": [
            _signed("P-256 with SHA-256", ec.SECP256R1()),
            _signed("P-384 with SHA-384", ec.SECP384R1()),
        ],
        "refused": _refused(),
    }


_TEXTS = [
    ("http://example.com/HelloWorld", b"hello world"),
    (TYPE_EVIDENCE, _PAYLOAD),
    ("", b""),
    ("t\u00e9xt", b"\x00\xff 4 "),
]


def _pae(kind: str, payload: bytes) -> dict[str, Any]:
    return {
        "payloadType": kind,
        "payloadHex": payload.hex(),
        "paeHex": pae(kind, payload).hex(),
        "digest": evidence_digest(kind, payload),
    }


def _signed(name: str, curve: ec.EllipticCurve) -> dict[str, Any]:
    key = fixed_key(0x11, curve)
    return _vector(
        name, key, TYPE_EVIDENCE, _PAYLOAD, sign_again(key, pae(TYPE_EVIDENCE, _PAYLOAD))
    )


def _refused() -> list[dict[str, Any]]:
    key = fixed_key(0x11, ec.SECP256R1())
    good = sign_again(key, pae(TYPE_EVIDENCE, _PAYLOAD))
    other = fixed_key(0x22, ec.SECP256R1())
    koblitz = fixed_key(0x11, ec.SECP256K1())
    return [
        _vector("another type", key, "application/json", _PAYLOAD, good),
        _vector("another payload", key, TYPE_EVIDENCE, _PAYLOAD + b" ", good),
        _vector("another key", other, TYPE_EVIDENCE, _PAYLOAD, good),
        _vector("bare payload signed", key, TYPE_EVIDENCE, _PAYLOAD, sign_again(key, _PAYLOAD)),
        _vector("cut signature", key, TYPE_EVIDENCE, _PAYLOAD, good[:-1]),
        _vector("empty signature", key, TYPE_EVIDENCE, _PAYLOAD, b""),
        _vector(
            "curve that may not sign",
            koblitz,
            TYPE_EVIDENCE,
            _PAYLOAD,
            sign_again(koblitz, pae(TYPE_EVIDENCE, _PAYLOAD)),
        ),
    ]


def twin(signature: bytes) -> bytes:
    """The other P-256 signature (r, n-s) that verifies over the same bytes."""
    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, _P256_ORDER - s)


def _vector(
    name: str, key: ec.EllipticCurvePrivateKey, kind: str, payload: bytes, signature: bytes
) -> dict[str, Any]:
    return {
        "name": name,
        "certificate": pem(certificate(key, _AGENT, 1)),
        "payloadType": kind,
        "payloadHex": payload.hex(),
        "signatureHex": signature.hex(),
    }
