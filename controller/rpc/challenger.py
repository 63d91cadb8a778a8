"""Makes challenges: draws ids and nonces, signs with the SVID that is current now.

This and the client's check of our certificate are how the controller proves
itself. Keeps no challenge: what has been issued is remembered by the stream.
"""

import secrets
from collections.abc import Callable

from cryptography.hazmat.primitives.serialization import Encoding

from controller.verifier.challenge import (
    ID_BYTES,
    NONCE_BYTES,
    AuditHead,
    IssuedChallenge,
    Nonces,
    build_challenge,
)
from controller.verifier.context import WANT_INVENTORY, Now, StreamState, VerifierSettings
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import TYPE_CHALLENGE, WANT_PODS
from gpuwarden.identity.svid import Svid, SvidSource
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
        """`wants_pods`: whether it matters which pods run on a node, which costs it a look."""
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
        self, stream: StreamState, now: Now, interval_ns: int
    ) -> tuple[pb.AttestResponse, IssuedChallenge]:
        """A fresh challenge for `stream` and what to remember of it; raises NoSvidError."""
        svid = self._svids.current()
        if svid is None:
            raise NoSvidError(self._svids.state())
        payload, issued = build_challenge(
            self._settings,
            stream,
            self._nonces(),
            issued_ns=now.boottime_ns,
            wall=now.wall,
            interval_ns=interval_ns,
            want=self._want(stream.node),
            audit=self._head(stream),
        )
        return pb.AttestResponse(challenge=self._signed(payload, svid)), issued

    def _want(self, node: str) -> tuple[str, ...]:
        return (WANT_INVENTORY, WANT_PODS) if self._wants_pods(node) else (WANT_INVENTORY,)

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
