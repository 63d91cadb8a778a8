"""Faults of one replica alone, the second; whoever asks only the first finds none of them."""

from controller.verifier.message import _skew_text
from gpuwarden.doctor.facts import MUTATING, POLICY_BINDINGS
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.doctor_facts import (
    REPLICAS,
    changed,
    measured,
    on_one,
    standing,
    told,
    unheard,
    without,
)
from tests.builders.doctor_faults import (
    FAILED,
    NOT_CHECKED,
    WARNING,
    Fault,
    listening,
    namespaces_only,
    report,
    spec,
    webhook,
)

FIRST, SECOND = REPLICAS
ALONE = f"^{SECOND}: "


FAULTS = [
    Fault(
        "controller-answers",
        lambda x: unheard(x, silent="its pod is Pending"),
        WARNING,
        f"^no answer of {SECOND}: its pod is Pending; {FIRST} of cluster prod$",
    ),
    Fault(
        "controller-ready",
        on_one(lambda x: told(x, not_ready="svid: none")),
        FAILED,
        f"{ALONE}svid: none$",
    ),
    Fault(
        "controller-warnings",
        on_one(lambda x: told(x, warnings=["insecure", "late"])),
        WARNING,
        f"{ALONE}insecure; late$",
    ),
    Fault(
        "versions",
        on_one(lambda x: told(x, version="9.9.9")),
        WARNING,
        rf"^{FIRST} \S+, {SECOND} 9.9.9, 2 agents ",
    ),
    Fault(
        "versions",
        on_one(lambda x: told(x, agents=[pb.Count(name="0.0.1", count=1)])),
        WARNING,
        "1 agent 0.0.1, ",
    ),
    Fault(
        "store",
        on_one(lambda x: measured(x, "gpuwarden_ledger_available", 0)),
        FAILED,
        f"{ALONE}the ledger cannot be read$",
    ),
    Fault("enforcement", on_one(report), WARNING, f"{ALONE}report: "),
    Fault(
        "evaluation",
        on_one(lambda x: measured(x, "gpuwarden_evaluation", 1)),
        WARNING,
        f"{ALONE}an evaluation",
    ),
    Fault(
        "scorer",
        on_one(lambda x: measured(x, 'gpuwarden_hint_scorer_available{path="/v1/score"}', 0)),
        WARNING,
        f"{ALONE}five failures in a row at /v1/score$",
    ),
    Fault(
        "spire-server",
        on_one(lambda x: told(x, spire=pb.SpireServer(configured=True, error="refused"))),
        FAILED,
        f"{ALONE}refused$",
    ),
    Fault(
        "spire-policy",
        on_one(lambda x: told(x, spire=pb.SpireServer(configured=True, excessive=True))),
        FAILED,
        f"{ALONE}the SPIRE server lets",
    ),
    Fault(
        "spire-entries",
        on_one(lambda x: told(x, spire=pb.SpireServer(configured=True, unregistered=True))),
        FAILED,
        f"{ALONE}no registration entry of the controller$",
    ),
    Fault(
        "svids",
        on_one(lambda x: measured(x, "gpuwarden_svid_expires_seconds", 59)),
        WARNING,
        f"{ALONE}the controller's ends in 59 s$",
    ),
    Fault(
        "svids",
        on_one(lambda x: measured(x, "gpuwarden_svid_expires_seconds", None)),
        NOT_CHECKED,
        f"{ALONE}gpuwarden_svid_expires_seconds is not among",
    ),
    Fault(
        "evidence",
        on_one(lambda x: standing(x, state="stale", code="NODE_STALE")),
        FAILED,
        rf"{ALONE}gpu-a1 is stale \(NODE_STALE\)$",
    ),
    Fault(
        "clocks",
        on_one(lambda x: standing(x, warnings=[_skew_text(40_000)])),
        WARNING,
        f"{ALONE}gpu-a1: the node's clock is 40 s ",
    ),
    Fault(
        "clocks",
        on_one(lambda x: measured(x, "gpuwarden_clock_suspect", 1)),
        FAILED,
        f"{ALONE}the controller's wall clock moved",
    ),
    Fault(
        "driver",
        on_one(lambda x: standing(x, lost_gpu_count=2)),
        FAILED,
        f"{ALONE}gpu-a1 has lost 2$",
    ),
    Fault(
        "modes",
        lambda x: on_one(lambda y: standing(y, mode="env"))(
            on_one(lambda y: standing(y, state="stale"), FIRST)(x)
        ),
        FAILED,
        "^gpu-a1 has mode env and a device plugin$",
    ),
    Fault("protection", on_one(namespaces_only), WARNING, f"{ALONE}protection: namespaces: "),
    Fault(
        "webhooks-registered",
        lambda x: changed(
            on_one(report, FIRST)(x),
            MUTATING,
            "gpuwarden-pods",
            webhook(0, lambda y: y.update(failurePolicy="Ignore")),
        ),
        FAILED,
        "has failurePolicy: Ignore$",
    ),
    Fault(
        "webhooks-ca",
        on_one(listening(certificates="")),
        NOT_CHECKED,
        f"{ALONE}the listener admission has no certificate$",
    ),
    Fault(
        "api-server-certificate",
        on_one(listening(demands_certificate=False)),
        WARNING,
        f"{ALONE}the webhooks demand none",
    ),
    Fault(
        "api-server-certificate",
        on_one(listening(client_ends="2026-03-01T12:00:00Z")),
        FAILED,
        f"{ALONE}the API server's ends at 2026-03-01T12:00:00Z$",
    ),
    Fault(
        "scheduler-certificate",
        on_one(listening(client_ends="2026-03-02T12:00:00Z")),
        WARNING,
        f"{ALONE}the scheduler's ends at 2026-03-02T12:00:00Z$",
    ),
    Fault(
        "pod-mutated", on_one(report), NOT_CHECKED, "^enforcement is report: nothing is patched$"
    ),
    Fault(
        "scheduler-extender",
        on_one(
            lambda x: measured(
                measured(x, "gpuwarden_tls_handshakes_completed_total", None),
                'gpuwarden_tls_handshake_failures_total{cause="version",listener="extender"}',
                4,
            )
        ),
        WARNING,
        f"^TLS handshakes failed and none succeeded: 4 on {SECOND}; 30 requests in all$",
    ),
    Fault(
        "policies-bound",
        lambda x: changed(
            on_one(report, FIRST)(x),
            POLICY_BINDINGS,
            "gpuwarden-bindings",
            spec(validationActions=["Warn", "Audit"]),
        ),
        FAILED,
        "^gpuwarden-bindings is bound with Warn, Audit$",
    ),
    Fault(
        "protection-bound",
        lambda x: without(
            on_one(namespaces_only, FIRST)(x), POLICY_BINDINGS, "gpuwarden-protection"
        ),
        FAILED,
        "^gpuwarden-protection is not bound$",
    ),
    Fault(
        "log-available",
        on_one(lambda x: measured(x, "gpuwarden_audit_available", 0)),
        FAILED,
        f"{ALONE}the log takes no grants$",
    ),
    Fault(
        "log-witnesses",
        on_one(lambda x: told(x, alarms=[pb.WitnessAlarm(node="gpu-a1", codes=["LOG_RESET"])])),
        FAILED,
        f"{ALONE}gpu-a1 reports LOG_RESET$",
    ),
]
