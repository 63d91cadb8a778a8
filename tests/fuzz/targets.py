"""What is fuzzed: bytes from outside go in, and either a value comes out or our own error.

Each target takes any bytes and raises only if something is wrong with the code: an error
that is not one of ours, or a value that contradicts itself. Used by atheris and Hypothesis
alike, and with each file of the corpus.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from controller.admission.made_pods import made_pods
from controller.admission.review import (
    AdmissionHandler,
    AdmissionRequest,
    ReviewError,
    Verdict,
    decode_review,
    encode_answer,
    encode_patch,
)
from controller.export.records import RecordTextError, csv_rows, ndjson, read_csv, read_ndjson
from controller.fleet.attestation_result import Accepted, FailureNoticeAccepted
from controller.placement.keys import RequirementRules
from controller.placement.pod import PodDecodeError
from controller.placement.requirements import Requirements, RequirementsInvalid, parse_requirements
from controller.policies.file import decode_policy
from controller.verifier.session import read_hello
from controller.web.extender.scheduler_messages import (
    ArgsError,
    decode_args,
    decode_preemption_args,
    encode_preemption_result,
)
from gpuwarden.dead_letter_files import read_request, request_text
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import NoDocumentError, attestation_hash, class_document
from gpuwarden.evidence.class_document import decode_class_document as read_class
from gpuwarden.evidence.envelope import AlgorithmDeniedError, SignatureInvalidError, verify
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import (
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    Challenge,
    Evidence,
    EvidenceWithPods,
    FailureNotice,
    FailureNotices,
)
from gpuwarden.evidence.strict_json import DecodeError, decode
from gpuwarden.policy.document import PolicyInvalidError
from gpuwarden.reasons import Refusal
from gpuwarden.settings.loader import AGENT, CONTROLLER, ConfigType, Inputs, SettingsError, load
from gpuwarden.settings.report import render
from gpuwarden.strict_yaml import YamlError, parse_plain
from sandbox.kube.json_patch import applied
from tests.builders.evidence import NODE, Result, Scene
from tests.builders.fleet_views import fleet, healthy
from tests.fakes.admission import AdmissionWorld
from tests.fakes.placement import World
from tests.fuzz.signed import CHALLENGE_DIGEST, SIGNED, SIGNER, is_signature, joined, split

S = TypeVar("S")
MAX_BYTES: Final = 256 * 1024
_PEER: Final = Scene(wants_pods=True)
_STREAM: Final = _PEER.opened()
_ISSUED: Final = _PEER.challenge(_STREAM)
_FLEET: Final = World(fleet(healthy("n1"), healthy("n2", "b")))
MESSAGES: Final[dict[str, tuple[bool, dict[str, object]]]] = {
    TYPE_EVIDENCE: (False, {}),
    TYPE_EVIDENCE_WITH_PODS: (False, {"pods": ()}),
    TYPE_FAILURE_NOTICE: (True, {}),
    TYPE_FAILURES: (True, {"failures": ()}),
}
"""Payload type -> whether it is a failure notice, and what makes the peer send that type."""
_ENVELOPES: Final = tuple(joined(kind, payload) for kind, payload in sorted(SIGNED))
_WEBHOOKS: Final = AdmissionWorld({"team-a"}).webhooks().handlers()
_NAMES: Final = frozenset({"n1", "n2"})


def evidence(data: bytes) -> None:
    """Every document that is read from bytes, and the verifier over them when they are signed."""
    for kind in (Evidence, EvidenceWithPods, FailureNotice, FailureNotices, Challenge):
        try:
            document = decode(data, kind, max_bytes=MAX_BYTES)
        except DecodeError as error:
            _is_one_line(error)
        else:
            assert decode(canonical_json(document), kind, max_bytes=2 * MAX_BYTES) == document
            if isinstance(document, Evidence):
                _class_of(document)
    assert isinstance(read_hello(data, NODE), Refusal) or b"instanceId" in data
    for payload_type in MESSAGES:
        _appraised(data, payload_type)


def _class_of(document: Evidence) -> None:
    if inventory_findings(document.inventory):
        return
    try:
        made = class_document(
            document.inventory, level="L0", trust_domain="example.org", attestor=None
        )
    except NoDocumentError:
        return
    assert read_class(canonical_json(made)) == made
    assert attestation_hash(made).startswith("v1:sha256:")


def _appraised(data: bytes, payload_type: str) -> None:
    """As an answer to a challenge, signed by the node itself."""
    if data:
        result = appraised(data, payload_type)
        assert not isinstance(result, Accepted | FailureNoticeAccepted) or b"nonce" in data


def appraised(data: bytes, payload_type: str) -> Result:
    """What the verifier says; the seeds' digest of the challenge is made the right one."""
    digest = _ISSUED.sha256.encode()
    _PEER.payload = data.replace(CHALLENGE_DIGEST, digest)
    _PEER.failure_notice, _PEER.evidence = MESSAGES[payload_type]
    return _PEER.appraise(_STREAM, _PEER.signed(_STREAM, _ISSUED), _ISSUED)


def envelope(data: bytes) -> None:
    """No bytes verify but those that were signed, whatever the signature."""
    _verified(data)
    for signed in _ENVELOPES:
        _verified(_disturbed(signed, data))


def _disturbed(signed: bytes, data: bytes) -> bytes:
    """A good envelope with `data` laid over it by exclusive or, from the place that it begins with.

    Verification is one call out of sight of the fuzzer, which would not get near to it by itself.
    """
    at = data[0] % len(signed) if data else 0
    over = data[1 : 1 + len(signed) - at]
    changed = bytes(x ^ y for x, y in zip(signed[at:], over, strict=False))
    return signed[:at] + changed + signed[at + len(over) :]


def _verified(data: bytes) -> None:
    kind, signature, payload = split(data)
    try:
        verify(SIGNER, kind, payload, signature)
    except (AlgorithmDeniedError, SignatureInvalidError):
        return
    assert is_signature(kind, payload, signature)


def extender(data: bytes) -> None:
    """ExtenderArgs, the requirements of the pod in them, and all answers."""
    try:
        args = decode_args(data)
    except ArgsError:
        args = None
    filtered, scored = _FLEET.verbs().filter(data), _FLEET.verbs().prioritize(data)
    # Nodes are echoed byte by byte, so what is no UTF-8 in them is none in the answer.
    answer = json.loads(filtered.body.decode("utf-8", "replace"))
    assert {filtered.status, scored.status} == {400 if args is None else 200}
    if args is not None:
        _answered(parse_requirements(args.pod, RequirementRules()), args.names, answer)
        scores = {x["Host"]: x["Score"] for x in json.loads(scored.body)}
        assert set(scores) == set(args.names)
        assert all(0 <= x <= 10 for x in scores.values())
    _preempted(data)
    with contextlib.suppress(PodDecodeError):
        made_pods(data, "default")


def _preempted(data: bytes) -> None:
    answer = _FLEET.verbs().preempt(data)
    try:
        args = decode_preemption_args(data)
    except ArgsError:
        assert answer.status == 400
        return
    assert answer.status == 200
    kept = json.loads(answer.body)["NodeNameToMetaVictims"]
    asked = json.loads(encode_preemption_result(args.victims))["NodeNameToMetaVictims"]
    assert kept.items() <= asked.items()


def _answered(
    needs: Requirements | RequirementsInvalid, names: list[str], answer: dict[str, Any]
) -> None:
    passed = answer["NodeNames"]
    if passed is None:
        passed = [x["metadata"]["name"] for x in answer["Nodes"]["items"]]
    if isinstance(needs, RequirementsInvalid):
        assert needs.detail().isprintable()
        assert passed == []
    elif needs.managed:
        assert set(passed) <= _NAMES & set(names)
        assert set(passed) | set(answer["FailedAndUnresolvableNodes"]) == set(names)
    else:
        assert passed == names


def configuration(data: bytes) -> None:
    """Settings of both programs, policy and manifest; what was read is written and read alike."""
    _settings_of(AGENT, data)
    _settings_of(CONTROLLER, data)
    try:
        policy = decode_policy(data)
    except PolicyInvalidError as error:
        _are_lines(error.findings)
    else:
        assert policy == decode_policy(data)
    try:
        manifest = parse_plain(data, max_bytes=MAX_BYTES)
    except YamlError as error:
        _is_one_line(error)
    else:
        assert json.dumps(manifest, allow_nan=False).encode()


def _settings_of(config: ConfigType[S], data: bytes) -> None:
    try:
        loaded = load(config, Inputs(file=("c.yaml", data)))
    except SettingsError as error:
        _are_lines(error.findings)
    else:
        again = load(config, Inputs(file=("again.yaml", render(loaded).encode())))
        assert again.settings == loaded.settings


def _are_lines(findings: Sequence[object]) -> None:
    assert findings
    for finding in findings:
        _is_one_line(finding)


def _is_one_line(text: object) -> None:
    """What quotes a stranger's bytes must not forge lines of a log."""
    assert str(text).isprintable()


def admission(data: bytes) -> None:
    """AdmissionReviews: what each webhook answers, and that its patch applies, once."""
    try:
        review = decode_review(data)
    except ReviewError as error:
        _is_one_line(error)
        return
    for handler in _WEBHOOKS.values():
        verdict = _decided(handler, review.request)
        response = json.loads(encode_answer(review, verdict))["response"]
        assert response["uid"] == review.request.uid
        assert response["allowed"] is not bool(verdict.refusals)
        _is_one_line(response.get("status", {}).get("message", "-"))
        if verdict.patch:
            assert not verdict.refusals
            _applies_once(handler, review.request, verdict)


def _decided(handler: AdmissionHandler, request: AdmissionRequest) -> Verdict:
    """They await nothing."""
    try:
        handler(request).send(None)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict
    raise AssertionError("it waits")


def _applies_once(handler: AdmissionHandler, request: AdmissionRequest, verdict: Verdict) -> None:
    # Nobody has looked whether what is skipped is UTF-8: the API server has.
    before = json.loads(bytes(request.object).decode("utf-8", "replace"))
    stored = applied(before, json.loads(encode_patch(verdict.patch)))
    again = msgspec.structs.replace(request, object=msgspec.Raw(json.dumps(stored).encode()))
    assert not _decided(handler, again).patch


def records(data: bytes) -> None:
    """What exporters read back: dead letters and objects of S3, and a request to replay."""
    for read, written in ((read_ndjson, ndjson), (read_csv, csv_rows)):
        try:
            found = read(data)
        except RecordTextError as error:
            _is_one_line(error)
        else:
            assert read(written(found)) == found
    request = read_request(data)
    assert read_request(request_text(request).encode()) == request


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {x.__name__: x for x in (evidence, envelope, extender, configuration, admission, records)}
)
