"""Steps 14 and 15: whether the payload is for us, for this challenge, and next in line."""

import re
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from controller.verifier.challenge import IssuedChallenge, milliseconds
from controller.verifier.context import Now, StreamState, VerifierSettings
from gpuwarden.evidence.model import PROTOCOL, EvidenceHeader
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode, Refusal

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """The node's clocks in a payload, milliseconds."""

    wall_ms: int
    boottime_ms: int


def read_times(header: EvidenceHeader) -> Times | Refusal:
    """The payload's times; part of its shape, so step 11."""
    for text in (header.wall_ms, header.boottime_ms):
        if not _DECIMAL.fullmatch(text):
            return Refusal(
                ReasonCode.MSG_MALFORMED, f"time {quote(text)} is not decimal milliseconds"
            )
    return Times(int(header.wall_ms), int(header.boottime_ms))


def protocol(header: EvidenceHeader) -> Refusal | None:
    """Step 10 again, now under the signature."""
    if header.protocol != PROTOCOL:
        return Refusal(
            ReasonCode.PROTOCOL_UNSUPPORTED,
            f"payload of protocol {header.protocol}, {PROTOCOL} is expected",
        )
    return None


def bound(
    header: EvidenceHeader,
    issued: IssuedChallenge,
    stream: StreamState,
    settings: VerifierSettings,
    *,
    spare: bool,
) -> Refusal | None:
    """Step 14: audience, node name, nonce, digest of the challenge."""
    if (header.audience, header.trust_domain) != (settings.audience, settings.trust_domain):
        return Refusal(
            ReasonCode.AUDIENCE_MISMATCH,
            f"evidence for {quote(header.audience)}, we are {settings.audience}",
        )
    if header.node_name != stream.node:
        return Refusal(
            ReasonCode.NODE_NAME_MISMATCH,
            f"evidence of {quote(header.node_name)}, the certificate is {stream.node}'s",
        )
    if not _same_nonce(header, issued, spare=spare):
        return Refusal(
            ReasonCode.INNER_NONCE_MISMATCH, "the signed stream, challenge or nonce is another"
        )
    if not _same(header.challenge_sha256, issued.sha256):
        return Refusal(ReasonCode.CHALLENGE_DIGEST_MISMATCH, "another challenge was answered")
    return None


def in_line(
    header: EvidenceHeader, times: Times, stream: StreamState, now: Now, settings: VerifierSettings
) -> Refusal | None:
    """Step 15: sequence, previous digest, boot, clocks."""
    if header.seq <= stream.seq:
        return Refusal(ReasonCode.SEQ_REPLAY, f"seq {header.seq} after {stream.seq}")
    if header.seq > stream.seq + 1:
        return Refusal(ReasonCode.SEQ_GAP, f"seq {header.seq} after {stream.seq}")
    if not _same(header.prev, stream.prev):
        return Refusal(ReasonCode.PREV_MISMATCH, "prev is not the digest of the evidence before")
    if (header.boot_id, header.instance_id) != (stream.hello.boot_id, stream.hello.instance_id):
        return Refusal(ReasonCode.BOOT_CHANGED, "boot or process is not the one that said hello")
    if stream.boottime_ms is not None and times.boottime_ms < stream.boottime_ms:
        return Refusal(
            ReasonCode.CLOCK_BACKWARDS,
            f"the node's boot time went back by {stream.boottime_ms - times.boottime_ms} ms",
        )
    return _skewed(times, now, settings)


def skew_warning(times: Times, now: Now, settings: VerifierSettings) -> str | None:
    """A line for people where the node's wall clock is off, though not so far as to be refused."""
    skew = _skew_ms(times, now)
    return _skew_text(skew) if abs(skew) > settings.skew_warn_ms else None


def _skewed(times: Times, now: Now, settings: VerifierSettings) -> Refusal | None:
    skew = _skew_ms(times, now)
    if abs(skew) > settings.skew_refuse_ms:
        return Refusal(ReasonCode.CLOCK_SKEW, _skew_text(skew))
    return None


def _skew_ms(times: Times, now: Now) -> int:
    return times.wall_ms - milliseconds(now.wall)


def _skew_text(skew_ms: int) -> str:
    side = "ahead of" if skew_ms > 0 else "behind"
    return f"the node's clock is {abs(skew_ms) // _SECOND_MS} s {side} the controller's"


def _same_nonce(header: EvidenceHeader, issued: IssuedChallenge, *, spare: bool) -> bool:
    nonce = issued.spare_nonce if spare else issued.nonce
    return (
        _same(header.nonce, nonce)
        and _same(header.challenge_id, issued.challenge_id)
        and _same(header.stream_id, issued.stream_id)
    )


def _same(text: str, expected: str) -> bool:
    """Compare in constant time; `text` may be any Unicode."""
    return compare_digest(text.encode("utf-8"), expected.encode("utf-8"))
