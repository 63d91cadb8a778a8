"""Challenges as a controller makes them, right unless a test changes something."""

import secrets
from typing import Any

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding

from agent.challenge import SignedChallenge
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import PROTOCOL, TYPE_CHALLENGE, Challenge
from gpuwarden.identity.svid import Svid
from tests.builders.ca import TRUST_DOMAIN

CONTROLLER = f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"
CLUSTER = "main"


def challenge(hello: bytes, leaf_der: bytes, **changes: Any) -> Challenge:
    document = Challenge(
        protocol=PROTOCOL,
        controller=CONTROLLER,
        cluster=CLUSTER,
        trust_domain=TRUST_DOMAIN,
        stream_id=secrets.token_hex(16),
        challenge_id=secrets.token_hex(16),
        nonce=secrets.token_hex(32),
        spare_nonce=secrets.token_hex(32),
        hello_sha256=sha256_hex(hello),
        leaf_sha256=sha256_hex(leaf_der),
        want=("inventory",),
        ttl_ms=15_000,
        interval_ms=25_000,
        checkpoint=None,
        consistency_proof=(),
        log_key=None,
        log_key_changes=(),
        wall_ms="1800000000000",
    )
    return msgspec.structs.replace(document, **changes)


def signed(document: Challenge, svid: Svid, payload_type: str = TYPE_CHALLENGE) -> SignedChallenge:
    return signed_bytes(canonical_json(document), svid, payload_type)


def signed_bytes(payload: bytes, svid: Svid, payload_type: str = TYPE_CHALLENGE) -> SignedChallenge:
    return SignedChallenge(
        payload=payload,
        payload_type=payload_type,
        signature=sign(svid.private_key, payload_type, payload),
        chain_der=tuple(entry.public_bytes(Encoding.DER) for entry in svid.chain),
    )
