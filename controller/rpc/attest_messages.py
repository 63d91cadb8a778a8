"""AttestationService's messages to and from the Verifier's values. Nothing is decided here."""

from typing import Final

from controller.verifier.context import ReceivedMessage
from controller.verifier.result import Accepted
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import attestation_pb2 as pb

_MS: Final = 1_000_000
_U32: Final = 2**32 - 1


def received(evidence: pb.Evidence) -> ReceivedMessage:
    """The message with its bytes as they came."""
    envelope = evidence.envelope
    return ReceivedMessage(
        stream_id=evidence.stream_id,
        challenge_id=evidence.challenge_id,
        nonce=evidence.nonce,
        payload=envelope.payload,
        payload_type=envelope.payload_type,
        signature=envelope.signature,
    )


def accepted_verdict(
    challenge_id: bytes, accepted: Accepted, *, now_ns: int, next_ns: int
) -> pb.AttestResponse:
    """Evidence counts: hash, level, and for how long."""
    return pb.AttestResponse(
        verdict=pb.Verdict(
            challenge_id=challenge_id,
            outcome=pb.OUTCOME_ACCEPTED,
            code=ReasonCode.ACCEPTED,
            attestation_hash=accepted.attestation_hash,
            level=accepted.level,
            fresh_for_ms=_ms(accepted.fresh_until_ns - now_ns),
            next_challenge_ms=_at_least_one(next_ns),
        )
    )


def noted_verdict(challenge_id: bytes) -> pb.AttestResponse:
    """Bad news was taken; a challenge follows at once. No hash: news earns none."""
    return pb.AttestResponse(
        verdict=pb.Verdict(
            challenge_id=challenge_id,
            outcome=pb.OUTCOME_ACCEPTED,
            code=ReasonCode.ACCEPTED,
            detail="bad news noted",
            next_challenge_ms=1,
        )
    )


def refused_verdict(
    challenge_id: bytes, code: ReasonCode, detail: str, *, next_ns: int | None
) -> pb.AttestResponse:
    """It does not count; `next_ns` is None when the stream ends."""
    return pb.AttestResponse(
        verdict=pb.Verdict(
            challenge_id=challenge_id,
            outcome=pb.OUTCOME_REFUSED,
            code=code,
            detail=detail,
            next_challenge_ms=0 if next_ns is None else _at_least_one(next_ns),
        )
    )


def _ms(nanoseconds: int) -> int:
    return min(max(nanoseconds, 0) // _MS, _U32)


def _at_least_one(nanoseconds: int) -> int:
    """0 would say that the stream ends."""
    return max(1, _ms(nanoseconds))
