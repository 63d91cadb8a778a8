"""Lines of real soaks, and what they are taken for."""

import pytest

from tests.soak.kinds import EXPECTED
from tests.soak.log_lines import ErrorLine, sort

SEEN = {
    ("kube-scheduler", "no CA of an aggregation layer"): (
        'configmap_cafile_content.go:246 "Unhandled Error" err="key failed with : missing content'
        ' for CA bundle \\"client-ca::kube-system::extension-apiserver-authentication'
        '::requestheader-client-ca-file\\"" logger="UnhandledError"'
    ),
    ("gpuwarden-scheduler", "pod changed under its Binding"): (
        'framework.go:1544 "Plugin Failed" err="Operation cannot be fulfilled on pods'
        ' \\"soak-19\\": StorageError: invalid object, Code: 4, Key: /registry/pods/soak/soak-19,'
        " ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in"
        ' precondition: 968, ResourceVersion in object meta: 970" plugin="DefaultBinder"'
    ),
    ("gpuwarden-scheduler", "Binding refused for now"): (
        'framework.go:1544 "Plugin Failed" err="admission webhook'
        ' \\"enforced.bindings.gpuwarden.dev\\" denied the request: gpuwarden: GPU_BUSY too few'
        ' matching GPUs are free" plugin="DefaultBinder" pod="soak/soak-19" node="soak-012"'
    ),
    ("controller-1", "answer of a stream that was replaced"): (
        'evidence.refused {"code": "CHALLENGE_EXPIRED", "component": "attestation", "detail":'
        ' "newer facts or a later refusal stand against this answer"}'
    ),
    ("controller-0", "GPUs held on the word of the log"): (
        'ledger.held {"component": "binding", "gpus": ["GPU-012f9620"], "node": "soak-010"}'
    ),
    ("controller-0", "records that no checkpoint covers"): (
        'audit.unsigned {"component": "audit", "first": 95, "last": 104}'
    ),
    ("controller-0", "holders beside each other"): (
        'ledger.drift {"component": "binding", "counts": {"held_twice": 1}}'
    ),
    ("controller-1", "holders beside each other"): (
        'ledger.drift {"component": "binding", "counts": {}}'
    ),
    ("controller-0", "connection without a request"): (
        'connections.cut {"cause": "no-request", "component": "admission", "listener":'
        ' "admission", "peer": "127.0.0.1:56140"}'
    ),
    ("controller-0", "agent's connection without a call"): (
        'tls.handshake.failed {"cause": "no-call", "component": "controller", "count": 2,'
        ' "listener": "agents", "reason": "connections without a call"}'
    ),
    ("controller-1", "custom resource not served yet"): (
        'kube.cache.trouble {"component": "kube", "reason": "the API server answered 429'
        ' TooManyRequests: storage is (re)initializing", "resource": "nodeenrollments"}'
    ),
    ("agents", "no connection to a replica"): (
        "gpuwarden.identity.tunnel no connection to spiffe://laptop.test/gpuwarden/controller at"
        " 127.0.0.1: unreachable: [Errno 111] Connection refused"
    ),
}


@pytest.mark.parametrize(("program", "name"), SEEN)
def test_what_soaks_have_shown_is_explained(program: str, name: str) -> None:
    found = sort([ErrorLine(program, SEEN[program, name])], EXPECTED)
    assert [kind.name for kind in found.explained] == [name]


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("controller-0", 'process.fault {"task": "x"}'),
        ("controller-0", 'evidence.refused {"code": "SIGNATURE_INVALID"}'),
        ("controller-0", 'ledger.drift {"counts": {"held_twice": 1, "pod_unrecorded": 1}}'),
        ("controller-0", 'tls.handshake.failed {"cause": "no-call", "listener": "admission"}'),
        ("controller-0", 'connections.cut {"cause": "full", "listener": "admission"}'),
        ("controller-0", 'kube.cache.trouble {"reason": "403 Forbidden"}'),
        ("gpuwarden-scheduler", "denied the request: gpuwarden: SIGNATURE_INVALID no"),
        (
            "kube-apiserver",
            "Operation cannot be fulfilled on pods: ResourceVersion in precondition",
        ),
        ("agents", "asyncio Task exception was never retrieved"),
    ],
)
def test_anything_else_is_not(program: str, text: str) -> None:
    line = ErrorLine(program, text)
    assert sort([line], EXPECTED).unexplained == (line,)
