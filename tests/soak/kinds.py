"""The kinds of errors that a soak brings about, each with what brings it.

A pattern is as narrow as the message allows, and what a kill or a rotation brings may be said only
while it lasts: a line of any other kind, or at any other time, fails the soak.
"""

from typing import Final

from controller.binding.reconciler import ROUND_SECONDS
from controller.rpc.handshakes import GRACE_S
from tests.soak.load import CLIENT
from tests.soak.log_lines import LATE_S, Cause, Expected

AGENTS: Final = "agents"
"""Program in the report: the process with all agents, and the soak itself."""
_CONTROLLER: Final = "controller-"
_SCHEDULER: Final = "gpuwarden-scheduler"
_API_SERVER: Final = "kube-apiserver"
_NO_CALL_LATE_S: Final = GRACE_S + 5 + LATE_S
"""A connection may make a call for so long; the controller looks each five seconds."""
_COMPARED_LATE_S: Final = 2 * 10 * 3 * ROUND_SECONDS + LATE_S
"""Ledger and pods are compared each ten rounds: once that shows a difference, once its end. On a
busy machine a round takes three times as long as it should."""

EXPECTED: Final = (
    Expected(
        "made-up trust domain",
        AGENTS,
        r"INSECURE: throwaway SPIFFE trust domain",
        "the soak's SVIDs come from a CA of its own, which says so at its start",
    ),
    Expected(
        "no connection to a replica",
        AGENTS,
        r"no connection to spiffe://\S+/gpuwarden/controller at [\d.]+: unreachable: ",
        "the replica was killed or ended; its agents dial until it is back",
        during=(Cause.KILL, Cause.STOP),
    ),
    Expected(
        "connection to a replica that ended",
        AGENTS,
        r"no connection to spiffe://\S+/gpuwarden/controller at [\d.]+: refused: "
        r"(server ended the connection|ended) after the handshake",
        "the replica was killed or ended between TLS and the agent's call; the agent dials again",
        during=(Cause.KILL, Cause.STOP),
    ),
    Expected(
        "webhook without an answer",
        CLIENT,
        r'failed calling webhook "[\w.-]+\.gpuwarden\.dev"',
        "the replica was killed while it had the call; a client that repeats it is served",
        during=(Cause.KILL,),
    ),
    Expected(
        "binding webhook without an answer",
        _SCHEDULER,
        r'failed calling webhook \\?"[\w.-]+\.gpuwarden\.dev',
        "the replica was killed while it had the call; the scheduler tries the pod again",
        during=(Cause.KILL,),
    ),
    Expected(
        "extender without an answer",
        _SCHEDULER,
        r"https://127\.0\.0\.1:\d+/(filter|prioritize|preempt)",
        "the replica was killed while it had the call; the scheduler tries the pod again",
        during=(Cause.KILL,),
    ),
    Expected(
        "call of a replica that ended",
        _API_SERVER,
        r'"(Timeout or abort while handling|Post-timeout activity)" .*(URI|path)="/'
        r"(apis/gpuwarden\.dev/|api/v1/(nodes|pods|namespaces)\b"
        r"|apis/coordination\.k8s\.io/v1/namespaces/gpuwarden-system/leases/)",
        "the replica was killed or ended while it waited for the answer",
        during=(Cause.KILL, Cause.STOP),
    ),
    Expected(
        "answer to a replica that ended",
        _API_SERVER,
        r"unable to write a (fallback )?JSON response: http: Handler timeout"
        r'|not an metav1\.Status: &errors\.errorString\{s:\\"(context canceled|http: Handler time)'
        r"|FinishRequest: post-timeout activity .*panicked: false, err: context canceled",
        "nobody took the answer: the replica was killed or ended while it waited for it",
        during=(Cause.KILL, Cause.STOP),
    ),
    Expected(
        "pod changed under its Binding",
        _SCHEDULER,
        r"Operation cannot be fulfilled on pods .*ResourceVersion in precondition",
        "the pod was requeued while it was being bound: an older Binding must fail",
    ),
    Expected(
        "GPU taken meanwhile",
        _SCHEDULER,
        r"denied the request: gpuwarden: (GPU_BUSY|LEDGER_CONFLICT) ",
        "the GPU went to another pod after /filter; the scheduler tries the pod again",
    ),
    Expected(
        "Binding before the replica is ready",
        _SCHEDULER,
        r"denied the request: gpuwarden: CONTROLLER_NOT_READY ",
        "the replica has started again and still compares its log with the ledger; the scheduler"
        " tries the pod again",
        during=(Cause.KILL,),
        late_s=_COMPARED_LATE_S,
    ),
    Expected(
        "no CA of an aggregation layer",
        "",
        r"missing content for CA bundle .*requestheader-client-ca-file",
        "the lab's API server has none, and nobody uses it",
    ),
    Expected(
        "answer of a stream that was replaced",
        _CONTROLLER,
        r'^evidence\.refused .*"code": "CHALLENGE_EXPIRED".*"detail": "newer facts or a later ',
        "while its SVID rotates an agent has two streams; the newer one was heard first",
        during=(Cause.ROTATION,),
    ),
    Expected(
        "answer that came too late at the start",
        _CONTROLLER,
        r'^evidence\.refused .*"code": "CHALLENGE_EXPIRED".*"detail": "the challenge was answered ',
        "all agents start at once, in one process; on a busy machine some wait longer than a"
        " challenge is valid",
        during=(Cause.START,),
    ),
    Expected(
        "records that no checkpoint covers",
        _CONTROLLER,
        r"^audit\.(unsigned|healed) ",
        "the replica was killed while it wrote; the next checkpoint covers them",
        during=(Cause.KILL,),
        own=True,
    ),
    Expected(
        "GPUs held on the word of the log",
        _CONTROLLER,
        r"^ledger\.kept ",
        "their pods ended while the replica was down, so its log has no end of them",
        during=(Cause.KILL,),
        own=True,
        late_s=_COMPARED_LATE_S,
    ),
    Expected(
        "holders beside each other",
        _CONTROLLER,
        r'^ledger\.drift .*"counts": (\{\}|\{"held_twice": \d+\})',
        "a GPU held on the word of the log had been given on; the older holder goes by itself",
        during=(Cause.KILL,),
        late_s=_COMPARED_LATE_S,
    ),
    Expected(
        "connection without a request",
        _CONTROLLER,
        r'^connections\.cut .*"cause": "no-request".*"listener": "(admission|extender)"',
        "API server or scheduler opened one connection more than it used",
    ),
    Expected(
        "agent's connection without a call",
        _CONTROLLER,
        r'^tls\.handshake\.failed .*"cause": "no-call".*"listener": "agents"',
        "an agent gave it up for another: its SVID had rotated meanwhile",
        during=(Cause.ROTATION,),
        late_s=_NO_CALL_LATE_S,
    ),
    Expected(
        "agent's connection that took too long at the start",
        _CONTROLLER,
        r'^tls\.handshake\.failed .*"cause": "no-call".*"listener": "agents"',
        "all agents start at once, in one process; on a busy machine some give a handshake up and"
        " begin it again",
        during=(Cause.START,),
        late_s=_NO_CALL_LATE_S,
    ),
    Expected(
        "custom resource not served yet",
        _CONTROLLER,
        r"^kube\.cache\.trouble .*storage is \(re\)initializing",
        "its definition was made a moment before the replica started",
        during=(Cause.START,),
    ),
    Expected(
        "leadership given up",
        _CONTROLLER,
        r"^leader\.lost ",
        "the soak ends the replica at last, and a leader that ends releases its Lease",
        during=(Cause.STOP,),
        own=True,
    ),
)
