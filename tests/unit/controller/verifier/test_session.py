from dataclasses import replace
from datetime import timedelta

import pytest

from controller.fleet.attestation_result import Refused, StreamState
from controller.fleet.enrollment import EnrollmentRecord, QuarantineEntry
from controller.verifier.context import Limits, VerifierSettings
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.model import ZERO_DIGEST
from gpuwarden.reasons import Effect, ReasonCode
from tests.builders.ca import SpiffeCa
from tests.builders.defects import OTHER_INSTANCE
from tests.builders.evidence import INSTANCE, NODE, SETTINGS, WALL, Scene, agent_uri, with_fields

CA = SpiffeCa(at=WALL)


def refusal_of(scene: Scene) -> Refused:
    result = scene.open()
    assert isinstance(result, Refused), result
    return result


def test_an_admitted_stream_is_fixed_to_its_session() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    assert stream.node == NODE
    assert str(stream.peer) == agent_uri()
    assert stream.leaf == scene.chain[0]
    assert stream.leaf_sha256 == sha256_hex(stream.chain[0])
    assert stream.hello == scene.hello_document()
    assert stream.hello_sha256 == sha256_hex(canonical_json(scene.hello_document()))
    assert (stream.seq, stream.prev, stream.boottime_ms) == (0, ZERO_DIGEST, None)
    assert not stream.superseded_at_open


def test_a_chain_with_an_intermediate_is_followed() -> None:
    scene = Scene(ca=SpiffeCa(at=WALL, intermediate=True))
    stream = scene.opened()
    assert len(stream.chain) > 1
    assert stream.leaf == scene.chain[0]
    assert stream.leaf_sha256 == sha256_hex(stream.chain[0])


@pytest.mark.parametrize(
    ("facts", "admitted"),
    [
        ({"open_streams": 19_999}, True),
        ({"open_streams": 20_000}, False),
        ({"peer_streams": 7}, True),
        ({"peer_streams": 8}, False),
    ],
)
def test_limits_are_exact(facts: dict[str, int], admitted: bool) -> None:
    result = Scene(ca=CA, facts=facts).open()
    assert isinstance(result, StreamState) is admitted


@pytest.mark.parametrize("limits", [Limits(streams=1), Limits(streams_per_peer=1)])
def test_a_stream_does_not_count_itself(limits: Limits) -> None:
    scene = Scene(ca=CA, settings=replace(SETTINGS, limits=limits))
    assert isinstance(scene.open(), StreamState)
    none = replace(limits, streams=limits.streams - 1, streams_per_peer=limits.streams_per_peer - 1)
    scene.settings = replace(SETTINGS, limits=none)
    refused = refusal_of(scene)
    assert (refused.code, refused.evidence_digest) == (ReasonCode.LIMIT_STREAMS, "")


def test_times_are_those_of_the_protocol() -> None:
    settings = VerifierSettings("example.org", "lab")
    assert settings.interval_ns == 25_000_000_000
    assert settings.lease_ns == 90_000_000_000
    assert settings.challenge_ttl_ns == 15_000_000_000


def test_the_certificate_counts_to_its_last_moment() -> None:
    scene = Scene(ca=CA)
    scene.wall = scene.chain[0].not_valid_after_utc
    assert isinstance(scene.open(), StreamState)
    scene.wall += timedelta(seconds=1)
    assert refusal_of(scene).code is ReasonCode.SVID_EXPIRED


def test_a_refusal_names_no_node_before_step_5_has_found_one() -> None:
    assert refusal_of(Scene(ca=CA, facts={"resumed": True})).node is None
    scene = Scene(ca=CA)
    scene.identify("spiffe://example.org/gpuwarden/operator/gpu-1")
    assert refusal_of(scene).node is None
    assert refusal_of(Scene(ca=CA, hello={"protocol": 9})).node == NODE


def test_another_path_prefix_is_another_role() -> None:
    scene = Scene(ca=CA)
    scene.settings = replace(scene.settings, path_prefix="/team/gpuwarden")
    assert refusal_of(scene).code is ReasonCode.PEER_ROLE_UNKNOWN
    scene.identify("spiffe://example.org/team/gpuwarden/agent/gpu-1")
    assert isinstance(scene.open(), StreamState)


def test_a_later_protocol_is_named_whatever_else_its_hello_holds() -> None:
    scene = Scene(ca=CA)
    later = with_fields(canonical_json(scene.hello_document()), {"protocol": 2, "news": [1]})
    scene.hello_bytes = later
    assert refusal_of(scene).code is ReasonCode.PROTOCOL_UNSUPPORTED


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[]",
        b"\xff",
        b'{"protocol":1,"protocol":1}',
        b'{"protocol":1}',
        b'{"protocol":"1"}',
    ],
)
def test_a_hello_that_is_no_document_is_malformed(data: bytes) -> None:
    refused = refusal_of(Scene(ca=CA, hello_bytes=data))
    assert (refused.code, refused.effect) == (ReasonCode.MSG_MALFORMED, Effect.TRANSIENT)


def test_an_unknown_field_of_our_protocol_is_malformed() -> None:
    scene = Scene(ca=CA)
    scene.hello_bytes = with_fields(canonical_json(scene.hello_document()), {"x": 1})
    assert refusal_of(scene).code is ReasonCode.MSG_MALFORMED


@pytest.mark.parametrize(
    "hello",
    [
        {"instance_id": "A1" * 16},
        {"instance_id": "a1" * 15},
        {"boot_id": ""},
        {"boot_id": "b" * 129},
        {"agent_version": "0.1\n"},
    ],
)
def test_ids_of_a_hello_have_a_shape(hello: dict[str, str]) -> None:
    assert refusal_of(Scene(ca=CA, hello=hello)).code is ReasonCode.MSG_MALFORMED


@pytest.mark.parametrize(
    ("field", "name"), [("boot_id", "bootId"), ("agent_version", "agentVersion")]
)
def test_what_has_no_shape_is_named(field: str, name: str) -> None:
    detail = refusal_of(Scene(ca=CA, hello={field: " "})).detail
    assert detail == f"Hello: {name} is not 1 to 128 printable ASCII characters"


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (65_536, ReasonCode.MSG_MALFORMED),
        (65_537, ReasonCode.MSG_TOO_LARGE),
    ],
)
def test_a_hello_has_a_size(size: int, code: ReasonCode) -> None:
    assert refusal_of(Scene(ca=CA, hello_bytes=b"{" + b" " * (size - 1))).code is code


def test_a_hello_from_another_node_is_refused() -> None:
    refused = refusal_of(Scene(ca=CA, hello={"node_name": "gpu-2"}))
    assert (refused.code, refused.node) == (ReasonCode.NODE_NAME_MISMATCH, NODE)


def test_a_superseded_process_may_say_hello_and_is_remembered_as_such() -> None:
    scene = Scene(ca=CA)
    record = EnrollmentRecord(NODE, instance=OTHER_INSTANCE, superseded=(INSTANCE,))
    scene.enrollment = scene.enrollment.with_record(record)
    assert scene.opened().superseded_at_open


@pytest.mark.parametrize(("actor", "who"), [("controller", "the controller"), ("op\n", "op\\n")])
def test_a_denial_says_who_and_why(actor: str, who: str) -> None:
    scene = Scene(ca=CA)
    record = EnrollmentRecord(NODE, denial=QuarantineEntry("X", "why " + "y" * 300, actor, 0))
    scene.enrollment = scene.enrollment.with_record(record)
    refused = refusal_of(scene)
    assert refused.code is ReasonCode.NODE_DENIED
    assert refused.detail == f"quarantined by {who}: X why {'y' * 193}..."


def test_hostile_text_is_escaped_in_details() -> None:
    scene = Scene(ca=CA, hello={"node_name": "x\n\x1b[31m" + "y" * 500})
    detail = refusal_of(scene).detail
    assert detail.isprintable()
    assert len(detail) < 200
