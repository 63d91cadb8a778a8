"""Writes the seeds of the corpus again: `python -m tests.fuzz.seeds`. A test compares them.

Beside them stand inputs that a fuzzer found and that were a defect once.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from controller.export.records import as_dict, csv_rows
from controller.placement.keys import MAP
from gpuwarden.dead_letter_files import Request, request_text
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.model import Failure
from tests.builders.admission_reviews import review_json
from tests.builders.admitted_pods import UUIDS, container, new_pod, variable
from tests.builders.evidence import Scene
from tests.builders.exported import record
from tests.builders.fleet_views import hash_of
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu, mig_device
from tests.builders.pods import pod_json
from tests.fakes.placement import args, victims
from tests.fuzz.signed import CHALLENGE_DIGEST, SIGNED, joined

CORPUS: Final = Path(__file__).parent / "corpus"
_HEAD: Final = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: "
_POD_UID: Final = "0b7c1a52-0000-4000-8000-000000000001"
_FAILURES: Final = (
    Failure("gpu-lost", gpu_uuid(1), None, "GPU_IS_LOST", happened_ms="86400000", count=1),
    Failure("xid", gpu_uuid(1), 94, "", happened_ms="86400001", count=60),
)
_REQUIREMENTS: Final = {
    "hash": {"gpuwarden.dev/required-hash": f"{hash_of('a')},{hash_of('b')}"},
    "selector": {
        "gpuwarden.dev/gpu-selector": "memory>=40Gi,model in (h100|a100),mig=false,driver>=570.86",
        "gpuwarden.dev/gpu-count": "2",
    },
    "map": {MAP: "0=n1:0,1\n1=n2:GPU-1 # second\n"},
    "uuids": {"gpuwarden.dev/gpu-uuids": "GPU-1, GPU-2", "gpuwarden.dev/min-level": "L1"},
    "wrong": {"gpuwarden.dev/required-hash": "", "gpuwarden.dev/unknown": "x"},
}
_HOSTILE: Final = new_pod(
    container(
        gpus=1,
        env=[variable("NVIDIA_VISIBLE_DEVICES", "all"), variable("A", "b")],
        envFrom=[{"prefix": "N", "configMapRef": {"name": "c"}}],
        securityContext={"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}},
        volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/GPU-1"}],
    ),
    annotations={"cdi.k8s.io/a": "b", "gpuwarden.dev/node": "n"},
    volumes=[{"name": "v", "hostPath": {"path": "/dev/../dev"}}],
    tolerations=[{"operator": "Exists", "tolerationSeconds": 3}],
    resourceClaims=[{"name": "c"}],
    runtimeClassName="kata",
    hostPID=True,
)
_DEBUGGED: Final = new_pod(ephemeralContainers=[container("old"), container("new")])
_REVIEWS: Final = {
    "plain": review_json(new_pod(container(), container("side", env=[variable("A", "b")]))),
    "uuids": review_json(new_pod(annotations=UUIDS, initContainers=[container("i")])),
    "map": review_json(new_pod(annotations={MAP: "0=n1:0,1"}), namespace="team-b", dry_run=True),
    "hostile": review_json(_HOSTILE),
    "ephemeral": review_json(
        _DEBUGGED,
        operation="UPDATE",
        subresource="ephemeralcontainers",
        old=new_pod(ephemeralContainers=[container("old")]),
    ),
}
_RECORDS: Final = (record(0), record(1, 7, product='"H100", 80 GB', chassis="unknown"))
_SETTINGS: Final = {
    "controller": "ControllerConfig\ntrustDomain: example.org\ncluster: lab\n"
    "workloadApi: unix:///run/spire.sock\nattestation: {interval: 10s, lease: 1m}\n"
    "listen: {agents: '0.0.0.0:8443'}\nlimits: {filterBytes: 64Mi}\n",
    "agent": "AgentConfig\ntrustDomain: example.org\ncluster: lab\n"
    "workloadApi: unix:///run/spire.sock\n"
    "agent: {nodeName: n1, controllers: ['controller:8443'], controllerId: "
    "'spiffe://example.org/gpuwarden/controller'}\n",
    "policy": f'Policy\nminLevel: L1\nallowedHashes: ["{hash_of("a")}"]\n'
    "classes:\n  - name: prod\n    hashes:\n      - hash: " + hash_of("a") + "\n"
    '        notAfter: 2026-02-01T00:00:00Z\npools:\n  - {pattern: "gpu-*", mode: plugin}\n'
    'labels: {big: "memory>=40Gi"}\n',
    "odd": "Policy\n? [a]\n: &x !!binary on\n---\n<<: *x\n",
}


def seeds() -> Iterator[tuple[str, bytes]]:
    """Path below the corpus, and content."""
    yield from (
        ("evidence/seed-plain", _document(inventory())),
        ("evidence/seed-full", _document(_full())),
        ("evidence/seed-with-pods", _document(_full(), pods=(_POD_UID,))),
        ("evidence/seed-failure-notice", _document(failure_notice=True)),
        ("evidence/seed-failures", _document(failure_notice=True, failures=_FAILURES)),
        ("evidence/seed-hello", canonical_json(Scene().hello_document())),
    )
    for number, (kind, payload) in enumerate(sorted(SIGNED)):
        yield f"envelope/seed-{number}", joined(kind, payload)
    for name, requirements in _REQUIREMENTS.items():
        yield f"extender/seed-{name}", json.dumps(args(pod_json(requirements), "n1", "n2")).encode()
    yield "extender/seed-nodes", _with_nodes()
    urgent = pod_json(_REQUIREMENTS["hash"])
    yield "extender/seed-victims", json.dumps(victims(urgent, n1=["u1", "u2"], n2=["u3"])).encode()
    for name, review in _REVIEWS.items():
        yield f"admission/seed-{name}", json.dumps(review).encode()
    yield "records/seed-csv", csv_rows(_RECORDS)
    yield "records/seed-letters", _letters()
    yield "records/seed-request", request_text(Request("uid 0", "INC 88")).encode()
    for name, text in _SETTINGS.items():
        yield f"configuration/seed-{name}", (_HEAD + text).encode()


def _letters() -> bytes:
    """A dead-letter file: records with the reason."""
    failed = {"reason": "HTTP 503", "failed": "2026-11-29T11:45:01Z"}
    lines = [json.dumps({**as_dict(x), **failed}, separators=(",", ":")) for x in _RECORDS]
    return "".join(f"{line}\n" for line in lines).encode()


def _full() -> object:
    cards = (gpu(0), gpu(1, mig=True, mig_devices=(mig_device(1), mig_device(2))))
    return inventory(*cards, lost=(lost_gpu(3),))


def _document(content: object = None, *, failure_notice: bool = False, **fields: object) -> bytes:
    scene = Scene(
        failure_notice=failure_notice,
        wants_pods=True,
        evidence={"challenge_sha256": CHALLENGE_DIGEST.decode(), **fields},
    )
    if content is not None:
        scene.evidence["inventory"] = content
    stream = scene.opened()
    return canonical_json(scene.document(stream, scene.challenge(stream)))


def _with_nodes() -> bytes:
    nodes = [{"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n2")]
    body = {"pod": pod_json(gpus=1), "nodes": {"items": nodes}, "nodenames": None}
    return json.dumps(body).encode()


def main() -> None:
    """Write them."""
    for name, content in seeds():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
