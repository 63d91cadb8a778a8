import re
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import combinations

import msgspec
import pytest

from controller.fleet.attestation_result import (
    Accepted,
    FailureNoticeAccepted,
    Refused,
    StreamState,
)
from controller.fleet.enrollment import EnrollmentRecord, QuarantineEntry
from controller.verifier import verifier
from controller.verifier.session import check_chain
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.class_document import decode_class_document
from gpuwarden.evidence.envelope import MAX_SIGNATURE_BYTES, evidence_digest
from gpuwarden.evidence.model import (
    TYPE_EVIDENCE,
    TYPE_FAILURE_NOTICE,
    FailedRead,
    Failure,
    WitnessedCheckpoint,
)
from gpuwarden.evidence.node_identity import decode_node_identity
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode
from tests.builders.ca import SpiffeCa
from tests.builders.defects import DEFECTS, OTHER_INSTANCE, Defect, superseded
from tests.builders.evidence import (
    CLUSTER,
    INSTANCE,
    NODE,
    WALL,
    Result,
    Scene,
    failure,
    with_fields,
)
from tests.builders.inventory import gpu, gpu_uuid, inventory

CA = SpiffeCa(at=WALL)


def refused(result: Result) -> Refused:
    assert isinstance(result, Refused), result
    return result


def accepted(result: Result) -> Accepted:
    assert isinstance(result, Accepted), result
    return result


def test_acceptance_carries_what_was_proven() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    issued = scene.challenge(stream)
    message = scene.signed(stream, issued)
    result = accepted(scene.appraise(stream, message, issued))
    document = decode_class_document(result.class_document)
    identity = decode_node_identity(result.identity_document)
    assert (document.level, document.attestor, document.trust_domain) == ("L0", None, "example.org")
    assert (identity.cluster, identity.node.name, identity.node.uid) == (CLUSTER, NODE, "uid-1")
    assert [x.uuid for x in identity.gpus] == [gpu_uuid(1)]
    assert result.evidence_digest == evidence_digest(TYPE_EVIDENCE, message.payload)
    assert result.attestation_hash == (
        "v1:sha256:" + sha256_hex(b"gpuwarden.dev/class/v1\n" + result.class_document)
    )
    assert result.identity_digest == (
        "v1:sha256:" + sha256_hex(b"gpuwarden.dev/node-identity/v1\n" + result.identity_document)
    )
    assert result.fresh_until_ns == issued.issued_ns + 90 * NS_PER_S


def test_rounds_follow_each_other_by_sequence_and_digest() -> None:
    scene = Scene(ca=CA)
    first = accepted(scene.run())
    assert (first.stream.seq, first.stream.prev) == (1, first.evidence_digest)
    scene.remember(first)
    second = accepted(scene.answer(first.stream, 2))
    assert (second.stream.seq, second.stream.prev) == (2, second.evidence_digest)
    assert second.enrollment is None


def test_refused_but_authentic_evidence_counts_in_the_sequence() -> None:
    failed = FailedRead("driver", None, "SystemGetDriverVersion", "UNKNOWN")
    scene = Scene(ca=CA, evidence={"failed_reads": (failed,)})
    first = refused(scene.run())
    assert first.code is ReasonCode.INVENTORY_INCOMPLETE
    assert first.stream is not None
    assert first.evidence_digest == first.stream.prev
    scene.evidence = {}
    assert accepted(scene.answer(first.stream, 2)).stream.seq == 2


def test_replayed_evidence_of_the_same_stream_is_refused_by_its_nonce_alone() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    issued = scene.challenge(stream)
    message = scene.signed(stream, issued)
    after = accepted(scene.appraise(stream, message, issued)).stream
    scene.presented_before = True
    assert refused(scene.appraise(after, message, issued)).code is ReasonCode.NONCE_REUSED


def test_the_same_message_can_be_appraised_again_on_newer_snapshots() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    issued = scene.challenge(stream)
    message = scene.signed(stream, issued)
    first = accepted(scene.appraise(stream, message, issued))
    scene.remember(first)
    second = accepted(scene.appraise(stream, message, issued))
    assert second == replace(first, enrollment=None)


@pytest.mark.parametrize(("skew", "warns"), [(30, False), (31, True), (-31, True), (300, True)])
def test_a_clock_that_is_off_warns_before_it_refuses(skew: int, warns: bool) -> None:
    scene = Scene(ca=CA)
    scene.between.append(lambda s: _skew(s, skew))
    warnings = accepted(scene.run()).warnings
    assert bool(warnings) is warns
    if warns:
        side = "ahead of" if skew > 0 else "behind"
        assert warnings == (f"the node's clock is {abs(skew)} s {side} the controller's",)


@pytest.mark.parametrize("sign", [1, -1])
def test_skew_is_judged_to_the_millisecond(sign: int) -> None:
    for skew_ms, warns in ((30_000, False), (30_001, True), (300_000, True)):
        scene = Scene(ca=CA)
        scene.between.append(partial(_skew, seconds=sign * skew_ms / 1000))
        assert bool(accepted(scene.run()).warnings) is warns
    scene = Scene(ca=CA)
    scene.between.append(lambda s: _skew(s, sign * 300.001))
    assert refused(scene.run()).code is ReasonCode.CLOCK_SKEW


@pytest.mark.parametrize(("skew_ms", "side"), [(1, "ahead of"), (-1, "behind"), (999, "ahead of")])
def test_the_smallest_skew_has_a_side(skew_ms: int, side: str) -> None:
    scene = Scene(ca=CA)
    scene.settings = replace(scene.settings, skew_warn_ms=0)
    scene.between.append(lambda s: _skew(s, skew_ms / 1000))
    assert accepted(scene.run()).warnings == (f"the node's clock is 0 s {side} the controller's",)


def _skew(scene: Scene, seconds: float) -> None:
    wall = scene.wall + timedelta(seconds=seconds)
    scene.evidence["wall_ms"] = str(round(wall.timestamp() * 1000))


def test_boot_time_may_stand_still_but_not_go_back() -> None:
    scene = Scene(ca=CA, evidence={"boottime_ms": "1000"})
    first = accepted(scene.run())
    assert isinstance(scene.answer(first.stream, 2), Accepted)
    scene.evidence["boottime_ms"] = "999"
    assert refused(scene.answer(first.stream, 3)).code is ReasonCode.CLOCK_BACKWARDS


@pytest.mark.parametrize("time", ["-1", "1.5", "", "01", "1" * 20, "now"])
@pytest.mark.parametrize("field", ["wall_ms", "boottime_ms"])
def test_times_are_decimal_milliseconds(field: str, time: str) -> None:
    result = refused(Scene(ca=CA, evidence={field: time}).run())
    assert result.code is ReasonCode.MSG_MALFORMED


def test_a_node_may_have_booted_this_very_moment() -> None:
    assert accepted(Scene(ca=CA, evidence={"boottime_ms": "0"}).run()).stream.boottime_ms == 0


def test_a_payload_of_another_protocol_is_named_so() -> None:
    result = refused(Scene(ca=CA, evidence={"protocol": 2}).run())
    assert result.code is ReasonCode.PROTOCOL_UNSUPPORTED


def _payload(scene: Scene, stream: StreamState) -> bytes:
    return canonical_json(scene.document(stream, scene.challenge(stream)))


def test_authentic_bytes_without_an_inventory_are_an_invalid_inventory() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    scene.payload = with_fields(_payload(scene, stream), {"inventory": {"gpus": 8}})
    result = refused(scene.answer(stream))
    assert (result.code, result.effect) == (ReasonCode.INVENTORY_INVALID, Effect.REVOKE)
    assert result.stream is not None


def test_an_unknown_field_under_the_signature_is_an_invalid_inventory() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    scene.payload = with_fields(_payload(scene, stream), {"trusted": True})
    assert refused(scene.answer(stream)).code is ReasonCode.INVENTORY_INVALID


def test_an_invalid_inventory_does_not_hide_that_it_answers_something_else() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    scene.payload = with_fields(_payload(scene, stream), {"inventory": 1, "nodeName": "gpu-2"})
    assert refused(scene.answer(stream)).code is ReasonCode.NODE_NAME_MISMATCH


@pytest.mark.parametrize("payload", [b"no json", b"{}", b'{"seq":1,"seq":1}'])
def test_signed_rubbish_is_malformed(payload: bytes) -> None:
    assert refused(Scene(ca=CA, payload=payload).run()).code is ReasonCode.MSG_MALFORMED


def test_reports_make_messages_large_only_where_they_were_asked_for() -> None:
    largest = Scene(ca=CA, message={"payload": b"x" * 256 * 1024})
    assert refused(largest.run()).code is ReasonCode.SIG_INVALID
    large = b"x" * (256 * 1024 + 1)
    asked = Scene(ca=CA, message={"payload": large}, issued={"want": ("hardware-report",)})
    assert refused(asked.run()).code is ReasonCode.SIG_INVALID
    asked.message["payload"] = b"x" * (16 * 1024 * 1024)
    assert refused(asked.run()).code is ReasonCode.SIG_INVALID
    asked.message["payload"] = b"x" * (16 * 1024 * 1024 + 1)
    assert refused(asked.run()).code is ReasonCode.MSG_TOO_LARGE


@pytest.mark.parametrize("size", [1, MAX_SIGNATURE_BYTES])
def test_the_shortest_and_the_longest_signature_are_looked_at(size: int) -> None:
    scene = Scene(ca=CA, message={"signature": b"s" * size})
    assert refused(scene.run()).code is ReasonCode.SIG_INVALID


def test_the_shortest_payload_is_looked_at() -> None:
    assert refused(Scene(ca=CA, message={"payload": b"1"}).run()).code is ReasonCode.SIG_INVALID


def test_warnings_of_one_node_are_bounded() -> None:
    reads = tuple(FailedRead(f"fact{n}", None, "Call", "UNKNOWN") for n in range(40))
    warnings = accepted(Scene(ca=CA, evidence={"failed_reads": reads}).run()).warnings
    assert len(warnings) == 17
    assert warnings[-1] == "and 24 more"
    one_more = Scene(ca=CA, evidence={"failed_reads": reads[:17]})
    assert accepted(one_more.run()).warnings[-1] == "and 1 more"
    few = Scene(ca=CA, evidence={"failed_reads": reads[:16]})
    assert len(accepted(few.run()).warnings) == 16


def test_failed_reads_outside_class_and_identity_are_warnings() -> None:
    reads = (
        FailedRead("product", gpu_uuid(1), "DeviceGetName", "UNKNOWN"),
        FailedRead("cuda", None, "SystemGetCudaDriverVersion", "UNKNOWN"),
    )
    result = accepted(Scene(ca=CA, evidence={"failed_reads": reads}).run())
    assert result.warnings == ("not read: cuda", f"not read: product of {gpu_uuid(1)}")


@pytest.mark.parametrize("fact", ["pci", "subsystem"])
@pytest.mark.parametrize(
    ("place", "code"),
    [
        (gpu_uuid(1), None),
        (gpu(0).pci_bus_id, None),
        (gpu_uuid(2), ReasonCode.INVENTORY_INVALID),
    ],
)
def test_a_gpu_without_its_pci_identity_needs_a_failed_read_of_it(
    fact: str, place: str, code: ReasonCode | None
) -> None:
    read = FailedRead(fact, place, "DeviceGetPciInfo", "UNKNOWN")
    nameless = inventory(gpu(0, **{fact: None}), gpu(1))
    scene = Scene(ca=CA, evidence={"inventory": nameless, "failed_reads": (read,)})
    if code is None:
        [lost] = accepted(scene.run()).lost
        assert (lost.uuid, lost.error) == (gpu_uuid(1), f"{fact}: UNKNOWN")
    else:
        assert refused(scene.run()).code is code


def test_all_findings_stand_beside_the_first() -> None:
    scene = Scene(ca=CA, evidence={"inventory": inventory(gpu(0), gpu(1, vbios="odd"))})
    scene.policy = replace(
        scene.policy,
        denied_keys=frozenset({gpu_uuid(2)}),
        denied_drivers=frozenset({"570.86.10"}),
        denied_vbios=frozenset({"odd"}),
        allowed_hashes=frozenset(),
    )
    denied = refused(scene.run())
    assert [x.code for x in denied.findings] == [ReasonCode.GPU_DENIED]
    scene.policy = replace(scene.policy, denied_keys=frozenset())
    result = refused(scene.run())
    assert [x.code for x in result.findings] == [
        ReasonCode.POLICY_DENIED,
        ReasonCode.POLICY_DENIED,
        ReasonCode.CLASS_NOT_ALLOWED,
    ]


def test_allow_lists_let_pass_what_they_name() -> None:
    scene = Scene(ca=CA)
    name = scene.accepted().attestation_hash
    scene.policy = replace(
        scene.policy,
        allowed_hashes=frozenset({name}),
        allowed_drivers=frozenset({"570.86.10"}),
        allowed_vbios=frozenset({"96.00.74.00.11"}),
    )
    scene.accepted()


def test_an_unknown_version_passes_no_allow_list() -> None:
    scene = Scene(ca=CA, evidence={"inventory": inventory(gpu(vbios=None))})
    scene.policy = replace(scene.policy, allowed_vbios=frozenset({"96.00.74.00.11"}))
    assert refused(scene.run()).code is ReasonCode.POLICY_DENIED


class TestProcesses:
    """One process answers for a node, and the line of processes only moves forward."""

    def test_a_new_process_supersedes_the_old_one(self) -> None:
        scene = Scene(ca=CA)
        scene.remember(scene.accepted())
        scene.hello["instance_id"] = OTHER_INSTANCE
        change = scene.accepted().enrollment
        assert change is not None
        assert (change.new.instance, change.new.superseded) == (OTHER_INSTANCE, (INSTANCE,))

    def test_a_second_stream_of_the_same_process_supersedes_nobody(self) -> None:
        scene = Scene(ca=CA)
        scene.remember(scene.accepted())
        scene.stream_id = b"u" * 16
        assert scene.accepted().enrollment is None

    def test_the_old_process_ends_where_its_stream_is_still_open(self) -> None:
        scene = Scene(ca=CA)
        first = scene.accepted()
        scene.remember(first)
        superseded(scene)
        result = refused(scene.answer(first.stream, 2))
        assert (result.code, result.effect) == (ReasonCode.STREAM_SUPERSEDED, Effect.TRANSIENT)

    def test_that_a_node_is_denied_comes_before_that_its_process_was_superseded(self) -> None:
        scene = Scene(ca=CA)
        first = scene.accepted()
        scene.remember(first)
        superseded(scene)
        record = scene.enrollment.records[NODE]
        denied = replace(record, denial=QuarantineEntry("X", "thief", "operator", 0))
        scene.enrollment = scene.enrollment.with_record(denied)
        assert refused(scene.answer(first.stream, 2)).code is ReasonCode.NODE_DENIED

    def test_going_back_to_a_superseded_process_is_a_duplicate(self) -> None:
        scene = Scene(ca=CA)
        for instance in (INSTANCE, OTHER_INSTANCE):
            scene.hello["instance_id"] = instance
            scene.remember(scene.accepted())
        scene.hello["instance_id"] = INSTANCE
        result = refused(scene.run())
        assert (result.code, result.effect) == (ReasonCode.DUPLICATE_AGENT, Effect.QUARANTINE)

    def test_only_a_valid_answer_proves_a_duplicate(self) -> None:
        for code, defect in DEFECTS:
            if code in {ReasonCode.SIG_INVALID, ReasonCode.SEQ_GAP, ReasonCode.CHALLENGE_EXPIRED}:
                scene = Scene(ca=CA)
                superseded(scene)
                defect(scene)
                assert refused(scene.run()).code is code

    def test_an_operator_can_clear_it(self) -> None:
        scene = Scene(ca=CA)
        superseded(scene)
        scene.between.append(_without_superseded)
        change = scene.accepted().enrollment
        assert change is not None
        assert change.new.instance == INSTANCE


def _without_superseded(scene: Scene) -> None:
    scene.enrollment = scene.enrollment.with_record(EnrollmentRecord(NODE))


class TestBadNews:
    """Bound like evidence, but it can only take away."""

    def test_it_takes_its_place_in_the_sequence_and_no_lease(self) -> None:
        scene = Scene(ca=CA)
        first = scene.accepted()
        scene.failure_notice = True
        news = scene.answer(first.stream, 2)
        assert isinstance(news, FailureNoticeAccepted)
        [told] = news.failures
        assert (news.node, told.kind, told.xid, told.count) == (NODE, "xid", 79, 1)
        assert (news.stream.seq, news.stream.prev) == (2, news.evidence_digest)
        assert not hasattr(news, "fresh_until_ns")
        scene.failure_notice = False
        assert isinstance(scene.answer(news.stream, 3), Accepted)

    @pytest.mark.parametrize("kind", ["xid", "gpu-lost", "driver-reload", "nvml-unavailable"])
    def test_each_kind_is_heard(self, kind: str) -> None:
        result = Scene(ca=CA, failure_notice=True, evidence={"kind": kind}).run()
        assert isinstance(result, FailureNoticeAccepted)
        assert [x.kind for x in result.failures] == [kind]

    def test_one_notice_names_several_failures(self) -> None:
        failures = (failure(48, happened_ms=5), failure(94, happened_ms=7, count=60))
        scene = Scene(ca=CA, failure_notice=True, evidence={"failures": failures})
        result = scene.run()
        assert isinstance(result, FailureNoticeAccepted)
        assert result.failures == failures

    def test_several_failures_need_a_challenge_that_wants_them(self) -> None:
        scene = Scene(ca=CA, failure_notice=True, evidence={"failures": (failure(),)})
        scene.wants_failures = False
        assert refused(scene.run()).code is ReasonCode.TYPE_UNEXPECTED

    @pytest.mark.parametrize(
        "failures",
        [
            (),
            (failure(),) * 65,
            (failure(), failure(kind="good")),
            (failure(), failure(happened_ms=-1)),
        ],
    )
    def test_failures_that_nobody_understands_are_malformed(
        self, failures: tuple[Failure, ...]
    ) -> None:
        scene = Scene(ca=CA, failure_notice=True, evidence={"failures": failures})
        assert refused(scene.run()).code is ReasonCode.MSG_MALFORMED

    @pytest.mark.parametrize("changes", [{"failures": "48"}, {"extra": 1}])
    def test_a_notice_of_several_failures_in_another_form_is_malformed(
        self, changes: dict[str, object]
    ) -> None:
        scene = Scene(ca=CA, failure_notice=True, evidence={"failures": (failure(),)})
        stream = scene.opened()
        scene.payload = with_fields(_payload(scene, stream), changes)
        result = refused(scene.answer(stream))
        assert (result.code, result.effect) == (ReasonCode.MSG_MALFORMED, Effect.TRANSIENT)

    @pytest.mark.parametrize("count", [1, 64])
    def test_1_to_64_failures_are_taken_at_once(self, count: int) -> None:
        failures = (failure(),) * count
        scene = Scene(ca=CA, failure_notice=True, evidence={"failures": failures})
        assert isinstance(scene.run(), FailureNoticeAccepted)

    def test_the_payload_type_is_under_the_signature(self) -> None:
        scene = Scene(ca=CA, failure_notice=True)
        stream = scene.opened()
        issued = scene.challenge(stream)
        news = scene.signed(stream, issued)
        as_evidence = replace(news, payload_type=TYPE_EVIDENCE, nonce=bytes.fromhex(issued.nonce))
        assert refused(scene.appraise(stream, as_evidence, issued)).code is ReasonCode.SIG_INVALID
        assert news.payload_type == TYPE_FAILURE_NOTICE

    @pytest.mark.parametrize("changes", [{"kind": "good"}, {"xid": "79"}, {"extra": 1}])
    def test_news_that_nobody_knows_are_malformed(self, changes: dict[str, object]) -> None:
        scene = Scene(ca=CA, failure_notice=True)
        stream = scene.opened()
        scene.payload = with_fields(_payload(scene, stream), changes)
        result = refused(scene.answer(stream))
        assert (result.code, result.effect) == (ReasonCode.MSG_MALFORMED, Effect.TRANSIENT)

    @pytest.mark.parametrize(
        ("code", "field", "value"),
        [
            (ReasonCode.AUDIENCE_MISMATCH, "audience", "x"),
            (ReasonCode.SEQ_GAP, "seq", 2),
            (ReasonCode.INNER_NONCE_MISMATCH, "nonce", "0" * 64),
            (ReasonCode.CHALLENGE_DIGEST_MISMATCH, "challenge_sha256", "é"),
        ],
    )
    def test_it_passes_the_same_binding(self, code: ReasonCode, field: str, value: object) -> None:
        scene = Scene(ca=CA, failure_notice=True, evidence={field: value})
        assert refused(scene.run()).code is code

    def test_stale_stores_do_not_hold_it_back(self) -> None:
        scene = Scene(ca=CA, failure_notice=True)
        scene.between.append(_stale_stores)
        assert isinstance(scene.run(), FailureNoticeAccepted)

    def test_a_denied_node_is_not_heard(self) -> None:
        scene = Scene(ca=CA, failure_notice=True)
        scene.between.append(_denied)
        assert refused(scene.run()).code is ReasonCode.NODE_DENIED


def _stale_stores(scene: Scene) -> None:
    scene.enrollment = replace(scene.enrollment, fresh_until_ns=0)
    scene.directory = replace(scene.directory, fresh_until_ns=0)


def _denied(scene: Scene) -> None:
    record = EnrollmentRecord(NODE, denial=QuarantineEntry("X", "why", "who", 0))
    scene.enrollment = scene.enrollment.with_record(record)


def test_a_stream_remembers_the_checkpoints_that_were_last_named_and_news_name_none() -> None:
    seen = (WitnessedCheckpoint("log", "checkpoint"),)
    scene = Scene(ca=CA, evidence={"checkpoints": seen})
    stream = accepted(scene.run()).stream
    assert stream.witnessed == seen
    scene.failure_notice, scene.evidence = True, {}
    news = scene.answer(stream, 2)
    assert isinstance(news, FailureNoticeAccepted)
    assert news.stream.witnessed == seen


def test_the_proof_of_a_chain_is_the_answer_to_the_same_question_again() -> None:
    scene = Scene(ca=CA)
    stream = scene.opened()
    assert check_chain(stream.chain, scene.roots, scene.wall, stream.proof) is stream.proof


def test_evidence_is_read_from_the_verified_bytes_only() -> None:
    """White space and key order are the sender's: verified as received, never made again."""
    scene = Scene(ca=CA)
    stream = scene.opened()
    issued = scene.challenge(stream)
    document = msgspec.json.decode(canonical_json(scene.document(stream, issued)))
    scene.payload = msgspec.json.format(msgspec.json.encode(document), indent=2)
    message = scene.signed(stream, issued)
    result = accepted(scene.appraise(stream, message, issued))
    assert result.evidence_digest == evidence_digest(TYPE_EVIDENCE, message.payload)


def test_a_chain_proven_when_the_stream_was_opened_is_not_enough_for_other_roots() -> None:
    scene = Scene()
    stream = scene.opened()
    assert stream.proof.covers(stream.chain, scene.roots, scene.wall)
    scene.roots = SpiffeCa(at=WALL).roots
    result = scene.answer(stream)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.CHAIN_INVALID


OF_THE_SHELL = {ReasonCode.AUDIT_UNAVAILABLE, ReasonCode.ACCEPTED}
FIRST_DEFECT: dict[ReasonCode, Defect] = dict(reversed(DEFECTS))
ORDER = list(ReasonCode)

# One stub answers for a whole step; a stream is either superseded from the start or later.
ONE_AT_A_TIME = {7, 8, 9, 10, 17}


def refusal_of(*defects: Defect) -> Refused:
    scene = Scene(ca=CA)
    for defect in defects:
        defect(scene)
    result = scene.run()
    assert isinstance(result, Refused), result
    return result


def test_a_good_node_is_accepted() -> None:
    Scene(ca=CA).accepted()


def test_every_code_of_steps_1_to_18_has_a_defect() -> None:
    assert {code for code, _ in DEFECTS} == set(STEP_OF) - OF_THE_SHELL


@pytest.mark.parametrize(
    ("code", "defect"), DEFECTS, ids=[f"{i}-{code}" for i, (code, _) in enumerate(DEFECTS)]
)
def test_a_defect_is_refused_with_its_code_step_and_effect(
    code: ReasonCode, defect: Defect
) -> None:
    refused = refusal_of(defect)
    step = STEP_OF[code]
    assert (refused.code, refused.step) == (code, step)
    assert refused.effect is (EFFECT_OF[code] if step >= 6 else Effect.TRANSIENT)
    assert "\n" not in refused.detail
    assert len(refused.detail) < 400


@pytest.mark.parametrize(
    ("code", "defect"), DEFECTS, ids=[f"{i}-{code}" for i, (code, _) in enumerate(DEFECTS)]
)
def test_a_stream_goes_on_only_after_its_sequence_is_known(
    code: ReasonCode, defect: Defect
) -> None:
    stream = refusal_of(defect).stream
    if STEP_OF[code] < 16:
        assert stream is None
    else:
        assert stream is not None
        assert stream.seq == 1


def by_step() -> dict[int, ReasonCode]:
    """The first listed code of each step."""
    return {STEP_OF[code]: code for code in reversed(ORDER) if code in FIRST_DEFECT}


def pairs() -> list[tuple[ReasonCode, ReasonCode]]:
    across = combinations(sorted(by_step().values(), key=ORDER.index), 2)
    within = (
        (first, second)
        for first, second in combinations(sorted(FIRST_DEFECT, key=ORDER.index), 2)
        if STEP_OF[first] == STEP_OF[second] and STEP_OF[first] not in ONE_AT_A_TIME
    )
    # Steps 7 to 9 share the stub; their order is tested by itself.
    return [
        (first, second)
        for first, second in (*across, *within)
        if not {STEP_OF[first], STEP_OF[second]} <= {7, 8, 9}
    ]


@pytest.mark.parametrize(("first", "second"), pairs(), ids=str)
def test_the_earliest_failing_step_and_within_it_the_first_code_wins(
    first: ReasonCode, second: ReasonCode
) -> None:
    assert refusal_of(FIRST_DEFECT[second], FIRST_DEFECT[first]).code is first


def test_the_order_of_codes_is_that_of_their_steps() -> None:
    steps = [STEP_OF[code] for code in ORDER if code in STEP_OF]
    assert steps == sorted(steps)


def described_steps() -> dict[int, str]:
    """Step -> its text in the docstring that numbers them."""
    parts = re.split(r"^ ?(\d{1,2})\. ", verifier.__doc__ or "", flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_numbered_procedure_names_the_codes_of_each_step() -> None:
    assert list(described_steps()) == list(range(1, 21))
    described = {
        step: re.findall(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|ACCEPTED", text)
        for step, text in described_steps().items()
    }
    assert described == {
        step: [code.value for code in ORDER if STEP_OF.get(code) == step] for step in range(1, 21)
    }


def test_the_numbered_procedure_names_code_that_exists() -> None:
    for text in described_steps().values():
        for module, name in re.findall(r"`([a-z]+)\.([A-Za-z_]+)", text):
            if module in {"session", "message", "challenge", "inventory", "appraisal", "context"}:
                assert hasattr(import_module(f"controller.verifier.{module}"), name)
