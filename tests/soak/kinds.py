"""The kinds of errors that a soak brings about, each with what brings it.

A pattern is as narrow as the message allows, and what a kill or a rotation brings may be said only
while it lasts: a line of any other kind, or at any other time, fails the soak.
"""

from typing import Final

from controller.rpc.handshakes import GRACE_S
from tests.soak.load import CLIENT
from tests.soak.log_lines import LATE_S, Cause, Expected

AGENTS: Final = "agents"
"""Program in the report: the process with all agents, and the soak itself."""
_CONTROLLER: Final = "controller-"
_SCHEDULER: Final = "gpuwarden-scheduler"
_NO_CALL_LATE_S: Final = GRACE_S + 5 + LATE_S
"""A connection may make a call for so long; the controller looks each five seconds."""

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
        "pod changed under its Binding",
        _SCHEDULER,
        r"Operation cannot be fulfilled on pods .*ResourceVersion in precondition",
        "the pod was requeued while it was being bound: an older Binding must fail",
    ),
    Expected(
        "Binding refused for now",
        _SCHEDULER,
        r"denied the request: gpuwarden: (GPU_BUSY|CONTROLLER_NOT_READY) ",
        "the GPU went to another pod after /filter, or the replica has just started again",
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
        r'^evidence\.refused .*"code": "CHALLENGE_EXPIRED"',
        "while its SVID rotates an agent has two streams; the newer one was heard first",
        during=(Cause.ROTATION,),
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
        r"^ledger\.held ",
        "their pods ended while the replica was down, so its log has no end of them",
        during=(Cause.KILL,),
        own=True,
    ),
    Expected(
        "holders beside each other",
        _CONTROLLER,
        r'^ledger\.drift .*"counts": (\{\}|\{"held_twice": \d+\})',
        "a GPU held on the word of the log had been given on; the older holder goes by itself",
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
        "custom resource not served yet",
        _CONTROLLER,
        r"^kube\.cache\.trouble .*storage is \(re\)initializing",
        "its definition was made a moment before the replica started",
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
