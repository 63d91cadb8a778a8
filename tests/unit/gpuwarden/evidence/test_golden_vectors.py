"""The golden vectors: still what the code makes, and true when read as another party would."""

import json
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.class_document import (
    attestation_hash,
    class_document,
    decode_class_document,
)
from gpuwarden.evidence.envelope import (
    AlgorithmDeniedError,
    SignatureInvalidError,
    evidence_digest,
    pae,
    verify,
)
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import (
    TYPE_CHALLENGE,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    ZERO_DIGEST,
    Challenge,
    Evidence,
    EvidenceWithPods,
    FailureNotice,
    FailureNotices,
    Hello,
    Inventory,
)
from gpuwarden.evidence.node_identity import (
    decode_node_identity,
    identity_digest,
    node_identity,
)
from gpuwarden.evidence.strict_json import DecodeError, decode, parse
from tests.golden.generate import FOLDER, VECTORS, text


def stored(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def named(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_made_again_bit_for_bit(name: str) -> None:
    assert (FOLDER / name).read_text() == text(VECTORS[name]())


@pytest.mark.parametrize("vector", named(stored("canonical.json")["accepted"]))
def test_canonical_json(vector: dict[str, Any]) -> None:
    value = parse(vector["input"].encode(), max_bytes=1000)
    form = canonical_json(value)  # type: ignore[arg-type] # parse gives plain JSON values only
    assert form.decode() == vector["canonical"]
    assert sha256_hex(form) == vector["sha256"]


@pytest.mark.parametrize("vector", named(stored("canonical.json")["refused"]))
def test_refused_json(vector: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        parse(vector["input"].encode(), max_bytes=1000)


@pytest.mark.parametrize("vector", named(stored("class_documents.json")))
def test_class_documents(vector: dict[str, Any]) -> None:
    inventory = msgspec.convert(vector["inventory"], Inventory)
    context = vector["context"]
    document = class_document(
        inventory,
        level=context["level"],
        trust_domain=context["trustDomain"],
        attestor=context["attestor"],
        spdm=context["spdm"],
        tpm=context["tpm"],
    )
    assert inventory_findings(inventory) == ()
    assert document == decode_class_document(vector["document"].encode())
    assert attestation_hash(document) == vector["hash"]


@pytest.mark.parametrize("vector", named(stored("node_identities.json")))
def test_node_identities(vector: dict[str, Any]) -> None:
    context = vector["context"]
    identity = node_identity(
        msgspec.convert(vector["inventory"], Inventory),
        trust_domain=context["trustDomain"],
        cluster=context["cluster"],
        node_name=context["nodeName"],
        node_uid=context["nodeUid"],
        spire_agent=context["spireAgent"],
        ek=context["ek"],
        identity_keys=context["identityKeys"],
    )
    assert identity == decode_node_identity(vector["document"].encode())
    assert identity_digest(identity) == vector["digest"]


@pytest.mark.parametrize("vector", stored("envelopes.json")["pae"])
def test_pre_authentication_encoding(vector: dict[str, Any]) -> None:
    kind, payload = vector["payloadType"], bytes.fromhex(vector["payloadHex"])
    assert pae(kind, payload).hex() == vector["paeHex"]
    assert evidence_digest(kind, payload) == vector["digest"]


def test_the_encoding_is_that_of_dsse() -> None:
    encoded = bytes.fromhex(stored("envelopes.json")["pae"][0]["paeHex"])
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def verify_vector(vector: dict[str, Any]) -> None:
    verify(
        x509.load_pem_x509_certificate(vector["certificate"].encode()),
        vector["payloadType"],
        bytes.fromhex(vector["payloadHex"]),
        bytes.fromhex(vector["signatureHex"]),
    )


@pytest.mark.parametrize(
    "vector", named([*stored("envelopes.json")["signed"], *stored("rsa.json")["signed"]])
)
def test_signed_envelopes(vector: dict[str, Any]) -> None:
    verify_vector(vector)


@pytest.mark.parametrize("vector", named(stored("envelopes.json")["refused"]))
def test_refused_envelopes(vector: dict[str, Any]) -> None:
    with pytest.raises((SignatureInvalidError, AlgorithmDeniedError)):
        verify_vector(vector)


TYPES: dict[str, type[Challenge | Evidence | FailureNotice | FailureNotices]] = {
    TYPE_CHALLENGE: Challenge,
    TYPE_EVIDENCE: Evidence,
    TYPE_EVIDENCE_WITH_PODS: EvidenceWithPods,
    TYPE_FAILURE_NOTICE: FailureNotice,
    TYPE_FAILURES: FailureNotices,
}


def test_the_transcript_holds_together() -> None:
    whole = stored("transcript.json")
    decode(whole["hello"]["document"].encode(), Hello, max_bytes=10_000)
    certificates = {
        party: x509.load_pem_x509_certificate(whole[party]["certificate"].encode())
        for party in ("agent", "controller")
    }
    leaf = sha256_hex(certificates["agent"].public_bytes(Encoding.DER))
    assert leaf == whole["agent"]["leafSha256"]
    prev, seq, challenge, challenge_sha256 = ZERO_DIGEST, 0, None, ""
    for message in whole["messages"]:
        kind, payload = message["payloadType"], message["payload"].encode()
        verify(certificates[message["from"]], kind, payload, bytes.fromhex(message["signatureHex"]))
        document = decode(payload, TYPES[kind], max_bytes=100_000)
        assert canonical_json(document) == payload
        if isinstance(document, Challenge):
            assert document.hello_sha256 == whole["hello"]["sha256"]
            assert document.leaf_sha256 == leaf
            challenge, challenge_sha256 = document, message["payloadSha256"]
            assert challenge_sha256 == sha256_hex(payload)
            continue
        assert challenge is not None
        assert isinstance(document, Evidence | FailureNotice | FailureNotices)
        spare = not isinstance(document, Evidence)
        assert document.nonce == (challenge.spare_nonce if spare else challenge.nonce)
        assert document.challenge_id == challenge.challenge_id
        assert document.challenge_sha256 == challenge_sha256
        assert (document.seq, document.prev) == (seq + 1, prev)
        seq, prev = document.seq, message["evidenceDigest"]
        assert prev == evidence_digest(kind, payload)
    assert seq == 5
    assert {x["payloadType"] for x in whole["messages"]} == set(TYPES)
