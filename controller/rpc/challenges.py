"""Makes challenges: ids, nonces, the signature, and the audit log's head for this agent.

The signature and the client's check of the certificate are how the controller proves itself.
Keeps no challenge: the stream remembers what was issued.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress

from cryptography.hazmat.primitives.serialization import Encoding

from controller.audit.checkpoints import Published
from controller.audit.log import DurableLog
from controller.fleet.attestation_result import StreamState
from controller.verifier.challenge import (
    ID_BYTES,
    NONCE_BYTES,
    AuditHead,
    IssuedChallenge,
    Nonces,
    build_challenge,
)
from controller.verifier.context import (
    WANT_INVENTORY,
    VerifierSettings,
)
from gpuwarden.audit.checkpoint import KeyChange, open_checkpoint, unverified_checkpoint
from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import TYPE_CHALLENGE, WANT_FAILURES, WANT_PODS
from gpuwarden.identity.svid import Svid, SvidSource
from gpuwarden.moment import Moment
from gpuwarden.wire.v1 import attestation_pb2 as pb


class NoSvidError(Exception):
    """This controller has no valid SVID now, so it cannot prove itself."""


class Challenger:
    """Signs challenges for all streams of this controller."""

    def __init__(
        self,
        settings: VerifierSettings,
        svids: SvidSource,
        head: Callable[[StreamState], AuditHead | None] = lambda _stream: None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        wants_pods: Callable[[str], bool] = lambda _node: False,
    ) -> None:
        """`wants_pods`: whether to ask a node for its pods, which costs it a query."""
        self._settings = settings
        self._svids = svids
        self._head = head
        self._draw = draw
        self._wants_pods = wants_pods
        self._shown: tuple[Svid | None, list[bytes]] = (None, [])
        """The SVID that was used last, and its chain in DER."""

    def stream_id(self) -> bytes:
        """A fresh stream id."""
        return self._draw(ID_BYTES)

    def challenge(
        self, stream: StreamState, now: Moment, interval_ns: int
    ) -> tuple[pb.AttestResponse, IssuedChallenge]:
        """A fresh challenge for `stream` and what to remember of it; raises NoSvidError."""
        svid = self._svids.current()
        if svid is None:
            raise NoSvidError(self._svids.state())
        payload, issued = build_challenge(
            self._settings,
            stream,
            self._nonces(),
            now=now,
            interval_ns=interval_ns,
            want=self._want(stream.node),
            audit=self._head(stream),
        )
        return pb.AttestResponse(challenge=self._signed(payload, svid)), issued

    def _want(self, node: str) -> tuple[str, ...]:
        pods = (WANT_PODS,) if self._wants_pods(node) else ()
        return (WANT_INVENTORY, *pods, WANT_FAILURES)

    def _nonces(self) -> Nonces:
        """Of one draw, because each is a system call."""
        drawn = self._draw(ID_BYTES + 2 * NONCE_BYTES)
        rest = drawn[ID_BYTES:]
        return Nonces(drawn[:ID_BYTES], rest[:NONCE_BYTES], rest[NONCE_BYTES:])

    def _signed(self, payload: bytes, svid: Svid) -> pb.Challenge:
        return pb.Challenge(
            envelope=pb.Envelope(
                payload=payload,
                payload_type=TYPE_CHALLENGE,
                signature=sign(svid.private_key, TYPE_CHALLENGE, payload),
            ),
            certificate_chain=self._chain_of(svid),
        )

    def _chain_of(self, svid: Svid) -> list[bytes]:
        if self._shown[0] is not svid:
            self._shown = svid, [one.public_bytes(Encoding.DER) for one in svid.chain]
        return self._shown[1]


# --- the audit log's head


class AuditHeads:
    """The log's last checkpoint for a challenge, proven from the one that the agent knows.

    What an agent says it knows chooses the proof and nothing else. A proof that is not
    ready yet is asked for, and comes with a later challenge: a challenge never waits.
    """

    def __init__(self, log: DurableLog, origin: str) -> None:
        self._log = log
        self._origin = origin

    def __call__(self, stream: StreamState) -> AuditHead | None:
        """The head for this stream, or None where there is nothing to show now."""
        published = self._log.published
        if published is None:
            return None
        known = next((x.checkpoint for x in stream.witnessed if x.origin == self._origin), "")
        size = _size_to_prove_from(known, published)
        if size is not None and size not in published.proofs:
            self._log.want_proof(size)
            return None
        return AuditHead(
            published.note,
            () if size is None else published.proofs[size],
            published.key,
            published.key_changes,
        )


def _size_to_prove_from(note: str, published: Published) -> int | None:
    """None where there is nothing to prove, or no way to: then the agent has to see that."""
    if not note:
        return None
    try:
        known = unverified_checkpoint(note)
    except NoteError:
        return None
    size = known.head.size
    if size in published.proofs:
        return size
    beyond = size >= published.head.size or size in published.unprovable
    if beyond or known.log != published.log or not _is_signed(note, published):
        return None
    return size


def _is_signed(note: str, published: Published) -> bool:
    """Whether a key of this log has signed the note; else it could name any size."""
    former = (KeyChange.open(statement).old for statement in published.key_changes)
    for key in (VerifierKey.parse(published.key), *former):
        with suppress(NoteError):
            open_checkpoint(note, key)
            return True
    return False
