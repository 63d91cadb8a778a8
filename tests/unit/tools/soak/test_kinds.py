"""Lines of real soaks, and what they are taken for."""

from dataclasses import replace

import pytest

from controller.rpc.handshakes import GRACE_S
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
    ("gpuwarden-scheduler", "GPU taken meanwhile"): (
        'framework.go:1544 "Plugin Failed" err="admission webhook'
        ' \\"enforced.bindings.gpuwarden.dev\\" denied the request: gpuwarden: GPU_BUSY too few'
        ' matching GPUs are free" plugin="DefaultBinder" pod="soak/soak-19" node="soak-012"'
    ),
    ("gpuwarden-scheduler", "Binding before the replica is ready"): (
        'framework.go:1544 "Plugin Failed" err="admission webhook'
        ' \\"enforced.bindings.gpuwarden.dev\\" denied the request: gpuwarden:'
        ' CONTROLLER_NOT_READY reconciliation" plugin="DefaultBinder" pod="soak/soak-19"'
    ),
    ("controller-1", "answer of a stream that was replaced"): (
        'evidence.refused {"code": "CHALLENGE_EXPIRED", "component": "attestation", "detail":'
        ' "newer facts or a later refusal stand against this answer"}'
    ),
    ("controller-0", "answer that came too late at the start"): (
        'evidence.refused {"code": "CHALLENGE_EXPIRED", "component": "attestation", "detail": "the'
        ' challenge was answered too late", "effect": "transient", "node": "soak-022"}'
    ),
    ("controller-0", "GPUs held on the word of the log"): (
        'ledger.kept {"component": "binding", "gpus": ["GPU-012f9620"], "node": "soak-010"}'
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
    ("agents", "connection to a replica that ended"): (
        "gpuwarden.identity.tunnel no connection to spiffe://laptop.test/gpuwarden/controller at"
        " 127.0.0.1: refused: server ended the connection after the handshake"
    ),
    ("client", "webhook without an answer"): (
        '500 Internal error occurred: failed calling webhook "enforced.pods.gpuwarden.dev": EOF'
    ),
    ("kube-apiserver", "call of a replica that ended"): (
        'wrap.go:53 "Timeout or abort while handling" logger="UnhandledError" method="PATCH"'
        ' URI="/apis/gpuwarden.dev/v1alpha1/gpureservations/gpu-5ae03f5e" auditID="f95b5a02"'
    ),
    ("kube-apiserver", "answer to a replica that ended"): (
        'status.go:71 "Unhandled Error" err="apiserver received an error that is not an'
        ' metav1.Status: &errors.errorString{s:\\"http: Handler timeout\\"}: http: Handler timeout"'
        ' logger="UnhandledError"'
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
    "text",
    [
        (
            'timeout.go:140 "Post-timeout activity" logger="UnhandledError" method="GET"'
            ' path="/apis/coordination.k8s.io/v1/namespaces/gpuwarden-system/leases/x" result=null'
        ),
        (
            'timeout.go:140 "Post-timeout activity" logger="UnhandledError" timeElapsed="5.2ms"'
            ' method="GET" path="/api/v1/nodes" result=null'
        ),
        (
            'writers.go:136 "Unhandled Error" err="apiserver was unable to write a fallback JSON'
            ' response: http: Handler timeout" logger="UnhandledError"'
        ),
        (
            'status.go:71 "Unhandled Error" err="apiserver received an error that is not an'
            ' metav1.Status: &errors.errorString{s:\\"context canceled\\"}: context canceled"'
        ),
        (
            'finisher.go:175 "Unhandled Error" err="FinishRequest: post-timeout activity -'
            ' time-elapsed: 20.6µs, panicked: false, err: context canceled, panic-reason: <nil>"'
        ),
    ],
)
def test_a_replica_that_ends_leaves_calls_behind(text: str) -> None:
    line = ErrorLine("kube-apiserver", text, AT)
    for each in Cause:
        found = sort([line], EXPECTED, [Span(each, AT - 1, AT, "controller-1")])
        assert bool(found.explained) is (each in {Cause.KILL, Cause.STOP})


def test_a_gpu_that_the_other_replica_reserved_at_that_moment() -> None:
    text = SEEN["gpuwarden-scheduler", "GPU taken meanwhile"].replace("GPU_BUSY", "LEDGER_CONFLICT")
    (kind,) = sort([ErrorLine("gpuwarden-scheduler", text, AT)], EXPECTED).explained
    assert kind.name == "GPU taken meanwhile"


@pytest.mark.parametrize(
    ("program", "name", "cause"),
    [
        ("controller-1", "leadership given up", Cause.STOP),
        ("controller-0", "agent's connection without a call", Cause.ROTATION),
        ("controller-1", "answer of a stream that was replaced", Cause.ROTATION),
        ("controller-0", "records that no checkpoint covers", Cause.KILL),
        ("controller-0", "GPUs held on the word of the log", Cause.KILL),
        ("client", "webhook without an answer", Cause.KILL),
        ("controller-1", "holders beside each other", Cause.KILL),
        ("controller-1", "custom resource not served yet", Cause.START),
        ("controller-0", "answer that came too late at the start", Cause.START),
        ("gpuwarden-scheduler", "Binding before the replica is ready", Cause.KILL),
    ],
)
def test_what_something_brings_is_explained_by_nothing_else(
    program: str, name: str, cause: Cause
) -> None:
    line = ErrorLine(program, SEEN[program, name], AT)
    for each in Cause:
        found = sort([line], EXPECTED, [Span(each, AT - 5, AT, program)])
        assert (name in [kind.name for kind in found.explained]) is (each is cause)
    assert sort([line], EXPECTED, [Span(cause, AT - 120, AT - 90, program)]).unexplained == (line,)


def test_a_connection_without_a_call_is_explained_by_the_start_as_well() -> None:
    line = ErrorLine("controller-0", SEEN["controller-0", "agent's connection without a call"], AT)
    start = Span(Cause.START, 0, AT - GRACE_S)
    (kind,) = sort([line], EXPECTED, [start]).explained
    assert kind.name == "agent's connection that took too long at the start"
    assert sort([line], EXPECTED, [replace(start, over=AT - 2 * GRACE_S)]).unexplained == (line,)


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
        ("controller-0", 'evidence.refused {"code": "CHALLENGE_EXPIRED", "detail": "else"}'),
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
        (
            "agents",
            "no connection to spiffe://t/gpuwarden/controller at 127.0.0.1: refused: no h2",
        ),
        ("agents", "asyncio Task exception was never retrieved"),
        ("kube-apiserver", 'wrap.go:53 "Timeout or abort while handling" URI="/api/v1/secrets"'),
        ("kube-apiserver", "FinishRequest: post-timeout activity - panicked: true, err: x"),
    ],
)
def test_anything_else_is_not(program: str, text: str) -> None:
    line = ErrorLine(program, text, AT)
    assert sort([line], EXPECTED, OF_ALL).unexplained == (line,)
