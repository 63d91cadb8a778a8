"""Steps 4 to 15 of a message: from received bytes to a payload that is known to be the node's.

What is left afterwards is authentic, addressed to us, an answer to our challenge and
the next in line; whether it is acceptable is judged elsewhere (see `judging`).
"""

from dataclasses import dataclass, replace

from controller.verifier import binding, envelope, hello, peer, standing
from controller.verifier.challenge import IssuedChallenge
from controller.verifier.context import (
    Now,
    ReceivedMessage,
    Snapshots,
    StreamState,
    VerifierSettings,
)
from controller.verifier.seams import SpireFacts
from gpuwarden.evidence.envelope import evidence_digest
from gpuwarden.evidence.model import TYPE_BAD_NEWS, BadNews, Evidence, EvidenceHeader
from gpuwarden.reasons import Refusal

Payload = Evidence | BadNews | envelope.Unreadable


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with everything it is judged by."""

    stream: StreamState
    message: ReceivedMessage
    issued: IssuedChallenge | Refusal
    """What popping its challenge gave."""
    known: Snapshots
    now: Now

    @property
    def spare(self) -> bool:
        """Whether it comes under the spare nonce, as bad news does."""
        return self.message.payload_type == TYPE_BAD_NEWS


@dataclass(frozen=True, slots=True)
class Opened:
    """An authentic payload."""

    payload: Payload
    issued: IssuedChallenge
    digest: str
    stream: StreamState
    """The state after it."""
    warning: str | None


def still_welcome(arrival: Arrival, spire: SpireFacts) -> standing.NodeStanding | Refusal:
    """Steps 4 to 10 again: whether this session may still speak for its node.

    Bad news needs no store that is fresh and no SPIRE server that answers: neither could
    make it say less.
    """
    stream, known, now = arrival.stream, arrival.known, arrival.now
    proof = peer.chain(stream.chain, known.roots, now.wall, stream.proof)
    if isinstance(proof, Refusal):
        return proof
    if arrival.spare:
        found: standing.NodeStanding | Refusal = (
            standing.denial(known, stream.node) or standing.UNCONFIRMED
        )
    else:
        found = standing.node_standing(spire, stream.peer, stream.node, known, now.boottime_ns)
    record = known.enrollment.records.get(stream.node)
    return (
        found if isinstance(found, Refusal) else hello.superseded_meanwhile(stream, record) or found
    )


def open_message(arrival: Arrival, settings: VerifierSettings) -> Opened | Refusal:
    """Steps 11 to 15, and the part of step 10 that needs a signed answer."""
    issued, message = arrival.issued, arrival.message
    if refusal := envelope.shape(message, issued, settings.limits):
        return refusal
    if isinstance(issued, Refusal):
        return issued
    if refusal := envelope.signature(message, issued, arrival.stream):
        return refusal
    judged = arrival.stream.judged
    payload = envelope.read_payload(message, judged.known if judged else None)
    if isinstance(payload, Refusal):
        return payload
    return _bind(arrival, payload, issued, settings)


def _bind(
    arrival: Arrival, payload: Payload, issued: IssuedChallenge, settings: VerifierSettings
) -> Opened | Refusal:
    header = payload.header if isinstance(payload, envelope.Unreadable) else payload
    times = binding.read_times(header)
    if isinstance(times, Refusal):
        return times
    if refusal := _unbound(arrival, header, times, issued, settings):
        return refusal
    digest = evidence_digest(arrival.message.payload_type, arrival.message.payload)
    stream = arrival.stream
    return Opened(
        payload,
        issued,
        digest,
        replace(
            stream,
            seq=header.seq,
            prev=digest,
            boottime_ms=times.boottime_ms,
            witnessed=payload.checkpoints if isinstance(payload, Evidence) else stream.witnessed,
        ),
        binding.skew_warning(times, arrival.now, settings),
    )


def _unbound(
    arrival: Arrival,
    header: EvidenceHeader,
    times: binding.Times,
    issued: IssuedChallenge,
    settings: VerifierSettings,
) -> Refusal | None:
    stream = arrival.stream
    return (
        binding.protocol(header)
        or binding.bound(header, issued, stream, settings, spare=arrival.spare)
        or binding.in_line(header, times, stream, arrival.now, settings)
        or hello.duplicate(stream, arrival.known.enrollment.records.get(stream.node))
    )
