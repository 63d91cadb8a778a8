"""A challenge is drawn, signed and shown with the SVID of now."""

import itertools

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from controller.rpc.challenges import Challenger, NoSvidError
from controller.verifier.challenge import ID_BYTES, NONCE_BYTES
from gpuwarden.evidence.envelope import verify
from gpuwarden.evidence.model import TYPE_CHALLENGE, Challenge
from gpuwarden.evidence.strict_json import decode
from gpuwarden.identity.svid import Svid
from gpuwarden.wire.v1 import attestation_pb2 as pb
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.evidence import Scene
from tests.builders.svids import FakeSvidSource

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
    ("nodes", "want"), [({SCENE.node}, ("inventory", "pods")), (set(), ("inventory",))]
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
