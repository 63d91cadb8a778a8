"""Lines of real soaks, and what they are taken for."""

import pytest

from tests.soak.kinds import EXPECTED
from tests.soak.log_lines import Cause, ErrorLine, Span, sort

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
    ("client", "webhook without an answer"): (
        '500 Internal error occurred: failed calling webhook "enforced.pods.gpuwarden.dev": EOF'
    ),
    ("controller-1", "leadership given up"): 'leader.lost {"component": "kube"}',
}
AT = 1000.0
OF_ALL = tuple(Span(x, AT, AT + 1, "controller-1") for x in Cause)


@pytest.mark.parametrize(("program", "name"), SEEN)
def test_what_soaks_have_shown_is_explained(program: str, name: str) -> None:
    spans = [Span(x, AT, AT + 1, program) for x in Cause]
    found = sort([ErrorLine(program, SEEN[program, name], AT)], EXPECTED, spans)
    assert [kind.name for kind in found.explained] == [name]


@pytest.mark.parametrize(
    ("program", "name", "cause"),
    [
        ("controller-1", "leadership given up", Cause.STOP),
        ("controller-0", "agent's connection without a call", Cause.ROTATION),
        ("controller-1", "answer of a stream that was replaced", Cause.ROTATION),
        ("controller-0", "records that no checkpoint covers", Cause.KILL),
        ("controller-0", "GPUs held on the word of the log", Cause.KILL),
        ("client", "webhook without an answer", Cause.KILL),
    ],
)
def test_what_something_brings_is_explained_by_nothing_else(
    program: str, name: str, cause: Cause
) -> None:
    line = ErrorLine(program, SEEN[program, name], AT)
    for each in Cause:
        found = sort([line], EXPECTED, [Span(each, AT - 5, AT, program)])
        assert bool(found.explained) is (each is cause)
    assert sort([line], EXPECTED, [Span(cause, AT - 90, AT - 60, program)]).unexplained == (line,)


@pytest.mark.parametrize(
    ("name", "cause"),
    [("leadership given up", Cause.STOP), ("records that no checkpoint covers", Cause.KILL)],
)
def test_a_replica_answers_only_for_what_happened_to_itself(name: str, cause: Cause) -> None:
    text = next(text for (_, kind), text in SEEN.items() if kind == name)
    line = ErrorLine("controller-0", text, AT)
    other = Span(cause, AT - 1, AT + 1, "controller-1")
    assert sort([line], EXPECTED, [other]).unexplained == (line,)
    own = Span(cause, AT - 1, AT + 1, "controller-0")
    assert sort([line], EXPECTED, [own]).unexplained == ()


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
        (
            "agents",
            "no connection to spiffe://t/gpuwarden/controller at 127.0.0.1: bad",
        ),
        ("agents", "asyncio Task exception was never retrieved"),
    ],
)
def test_anything_else_is_not(program: str, text: str) -> None:
    line = ErrorLine(program, text, AT)
    assert sort([line], EXPECTED, OF_ALL).unexplained == (line,)
