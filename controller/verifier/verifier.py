"""The order of verification: steps 1 to 10 for a stream, 4 to 18 for each message.

Only the order is here; each step stands in the module of its name. Two checks stand
where their proof is complete rather than where their number is: a malformed time is
part of a payload's shape (11), and that a superseded process lives (10) is proven
only by its signed answer, after step 15.
"""

from controller.fleet.appraisal import Accepted, BadNewsAccepted, Refused, StreamState, refused
from controller.verifier import stream as hello
from controller.verifier import stream as peer
from controller.verifier import stream as standing
from controller.verifier.challenge import IssuedChallenge
from controller.verifier.context import (
    HardwareAppraisal,
    NoHardware,
    NoSpire,
    ReceivedMessage,
    Snapshots,
    SpireFacts,
    StreamFacts,
    VerifierSettings,
)
from controller.verifier.message import Judge, unreadable
from controller.verifier.stream import Arrival, Unreadable, open_message, still_welcome
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.evidence.model import BadNews
from gpuwarden.identity.chain import ChainProof, parse_chain
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.moment import Moment
from gpuwarden.reasons import ReasonCode, Refusal


class Verifier:
    """Appraises streams and messages; pure, so one instance serves all streams."""

    def __init__(
        self,
        settings: VerifierSettings,
        *,
        spire: SpireFacts | None = None,
        hardware: HardwareAppraisal | None = None,
    ) -> None:
        self.settings = settings
        self._spire = spire or NoSpire()
        self._hardware = hardware or NoHardware()

    def appraise_stream(
        self,
        facts: StreamFacts,
        hello_bytes: bytes,
        *,
        stream_id: bytes,
        known: Snapshots,
        now: Moment,
    ) -> StreamState | Refused:
        """Steps 1 to 10; `stream_id` is 16 fresh random bytes.

        Returns the state of a stream that may be challenged, or the refusal that ends it.
        """
        peered = self._peer(facts, known, now)
        if isinstance(peered, Refusal):
            return refused(peered, None)
        who, proof = peered
        node = peer.node_name(who, self.settings.path_prefix)
        if isinstance(node, Refusal):
            return refused(node, None)
        found = standing.node_standing(self._spire, who, node, known, now.boottime_ns)
        if isinstance(found, Refusal):
            return refused(found, node)
        greeting = hello.read_hello(hello_bytes, node)
        if isinstance(greeting, Refusal):
            return refused(greeting, node)
        record = known.enrollment.records.get(node)
        return StreamState(
            stream_id=stream_id.hex(),
            node=node,
            peer=who,
            chain=facts.chain,
            leaf=parse_chain(facts.chain)[0],
            leaf_sha256=sha256_hex(facts.chain[0]),
            hello=greeting,
            hello_sha256=sha256_hex(hello_bytes),
            proof=proof,
            superseded_at_open=hello.superseded(record, greeting.instance_id),
            witnessed=greeting.checkpoints,
        )

    def appraise_message(
        self,
        stream: StreamState,
        message: ReceivedMessage,
        issued: IssuedChallenge | Refusal,
        *,
        known: Snapshots,
        now: Moment,
    ) -> Accepted | BadNewsAccepted | Refused:
        """Steps 4 to 18; `issued` is what popping the message's challenge gave.

        May be asked again about the same message with newer snapshots.
        """
        arrival = Arrival(stream, message, issued, known, now)
        found = still_welcome(arrival, self._spire)
        if isinstance(found, Refusal):
            return refused(found, stream.node)
        opened = open_message(arrival, self.settings)
        if isinstance(opened, Refusal):
            return refused(opened, stream.node)
        match opened.payload:
            case BadNews() as news:
                return BadNewsAccepted(stream.node, opened.stream, news, opened.digest)
            case Unreadable(error=error):
                return unreadable(opened, Refusal(ReasonCode.INVENTORY_INVALID, error))
            case evidence:
                judge = Judge(
                    self.settings, self._hardware, known, opened.issued, found, now.boottime_ns
                )
                return judge.judge(opened, evidence)

    def _peer(
        self, facts: StreamFacts, known: Snapshots, now: Moment
    ) -> tuple[SpiffeId, ChainProof] | Refusal:
        """Steps 1 to 4."""
        bounds = self.settings.limits
        if refusal := peer.limits(facts, bounds) or peer.tls(facts):
            return refusal
        who = peer.identity(facts, self.settings.trust_domain)
        if isinstance(who, Refusal):
            return who
        proof = peer.chain(facts.chain, known.roots, now.wall)
        return proof if isinstance(proof, Refusal) else (who, proof)
