"""Challenges of one stream: what goes out, and that each is answered once (step 12).

A challenge is used up by the first message that names it, whatever else is wrong with
that message; the caller pops before anything is checked. The spare nonce serves one
failure notice and lives until the next challenge. Nothing here survives the
stream, so a restart forgets all nonces. The caller draws the nonces.
"""

from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from controller.fleet.attestation_result import StreamState
from controller.verifier.context import WANT_INVENTORY, ReceivedMessage, VerifierSettings
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.model import FAILURE_TYPES, PROTOCOL, Challenge
from gpuwarden.moment import NS_PER_MS, Moment
from gpuwarden.reasons import ReasonCode, Refusal

MEMORY: Final = 8
"""Challenges remembered per stream, answered or not: minutes, while one lives for seconds."""

ID_BYTES: Final = 16
NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Nonces:
    """Fresh random material for one challenge: 16, 32 and 32 bytes."""

    challenge_id: bytes
    nonce: bytes
    spare_nonce: bytes


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The log's last checkpoint and the proof that it continues the one the agent knows."""

    checkpoint: str
    consistency_proof: tuple[str, ...] = ()
    log_key: str | None = None
    log_key_changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IssuedChallenge:
    """What has to be remembered of a challenge that went out; ids and nonces in hex."""

    challenge_id: str
    nonce: str
    spare_nonce: str
    stream_id: str
    leaf_sha256: str
    want: tuple[str, ...]
    sha256: str
    """Of the bytes sent."""
    issued_ns: int
    expires_ns: int


def build_challenge(
    settings: VerifierSettings,
    stream: StreamState,
    nonces: Nonces,
    *,
    now: Moment,
    interval_ns: int | None = None,
    want: tuple[str, ...] = (WANT_INVENTORY,),
    audit: AuditHead | None = None,
) -> tuple[bytes, IssuedChallenge]:
    """The payload to sign and send (RFC 8785 JSON, document `Challenge`), and what to remember.

    `interval_ns` is the time until the next challenge, jitter included.
    """
    document = Challenge(
        protocol=PROTOCOL,
        controller=settings.audience,
        cluster=settings.cluster,
        trust_domain=settings.trust_domain,
        stream_id=stream.stream_id,
        challenge_id=nonces.challenge_id.hex(),
        nonce=nonces.nonce.hex(),
        spare_nonce=nonces.spare_nonce.hex(),
        hello_sha256=stream.hello_sha256,
        leaf_sha256=stream.leaf_sha256,
        want=want,
        ttl_ms=settings.challenge_ttl_ns // NS_PER_MS,
        interval_ms=(settings.interval_ns if interval_ns is None else interval_ns) // NS_PER_MS,
        checkpoint=audit.checkpoint if audit else None,
        consistency_proof=audit.consistency_proof if audit else (),
        wall_ms=str(now.wall_ms),
        log_key=audit.log_key if audit else None,
        log_key_changes=audit.log_key_changes if audit else (),
    )
    payload = canonical_json(document)
    return payload, IssuedChallenge(
        challenge_id=document.challenge_id,
        nonce=document.nonce,
        spare_nonce=document.spare_nonce,
        stream_id=document.stream_id,
        leaf_sha256=document.leaf_sha256,
        want=want,
        sha256=sha256_hex(payload),
        issued_ns=now.boottime_ns,
        expires_ns=now.boottime_ns + settings.challenge_ttl_ns,
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    challenge: IssuedChallenge
    answered: bool = False
    spare_used: bool = False


@dataclass(frozen=True, slots=True)
class ChallengeStore:
    """The challenges of one stream, oldest first. A value: each operation gives the next one."""

    entries: tuple[_Entry, ...] = ()

    @property
    def open_until_ns(self) -> int:
        """Until when the newest challenge may still be answered; 0 once it was."""
        newest = self.entries[-1] if self.entries else None
        return 0 if newest is None or newest.answered else newest.challenge.expires_ns

    def issue(self, challenge: IssuedChallenge) -> "ChallengeStore":
        """Remember a challenge that goes out now; the spare nonce before it ends."""
        return ChallengeStore((*self.entries, _Entry(challenge))[-MEMORY:])

    def pop(
        self, message: ReceivedMessage, now_ns: int
    ) -> "tuple[ChallengeStore, IssuedChallenge | Refusal]":
        """Use up what `message` names and say whether it may be answered (step 12)."""
        name = message.challenge_id.hex()
        entry = next((x for x in self.entries if x.challenge.challenge_id == name), None)
        if entry is None:
            return self, Refusal(ReasonCode.CHALLENGE_UNKNOWN, "no such challenge on this stream")
        spare = message.payload_type in FAILURE_TYPES
        used = _Entry(
            entry.challenge,
            answered=entry.answered or not spare,
            spare_used=entry.spare_used or spare,
        )
        store = ChallengeStore(tuple(used if x is entry else x for x in self.entries))
        return store, self._refusal(entry, message, now_ns, spare=spare) or entry.challenge

    def _refusal(
        self, entry: _Entry, message: ReceivedMessage, now_ns: int, *, spare: bool
    ) -> Refusal | None:
        challenge = entry.challenge
        expired = entry is not self.entries[-1] if spare else now_ns > challenge.expires_ns
        if expired:
            return Refusal(ReasonCode.CHALLENGE_EXPIRED, _EXPIRED[spare])
        if entry.spare_used if spare else entry.answered:
            return Refusal(ReasonCode.NONCE_REUSED, "this nonce was presented before")
        expected = challenge.spare_nonce if spare else challenge.nonce
        if not compare_digest(message.nonce.hex(), expected):
            return Refusal(ReasonCode.NONCE_MISMATCH, "the nonce is not the challenge's")
        if not compare_digest(message.stream_id.hex(), challenge.stream_id):
            return Refusal(ReasonCode.STREAM_MISMATCH, "the message names another stream")
        return None


_EXPIRED: Final = {
    False: "the challenge was answered too late",
    True: "a newer challenge has ended this spare nonce",
}
