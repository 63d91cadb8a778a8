"""Evidence that is kept proves itself later, and nothing else does."""

from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.audit.archived_evidence import (
    ArchivedEvidenceError,
    StoredEvidence,
    bundle_digest,
    read_archived_evidence,
    reverify,
)
from gpuwarden.evidence.canonical import canonical_json
from tests.builders.archived_evidence import archived_evidence
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import WALL, Scene, agent_uri

SCENE = Scene()
GOOD = archived_evidence(SCENE)
OTHER = SpiffeCa(at=WALL)


def test_what_is_kept_comes_back_and_was_valid_then() -> None:
    again = read_archived_evidence(GOOD.encoded())
    assert again == GOOD
    assert msgspec.json.decode(GOOD.encoded())["v"] == "gpuwarden.dev/evidence/v1"
    assert (again.digest, again.bundle) == (GOOD.digest, bundle_digest(SCENE.roots))
    assert reverify(again, GOOD.digest, WALL) == agent_uri()
    assert reverify(again, GOOD.digest, WALL, SCENE.roots) == agent_uri()


def test_the_digest_of_a_bundle_knows_no_order() -> None:
    roots = (*SCENE.roots, *OTHER.roots)
    assert bundle_digest(roots) == bundle_digest(roots[::-1]) != bundle_digest(SCENE.roots)


def test_the_digest_of_a_bundle_is_that_of_the_sorted_digests_of_its_roots() -> None:
    roots = (*SCENE.roots, *OTHER.roots)
    digests = sorted(sha256(x.public_bytes(Encoding.DER)).hexdigest() for x in roots)
    text = f"{digests[0]}\n{digests[1]}\n"
    assert bundle_digest(roots) == sha256(text.encode()).hexdigest()


def test_the_leaf_of_a_longer_chain_is_the_signer() -> None:
    scene = Scene(ca=SpiffeCa(at=WALL, intermediate=True))
    kept = archived_evidence(scene)
    assert len(kept.chain) > 1
    assert reverify(kept, kept.digest, WALL) == agent_uri()


def test_it_is_judged_by_the_time_it_came() -> None:
    for days, code in ((400, "SVID_EXPIRED"), (-400, "SVID_NOT_YET_VALID")):
        with pytest.raises(ArchivedEvidenceError, match=code):
            reverify(GOOD, GOOD.digest, WALL + timedelta(days=days))


def test_no_change_of_it_passes() -> None:
    own_chain = OTHER.issue(agent_uri())[1]
    encoded = tuple(x.public_bytes(Encoding.DER) for x in own_chain)
    for changed, expected in (
        (replace(GOOD, payload=GOOD.payload.replace(b"gpu", b"GPU", 1)), "has the digest"),
        (replace(GOOD, payload_type="other"), "has the digest"),
        (
            replace(GOOD, signature=GOOD.signature[:-1] + bytes([GOOD.signature[-1] ^ 1])),
            "does not verify",
        ),
        (replace(GOOD, roots=OTHER.roots), "CHAIN_INVALID"),
        (replace(GOOD, chain=encoded), "CHAIN_INVALID"),
        (replace(GOOD, chain=encoded, roots=OTHER.roots), "does not verify"),
        (replace(GOOD, chain=()), "CHAIN_INVALID"),
    ):
        with pytest.raises(ArchivedEvidenceError, match=expected):
            reverify(changed, GOOD.digest, WALL)
    with pytest.raises(ArchivedEvidenceError, match="CHAIN_INVALID"):
        reverify(GOOD, GOOD.digest, WALL, OTHER.roots)


@pytest.mark.parametrize(
    "changes",
    [
        {"v": "other"},
        {"payload": "!"},
        {"roots": ("AAAA",)},
        {"roots": (b64encode(b"junk").decode(),)},
        {"received_ms": "soon"},
    ],
)
def test_what_is_no_stored_evidence_is_refused(changes: dict[str, object]) -> None:
    stored = msgspec.json.decode(GOOD.encoded(), type=StoredEvidence)
    file = canonical_json(msgspec.structs.replace(stored, **changes))
    with pytest.raises(ArchivedEvidenceError):
        read_archived_evidence(file)
    with pytest.raises(ArchivedEvidenceError, match="not stored evidence"):
        read_archived_evidence(b"{}")


def test_the_size_of_stored_evidence_is_bounded() -> None:
    with pytest.raises(ArchivedEvidenceError, match="at most 33554432"):
        read_archived_evidence(b" " * ((32 << 20) + 1))
