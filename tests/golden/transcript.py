"""One whole session, byte for byte: Hello, Challenge and Evidence twice, a failure notice.

Then a challenge that wants all there is, evidence with pods, and a notice of several failures.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.envelope import evidence_digest, pae
from gpuwarden.evidence.model import (
    PROTOCOL,
    TYPE_CHALLENGE,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    ZERO_DIGEST,
    Challenge,
    Document,
    Evidence,
    EvidenceWithPods,
    FailedRead,
    Failure,
    FailureNotice,
    FailureNotices,
    GpuProcess,
    Hello,
)
from tests.builders.inventory import gpu, gpu_uuid, inventory
from tests.golden.signers import certificate, fixed_key, pem, sign_again

_AGENT_ID = "spiffe://example.org/gpuwarden/agent/gpu-a1"
_CONTROLLER_ID = "spiffe://example.org/gpuwarden/controller"
_INSTANCE = "a1" * 16
_BOOT = "5f1d2a7c-3c0f-4c55-9a57-1f8f6f6b1c01"
_STREAM = "5e" * 16
_START_MS = 1_790_000_000_000


@dataclass(frozen=True, slots=True)
class _Party:
    key: ec.EllipticCurvePrivateKey
    spiffe_id: str
    serial: int

    def pem(self) -> str:
        return pem(certificate(self.key, self.spiffe_id, self.serial))

    def leaf_sha256(self) -> str:
        der = certificate(self.key, self.spiffe_id, self.serial).public_bytes(Encoding.DER)
        return sha256_hex(der)

    def message(self, kind: str, document: Document) -> dict[str, Any]:
        payload = canonical_json(document)
        return {
            "payloadType": kind,
            "payload": payload.decode(),
            "payloadSha256": sha256_hex(payload),
            "evidenceDigest": evidence_digest(kind, payload),
            "signatureHex": sign_again(self.key, pae(kind, payload)).hex(),
        }


_AGENT = _Party(fixed_key(0x11, ec.SECP256R1()), _AGENT_ID, 1)
_CONTROLLER = _Party(fixed_key(0x33, ec.SECP256R1()), _CONTROLLER_ID, 2)


def transcript() -> dict[str, Any]:
    hello = canonical_json(
        Hello(
            protocol=PROTOCOL,
            agent_version="0.1.0",
            instance_id=_INSTANCE,
            boot_id=_BOOT,
            node_name="gpu-a1",
            checkpoints=(),
        )
    )
    first = _CONTROLLER.message(TYPE_CHALLENGE, _challenge(1, hello))
    answer = _AGENT.message(TYPE_EVIDENCE, _evidence(1, first, ZERO_DIGEST))
    second = _CONTROLLER.message(TYPE_CHALLENGE, _challenge(2, hello))
    again = _AGENT.message(TYPE_EVIDENCE, _evidence(2, second, answer["evidenceDigest"]))
    news = _AGENT.message(TYPE_FAILURE_NOTICE, _failure_notice(second, again["evidenceDigest"]))
    third = _CONTROLLER.message(
        TYPE_CHALLENGE, _challenge(3, hello, want=("inventory", "pods", "failures"))
    )
    with_pods = _AGENT.message(TYPE_EVIDENCE_WITH_PODS, _with_pods(third, news["evidenceDigest"]))
    several = _AGENT.message(TYPE_FAILURES, _failures(third, with_pods["evidenceDigest"]))
    return {
        "agent": {"certificate": _AGENT.pem(), "leafSha256": _AGENT.leaf_sha256()},
        "controller": {"certificate": _CONTROLLER.pem()},
        "hello": {"document": hello.decode(), "sha256": sha256_hex(hello)},
        "messages": [
            {"from": sender, **message}
            for sender, message in (
                ("controller", first),
                ("agent", answer),
                ("controller", second),
                ("agent", again),
                ("agent", news),
                ("controller", third),
                ("agent", with_pods),
                ("agent", several),
            )
        ],
    }


def _challenge(number: int, hello: bytes, *, want: tuple[str, ...] = ("inventory",)) -> Challenge:
    return Challenge(
        protocol=PROTOCOL,
        controller=_CONTROLLER_ID,
        cluster="prod",
        trust_domain="example.org",
        stream_id=_STREAM,
        challenge_id=f"{number:032x}",
        nonce=sha256_hex(b"nonce %d" % number),
        spare_nonce=sha256_hex(b"spare nonce %d" % number),
        hello_sha256=sha256_hex(hello),
        leaf_sha256=_AGENT.leaf_sha256(),
        want=want,
        ttl_ms=15_000,
        interval_ms=25_000,
        checkpoint=None,
        consistency_proof=(),
        log_key=None,
        log_key_changes=(),
        wall_ms=str(_START_MS + 25_000 * number),
    )


def _header(seq: int, challenge: dict[str, Any], prev: str, *, spare: bool) -> dict[str, Any]:
    asked = msgspec.json.decode(challenge["payload"], type=Challenge)
    return {
        "protocol": PROTOCOL,
        "audience": _CONTROLLER_ID,
        "trust_domain": "example.org",
        "node_name": "gpu-a1",
        "stream_id": asked.stream_id,
        "challenge_id": asked.challenge_id,
        "nonce": asked.spare_nonce if spare else asked.nonce,
        "challenge_sha256": challenge["payloadSha256"],
        "seq": seq,
        "prev": prev,
        "instance_id": _INSTANCE,
        "boot_id": _BOOT,
        "wall_ms": str(_START_MS + 25_000 * seq + 40),
        "boottime_ms": str(86_400_000 + 25_000 * seq),
    }


def _evidence(seq: int, challenge: dict[str, Any], prev: str) -> Evidence:
    return Evidence(
        **_header(seq, challenge, prev, spare=False),
        checkpoints=(),
        inventory=inventory(gpu(0), gpu(1, compute_mode=None)),
        allocations=None,
        processes=(GpuProcess(gpu=gpu_uuid(1), pid=4711, pod_uid=None),),
        hardware_reports=(),
        failed_reads=(
            FailedRead(
                fact="computeMode",
                gpu=gpu_uuid(2),
                call="nvmlDeviceGetComputeMode",
                error="UNKNOWN",
            ),
        ),
        log_alarms=(),
    )


def _failure_notice(challenge: dict[str, Any], prev: str) -> FailureNotice:
    return FailureNotice(
        **_header(3, challenge, prev, spare=True),
        kind="xid",
        gpu=gpu_uuid(1),
        xid=79,
        detail="GPU has fallen off the bus",
    )


def _with_pods(challenge: dict[str, Any], prev: str) -> EvidenceWithPods:
    return EvidenceWithPods(
        **_header(4, challenge, prev, spare=False),
        checkpoints=(),
        inventory=inventory(gpu(0)),
        allocations=None,
        processes=(),
        hardware_reports=(),
        failed_reads=(),
        log_alarms=(),
        pods=("0b7c1a52-0000-4000-8000-000000000001",),
    )


def _failures(challenge: dict[str, Any], prev: str) -> FailureNotices:
    lost = Failure(
        kind="gpu-lost",
        gpu=gpu_uuid(1),
        xid=None,
        detail="GPU_IS_LOST",
        happened_ms="86499000",
        count=1,
    )
    xid = Failure(kind="xid", gpu=gpu_uuid(1), xid=94, detail="", happened_ms="86499500", count=60)
    return FailureNotices(**_header(5, challenge, prev, spare=True), failures=(lost, xid))
