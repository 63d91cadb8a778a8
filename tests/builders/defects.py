"""One way at least to be refused with each reason code of steps 1 to 18.

A defect changes a good `Scene` and nothing else, so that two of them can be combined.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.enrollment import EnrolledGpu, EnrollmentRecord, QuarantineEntry
from controller.policy import Level, NodePool
from controller.verifier.context import HardwareQuestion, SpireQuestion, Standing
from gpuwarden.evidence.model import FailedRead, Inventory
from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import INSTANCE, WALL, Scene, agent_uri
from tests.builders.inventory import HOST, gpu, gpu_uuid, host, inventory

R = ReasonCode
Defect = Callable[[Scene], None]
OTHER_INSTANCE: Final = "b2" * 16


@dataclass
class StubSpire:
    """Answers with one refusal at its step, else L1."""

    refusal: Refusal
    step: int

    def entry(self, question: SpireQuestion) -> Refusal | None:
        del question
        return self.refusal if self.step == 7 else None

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        del question
        return self.refusal if self.step == 8 else Standing(Level.L1, "k8s_psat", "spire-agent-1")

    def image(self, question: SpireQuestion) -> Refusal | None:
        del question
        return self.refusal if self.step == 9 else None


@dataclass
class StubHardware:
    """Refuses."""

    refusal: Refusal

    def __call__(self, question: HardwareQuestion) -> Standing | Refusal:
        del question
        return self.refusal


def _facts(**changes: object) -> Defect:
    return lambda scene: scene.facts.update(changes)


def _hello(**changes: object) -> Defect:
    return lambda scene: scene.hello.update(changes)


def _evidence(**changes: object) -> Defect:
    return lambda scene: scene.evidence.update(changes)


def _message(**changes: object) -> Defect:
    return lambda scene: scene.message.update(changes)


def _issued(**changes: object) -> Defect:
    return lambda scene: scene.issued.update(changes)


def _stream(**changes: object) -> Defect:
    return lambda scene: scene.stream.update(changes)


def _later(defect: Defect) -> Defect:
    return lambda scene: scene.between.append(defect)


def _spire(code: ReasonCode) -> Defect:
    def defect(scene: Scene) -> None:
        scene.spire = StubSpire(Refusal(code), STEP_OF[code])

    return defect


def _hardware(code: ReasonCode) -> Defect:
    def defect(scene: Scene) -> None:
        scene.hardware = StubHardware(Refusal(code))

    return defect


def _uris(*uris: str) -> Defect:
    def defect(scene: Scene) -> None:
        scene.identify(*uris)

    return defect


def _foreign_roots(scene: Scene) -> None:
    scene.roots = SpiffeCa(at=WALL).roots


def _expired(scene: Scene) -> None:
    """The node's clock follows the controller's: only the certificate has ended."""
    scene.wall += timedelta(hours=2)


def _not_yet(scene: Scene) -> None:
    scene.wall -= timedelta(minutes=10)


def _stale_enrollment(scene: Scene) -> None:
    scene.enrollment = replace(scene.enrollment, fresh_until_ns=scene.boottime_ns)


def _stale_directory(scene: Scene) -> None:
    scene.directory = replace(scene.directory, fresh_until_ns=scene.boottime_ns)


def _unknown_node(scene: Scene) -> None:
    scene.directory = DirectorySnapshot({"gpu-2": KnownNode()})


def record_of(scene: Scene) -> EnrollmentRecord:
    return scene.enrollment.records.get(scene.node) or EnrollmentRecord(scene.node)


def _with_record(**changes: object) -> Defect:
    def defect(scene: Scene) -> None:
        record = replace(record_of(scene), **changes)  # type: ignore[arg-type] # names vary
        scene.enrollment = scene.enrollment.with_record(record)

    return defect


denied = _with_record(denial=QuarantineEntry("OPERATOR", "smells odd", "spiffe://x/operator/o", 0))
superseded = _with_record(instance=OTHER_INSTANCE, superseded=(INSTANCE,))


def _unrelated_key(scene: Scene) -> None:
    scene.key = SpiffeCa(at=WALL).issue(agent_uri())[0]


def _claimed_by_other(scene: Scene) -> None:
    other = EnrollmentRecord("gpu-9", gpus=(EnrolledGpu(gpu_uuid(1)),))
    scene.enrollment = scene.enrollment.with_record(other)


def _policy(**changes: object) -> Defect:
    def defect(scene: Scene) -> None:
        scene.policy = replace(scene.policy, **changes)  # type: ignore[arg-type] # names vary

    return defect


def _enrollment_required(scene: Scene) -> None:
    scene.settings = replace(scene.settings, enrollment_required=True)


def _wall(seconds: int) -> Defect:
    def defect(scene: Scene) -> None:
        ms = int((WALL + timedelta(seconds=seconds)).timestamp() * 1000)
        scene.evidence["wall_ms"] = str(ms)

    return defect


def _answered_late(scene: Scene) -> None:
    scene.answers_after_ns = scene.settings.challenge_ttl_ns + 1


def _presented(scene: Scene) -> None:
    scene.presented_before = True


def _denied_leaf(scene: Scene) -> None:
    """As if the session's certificate had got past step 4 with a key that may not sign."""
    key = ec.generate_private_key(ec.SECP521R1())
    scene.stream["leaf"] = scene.ca.issue(agent_uri(), key=key)[1][0]


DEFECTS: Final[tuple[tuple[ReasonCode, Defect], ...]] = (
    (R.LIMIT_STREAMS, _facts(open_streams=20_000)),
    (R.LIMIT_STREAMS, _facts(peer_streams=8)),
    (R.LIMIT_RATE, _facts(rate_exceeded=True)),
    (R.TLS_NO_CLIENT_CERT, _facts(chain=())),
    (R.TLS_RESUMED, _facts(resumed=True)),
    (R.PEER_ID_INVALID, _facts(uri_sans=())),
    (R.PEER_ID_INVALID, _uris(agent_uri(), agent_uri("gpu-2"))),
    (R.PEER_ID_INVALID, _facts(peer_spiffe_id=agent_uri("gpu-2"))),
    (R.PEER_ID_INVALID, _uris("https://example.org/gpuwarden/agent/gpu-1")),
    (R.PEER_FOREIGN_DOMAIN, _uris(agent_uri(trust_domain="example.com"))),
    (R.CHAIN_INVALID, _foreign_roots),
    (R.CHAIN_INVALID, _later(_foreign_roots)),
    (R.SVID_EXPIRED, _expired),
    (R.SVID_EXPIRED, _later(_expired)),
    (R.SVID_NOT_YET_VALID, _not_yet),
    (R.PEER_ROLE_UNKNOWN, _uris("spiffe://example.org/gpuwarden/controller")),
    (R.PEER_ROLE_UNKNOWN, _uris("spiffe://example.org/gpuwarden/inspector/gpu-1")),
    (R.PEER_ROLE_UNKNOWN, _uris("spiffe://example.org/ns/gpuwarden/sa/agent")),
    (R.NODE_NAME_INVALID, _uris(agent_uri("GPU_1"))),
    (R.ENROLLMENT_STALE, _stale_enrollment),
    (R.ENROLLMENT_STALE, _later(_stale_enrollment)),
    (R.DIRECTORY_STALE, _stale_directory),
    (R.NODE_UNKNOWN, _unknown_node),
    (R.NODE_UNKNOWN, _later(_unknown_node)),
    (R.NODE_DENIED, denied),
    (R.NODE_DENIED, _later(denied)),
    *((code, _spire(code)) for code, step in STEP_OF.items() if step in {7, 8, 9}),
    *((code, _later(_spire(code))) for code, step in STEP_OF.items() if step == 8),
    (R.PROTOCOL_UNSUPPORTED, _hello(protocol=2)),
    (R.STREAM_SUPERSEDED, _later(superseded)),
    (R.DUPLICATE_AGENT, superseded),
    (R.MSG_TOO_LARGE, _message(payload=b"x" * (256 * 1024 + 1))),
    (R.MSG_MALFORMED, _message(stream_id=b"short")),
    (R.MSG_MALFORMED, _message(nonce=b"n" * 31)),
    (R.MSG_MALFORMED, _message(payload=b"")),
    (R.MSG_MALFORMED, _message(signature=b"")),
    (R.MSG_MALFORMED, _message(signature=b"s" * 1025)),
    (R.TYPE_UNEXPECTED, _message(payload_type="application/json")),
    (R.CHALLENGE_UNKNOWN, _message(challenge_id=b"?" * 16)),
    (R.CHALLENGE_EXPIRED, _answered_late),
    (R.NONCE_REUSED, _presented),
    (R.NONCE_MISMATCH, _message(nonce=b"n" * 32)),
    (R.STREAM_MISMATCH, _message(stream_id=b"t" * 16)),
    (R.SIGNER_MISMATCH, _issued(leaf_sha256="0" * 64)),
    (R.SIG_ALG_DENIED, _denied_leaf),
    (R.SIG_INVALID, _unrelated_key),
    (R.SIG_INVALID, _message(signature=b"s" * 70)),
    (R.AUDIENCE_MISMATCH, _evidence(audience="spiffe://example.org/gpuwarden/other")),
    (R.AUDIENCE_MISMATCH, _evidence(trust_domain="example.com")),
    (R.NODE_NAME_MISMATCH, _evidence(node_name="gpu-2")),
    (R.INNER_NONCE_MISMATCH, _evidence(nonce="0" * 64)),
    (R.INNER_NONCE_MISMATCH, _evidence(challenge_id="0" * 32)),
    (R.INNER_NONCE_MISMATCH, _evidence(stream_id="0" * 32)),
    (R.CHALLENGE_DIGEST_MISMATCH, _evidence(challenge_sha256="0" * 64)),
    (R.SEQ_REPLAY, _evidence(seq=0)),
    (R.SEQ_GAP, _evidence(seq=2)),
    (R.PREV_MISMATCH, _evidence(prev="1" * 64)),
    (R.BOOT_CHANGED, _evidence(boot_id="another-boot")),
    (R.BOOT_CHANGED, _evidence(instance_id=OTHER_INSTANCE)),
    (R.CLOCK_BACKWARDS, _stream(boottime_ms=10**15)),
    (R.CLOCK_SKEW, _wall(302)),
    (R.CLOCK_SKEW, _wall(-302)),
    (R.INVENTORY_INVALID, _evidence(inventory=inventory(gpu(uuid="GPU-x")))),
    (R.INVENTORY_INVALID, _evidence(inventory=inventory(gpu(pci=None)))),
    (R.INVENTORY_MADE_UP, _evidence(inventory=inventory(host=host(driver="1+evaluation")))),
    (
        R.INVENTORY_INCOMPLETE,
        _evidence(failed_reads=(FailedRead("vbios", gpu_uuid(1), "Vbios", "UNKNOWN"),)),
    ),
    (
        R.INVENTORY_INCOMPLETE,
        _evidence(
            inventory=Inventory(HOST, (), ()),
            failed_reads=(FailedRead("gpus", None, "Init", "DRIVER_NOT_LOADED"),),
        ),
    ),
    (R.INVENTORY_EMPTY, _evidence(inventory=Inventory(HOST, (), ()))),
    (R.GPU_DENIED, _policy(denied_keys=frozenset({gpu_uuid(1)}))),
    (R.GPU_DENIED, _policy(denied_keys=frozenset({gpu().serial}))),
    (R.GPU_CLAIMED_TWICE, _claimed_by_other),
    (R.GPU_CLAIMED_TWICE, _policy(pools=(NodePool("dgx-*", uuids=frozenset({gpu_uuid(1)})),))),
    (R.NODE_UID_CHANGED, _with_record(node_uid="uid-0")),
    (R.SYSTEM_UUID_CHANGED, _with_record(system_uuid="0" * 36)),
    (R.INVENTORY_NOT_ENROLLED, _enrollment_required),
    (R.INVENTORY_NOT_ENROLLED, _policy(pools=(NodePool("gpu-*", serials=frozenset({"1"})),))),
    (R.INVENTORY_CHANGED, _with_record(gpus=(EnrolledGpu(gpu_uuid(1), serial="1"),))),
    (R.INVENTORY_CHANGED, _with_record(gpus=(EnrolledGpu(gpu_uuid(7)),))),
    *((code, _hardware(code)) for code, step in STEP_OF.items() if step == 17),
    (R.POLICY_DENIED, _policy(denied_drivers=frozenset({"570.86.10"}))),
    (R.POLICY_DENIED, _policy(allowed_vbios=frozenset({"96.00.00.00.01"}))),
    (R.LEVEL_TOO_LOW, _policy(min_level=Level.L1)),
    (R.CLASS_NOT_ALLOWED, _policy(allowed_hashes=frozenset({"v1:sha256:" + "0" * 64}))),
)
