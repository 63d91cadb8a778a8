"""The order of verification. The first step that fails gives the one reason code.

Steps 1 to 10 admit a stream; steps 4 to 18 are taken for each message.

 1. Limits, `session.check_limits`: LIMIT_STREAMS, LIMIT_RATE
 2. TLS, `session.check_tls`: TLS_NO_CLIENT_CERT, TLS_RESUMED
 3. SPIFFE ID, `session.peer_identity`: PEER_ID_INVALID, PEER_FOREIGN_DOMAIN
 4. Certificate chain, `session.check_chain`: CHAIN_INVALID, SVID_EXPIRED, SVID_NOT_YET_VALID
 5. Node name, `session.node_name`: PEER_ROLE_UNKNOWN, NODE_NAME_INVALID
 6. Known node, `session.known_node`: ENROLLMENT_STALE, DIRECTORY_STALE, NODE_UNKNOWN, NODE_DENIED
 7. Registration entries, `SpireFacts.entry`: SPIRE_ENTRY_NOT_FOUND, SPIRE_ENTRY_AMBIGUOUS,
    SPIRE_ENTRY_WEAK, SPIRE_ENTRY_PRIVILEGED, SPIRE_PARENT_INVALID
 8. SPIRE agent, `SpireFacts.agent`: SPIRE_AGENT_NOT_FOUND, SPIRE_AGENT_BANNED,
    SPIRE_AGENT_EXPIRED, SPIRE_ATTESTOR_DENIED, SPIRE_NODE_MISMATCH
 9. Agent image and age of the SPIRE facts, `SpireFacts.image`: AGENT_IMAGE_DENIED,
    SPIRE_UNAVAILABLE, SPIRE_STATUS_STALE
10. Protocol and process, `session.read_hello`, `session.check_superseded`,
    `session.check_duplicate`: PROTOCOL_UNSUPPORTED, STREAM_SUPERSEDED, DUPLICATE_AGENT
11. Shape of the message, `message.check_shape`: MSG_TOO_LARGE, MSG_MALFORMED, TYPE_UNEXPECTED
12. Challenge, `challenge.ChallengeStore.pop`: CHALLENGE_UNKNOWN, CHALLENGE_EXPIRED,
    NONCE_REUSED, NONCE_MISMATCH, STREAM_MISMATCH
13. Signature, `message.check_signature`: SIGNER_MISMATCH, SIG_ALG_DENIED, SIG_INVALID
14. Binding of the payload, `message.check_binding`: AUDIENCE_MISMATCH, NODE_NAME_MISMATCH,
    INNER_NONCE_MISMATCH, CHALLENGE_DIGEST_MISMATCH
15. Sequence and clocks, `message.check_sequence`: SEQ_REPLAY, SEQ_GAP, PREV_MISMATCH,
    BOOT_CHANGED, CLOCK_BACKWARDS, CLOCK_SKEW
16. Inventory, `inventory.inventory_refusals`: INVENTORY_INVALID, INVENTORY_MADE_UP,
    INVENTORY_INCOMPLETE, INVENTORY_EMPTY, GPU_DENIED, GPU_CLAIMED_TWICE, NODE_UID_CHANGED,
    SYSTEM_UUID_CHANGED, INVENTORY_NOT_ENROLLED, INVENTORY_CHANGED
17. Hardware reports, `context.HardwareAppraisal`: HW_MISSING, HW_STALE, HW_CHAIN_INVALID,
    HW_REVOKED, HW_NONCE_MISMATCH, HW_SIG_INVALID, HW_FWID_MISMATCH, HW_VERSION_MISMATCH,
    HW_IDENTITY_CHANGED, HW_DEVTOOLS, HW_MEASUREMENT_DENIED
18. Policy, `appraisal.policy_refusals`: POLICY_DENIED, LEVEL_TOO_LOW, CLASS_NOT_ALLOWED
19. Audit record, `rpc.intake`: AUDIT_UNAVAILABLE, ACCEPTED
20. Swap of the node's record, `fleet.registry.FleetRegistry.accept`

Three checks are made where their proof is complete rather than where their number is. A malformed
time is part of a payload's shape (11). Only a signed answer proves that a superseded process lives
(10), so that is checked after step 15. Hello names its node as well (14).
"""

from controller.fleet.attestation_result import (
    Accepted,
    FailureNoticeAccepted,
    Refused,
    StreamState,
    refused,
)
from controller.verifier import session
from controller.verifier.appraisal import Appraiser, unreadable
from controller.verifier.challenge import IssuedChallenge
from controller.verifier.context import (
    HardwareAppraisal,
    NoSpire,
    ReceivedMessage,
    Snapshots,
    SpireFacts,
    StreamFacts,
    VerifierSettings,
    no_hardware,
)
from controller.verifier.message import (
    Arrival,
    Unreadable,
    failures_in,
    open_message,
    recheck_session,
)
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.evidence.model import FailureNotice, FailureNotices
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
        hardware: HardwareAppraisal = no_hardware,
    ) -> None:
        self.settings = settings
        self._spire = spire or NoSpire()
        self._hardware = hardware

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
        node = session.node_name(who, self.settings.path_prefix)
        if isinstance(node, Refusal):
            return refused(node, None)
        found = session.node_standing(self._spire, who, node, known, now.boottime_ns)
        if isinstance(found, Refusal):
            return refused(found, node)
        greeting = session.read_hello(hello_bytes, node)
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
            superseded_at_open=session.superseded(record, greeting.instance_id),
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
    ) -> Accepted | FailureNoticeAccepted | Refused:
        """Steps 4 to 18; `issued` is what popping the message's challenge gave.

        May be asked again about the same message with newer snapshots.
        """
        arrival = Arrival(stream, message, issued, known, now)
        found = recheck_session(arrival, self._spire)
        if isinstance(found, Refusal):
            return refused(found, stream.node)
        opened = open_message(arrival, self.settings)
        if isinstance(opened, Refusal):
            return refused(opened, stream.node)
        match opened.payload:
            case FailureNotice() | FailureNotices() as news:
                failures = failures_in(news)
                return FailureNoticeAccepted(stream.node, opened.stream, failures, opened.digest)
            case Unreadable(error=error):
                return unreadable(opened, Refusal(ReasonCode.INVENTORY_INVALID, error))
            case evidence:
                appraiser = Appraiser(
                    self.settings, self._hardware, known, opened.issued, found, now.boottime_ns
                )
                return appraiser.appraise(opened, evidence)

    def _peer(
        self, facts: StreamFacts, known: Snapshots, now: Moment
    ) -> tuple[SpiffeId, ChainProof] | Refusal:
        """Steps 1 to 4."""
        limits = self.settings.limits
        if refusal := session.check_limits(facts, limits) or session.check_tls(facts):
            return refusal
        who = session.peer_identity(facts, self.settings.trust_domain)
        if isinstance(who, Refusal):
            return who
        proof = session.check_chain(facts.chain, known.roots, now.wall)
        return proof if isinstance(proof, Refusal) else (who, proof)
