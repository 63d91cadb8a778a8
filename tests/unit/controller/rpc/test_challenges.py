import itertools
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from controller.audit.checkpoints import Published
from controller.audit.log import DurableLog
from controller.fleet.attestation_result import StreamState
from controller.rpc.challenges import AuditHeads, Challenger, NoSvidError
from controller.verifier.challenge import ID_BYTES, NONCE_BYTES
from gpuwarden.audit.checkpoint import sign_change
from gpuwarden.audit.witness import conclude
from gpuwarden.evidence.envelope import verify
from gpuwarden.evidence.model import TYPE_CHALLENGE, Challenge, WitnessedCheckpoint
from gpuwarden.evidence.strict_json import decode
from gpuwarden.identity.svid import Svid
from gpuwarden.wire.v1 import attestation_pb2 as pb
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.evidence import Scene
from tests.builders.grown_log import GrownLog
from tests.builders.log_keys import ORIGIN, signer
from tests.builders.svids import FakeSvidSource

# --- A challenge is drawn, signed and shown with the SVID of now

SCENE = Scene()
ID = f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"


def signed_by(message: pb.AttestResponse, svid: Svid) -> bool:
    challenge = message.challenge
    verify(svid.leaf, TYPE_CHALLENGE, challenge.envelope.payload, challenge.envelope.signature)
    return list(challenge.certificate_chain) == [x.public_bytes(Encoding.DER) for x in svid.chain]


def test_id_and_both_nonces_are_drawn_and_share_no_byte() -> None:
    count = itertools.count()

    def draw(size: int) -> bytes:
        return bytes(next(count) for _ in range(size))

    source = FakeSvidSource(SCENE.ca.svid(ID))
    challenger = Challenger(SCENE.settings, source, draw=draw)
    _, issued = challenger.challenge(SCENE.opened(), SCENE.now, 1)
    drawn = bytes.fromhex(issued.challenge_id + issued.nonce + issued.spare_nonce)
    assert drawn == bytes(range(ID_BYTES + 2 * NONCE_BYTES))
    assert len(issued.challenge_id) == 2 * ID_BYTES
    assert len(issued.nonce) == len(issued.spare_nonce) == 2 * NONCE_BYTES


def test_the_chain_changes_with_the_svid() -> None:
    old, new = SCENE.ca.svid(ID), SCENE.ca.svid(ID)
    source = FakeSvidSource(old)
    challenger, stream = Challenger(SCENE.settings, source), SCENE.opened()
    first, _ = challenger.challenge(stream, SCENE.now, 1)
    source.svid = new
    second, _ = challenger.challenge(stream, SCENE.now, 1)
    source.svid = old
    third, _ = challenger.challenge(stream, SCENE.now, 1)
    assert signed_by(first, old)
    assert signed_by(second, new)
    assert signed_by(third, old)


def test_without_an_svid_there_is_no_challenge() -> None:
    challenger = Challenger(SCENE.settings, FakeSvidSource(None))
    with pytest.raises(NoSvidError):
        challenger.challenge(SCENE.opened(), SCENE.now, 1)


@pytest.mark.parametrize(
    ("nodes", "want"),
    [({SCENE.node}, ("inventory", "pods", "failures")), (set(), ("inventory", "failures"))],
)
def test_pods_are_wanted_of_nodes_on_which_they_matter(
    nodes: set[str], want: tuple[str, ...]
) -> None:
    source = FakeSvidSource(SCENE.ca.svid(ID))
    challenger = Challenger(SCENE.settings, source, wants_pods=nodes.__contains__)
    message, issued = challenger.challenge(SCENE.opened(), SCENE.now, 1)
    payload = message.challenge.envelope.payload
    document = decode(payload, Challenge, max_bytes=len(payload))
    assert issued.want == document.want == want


# --- Which checkpoint and which proof a challenge brings, by what the agent says it knows

LOG = GrownLog(9)


class CertifiedLog(DurableLog):
    def __init__(self, shown: Published | None) -> None:
        self.shown = shown
        self.wanted: list[int] = []

    @property
    def published(self) -> Published | None:
        return self.shown

    def want_proof(self, size: int) -> None:
        self.wanted.append(size)


def published(log: GrownLog = LOG, **changes: Any) -> Published:
    proofs = {size: log.shown(size).proof for size in (4, 9)}
    good = Published(
        note=log.note(),
        head=log.head(),
        log=log.log,
        key=str(log.signer.key),
        key_changes=log.key_changes,
        proofs=proofs,
        unprovable=frozenset({5}),
    )
    return replace(good, **changes)


def stream(note: str | None = None, origin: str = ORIGIN) -> StreamState:
    known = () if note is None else (WitnessedCheckpoint(origin=origin, checkpoint=note),)
    state = Scene(hello={"checkpoints": known}).open()
    assert isinstance(state, StreamState)
    return state


def test_an_agent_that_knows_nothing_is_shown_the_last_checkpoint() -> None:
    for agent in (stream(), stream("junk"), stream(LOG.note(4), origin="lab/other")):
        head = AuditHeads(CertifiedLog(published()), ORIGIN)(agent)
        assert head is not None
        assert (head.checkpoint, head.consistency_proof) == (LOG.note(), ())
        assert head.log_key == str(signer().key)


@pytest.mark.parametrize("size", [4, 9])
def test_a_proof_leads_from_what_the_agent_knows(size: int) -> None:
    log = CertifiedLog(published())
    head = AuditHeads(log, ORIGIN)(stream(LOG.note(size)))
    assert head is not None
    assert head.consistency_proof == LOG.shown(size).proof
    known, _ = conclude(None, LOG.shown(size=size))
    assert conclude(known, LOG.shown(size))[1] is None
    assert log.wanted == []


def test_a_proof_that_is_not_ready_is_asked_for() -> None:
    log = CertifiedLog(published())
    assert AuditHeads(log, ORIGIN)(stream(LOG.note(3))) is None
    assert log.wanted == [3]


def test_what_a_former_key_signed_is_asked_for_too() -> None:
    old, new = signer(1), signer(2)
    log = CertifiedLog(published(GrownLog(9, signer=new, key_changes=(sign_change(old, new),))))
    assert AuditHeads(log, ORIGIN)(stream(LOG.note(3))) is None
    assert log.wanted == [3]


@pytest.mark.parametrize(
    "note",
    [
        GrownLog(12).note(),  # beyond the log: it was cut back
        GrownLog(9, fork=0).note(3),  # of another log
        GrownLog(9, signer=signer(3)).note(3),  # signed by nobody we know
        LOG.note(5),  # before what can be proven
    ],
)
def test_where_there_is_no_proof_the_agent_sees_that(note: str) -> None:
    log = CertifiedLog(published())
    head = AuditHeads(log, ORIGIN)(stream(note))
    assert head is not None
    assert (head.checkpoint, head.consistency_proof) == (LOG.note(), ())
    assert log.wanted == []


def test_without_a_checkpoint_nothing_is_said() -> None:
    assert AuditHeads(CertifiedLog(None), ORIGIN)(stream(LOG.note(4))) is None


def test_what_an_agent_knows_is_what_it_last_signed() -> None:
    known = WitnessedCheckpoint(origin=ORIGIN, checkpoint=LOG.note(9))
    accepted = Scene(evidence={"checkpoints": (known,)}).accepted()
    assert accepted.stream.witnessed == (known,)
    news = Scene(failure_notice=True, hello={"checkpoints": (known,)}).run()
    assert news.stream is not None
    assert news.stream.witnessed == (known,)
