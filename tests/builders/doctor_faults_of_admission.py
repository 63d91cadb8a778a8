"""Webhooks and certificates, scheduler, policies, audit log."""

from dataclasses import replace

from gpuwarden.doctor.facts import (
    ADMISSION_POLICIES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    MUTATING,
    NAMESPACES,
    POLICY_BINDINGS,
    VALIDATING,
    DryRun,
    Fact,
    Facts,
    Logs,
    LogVerdict,
)
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.doctor_facts import (
    NOW,
    added,
    changed,
    created,
    denied,
    measured,
    told,
    without,
)
from tests.builders.doctor_faults import (
    DAY,
    FAILED,
    NOT_CHECKED,
    PODS_IN,
    WARNING,
    Fault,
    bundle,
    calling,
    configured,
    labelled,
    leave_out,
    listening,
    namespaces_only,
    report,
    rules,
    spec,
    webhook,
)

SPIRE_ENFORCED = {
    "metadata": {"name": "spire-server", "labels": {"gpuwarden.dev/enforce": "true"}},
}


def without_webhooks(facts: Facts) -> Facts:
    """Installed without them: a pod is created as it is asked for."""
    listeners = [x for x in facts.asked[0].status.listeners if x.name != "admission"]
    pod = Fact(DryRun(201, {"spec": {"containers": [{"name": "doctor"}]}}))
    found = told(without(without(facts, MUTATING), VALIDATING), listeners=listeners)
    return replace(found, asking_pod=pod, wrong_pod=pod)


def logs(facts: Facts, *verdicts: LogVerdict, unread: tuple[str, ...] = ()) -> Facts:
    """These were verified, and some could not be read."""
    return replace(facts, logs=Fact(Logs(verdicts, unread)))


FAULTS = [
    Fault("webhooks-registered", without_webhooks, WARNING, "^none, and the controller serves"),
    Fault(
        "webhooks-registered",
        lambda x: without(x, NAMESPACES, "spire-system"),
        WARNING,
        "^pods of spire-system would start without gpuwarden, and nobody has made",
    ),
    Fault("webhooks-ca", without_webhooks, NOT_CHECKED, "^no webhook is registered$"),
    Fault("pod-mutated", without_webhooks, NOT_CHECKED, "^there are no webhooks$"),
    Fault("pod-refused", without_webhooks, NOT_CHECKED, "^there are no webhooks$"),
    Fault(
        "webhooks-registered",
        lambda x: without(without(x, MUTATING), VALIDATING),
        FAILED,
        "^no mutating gpuwarden-pods; ",
    ),
    Fault(
        "webhooks-registered",
        lambda x: replace(
            without_webhooks(x),
            objects={**x.objects, VALIDATING: x.objects[VALIDATING], MUTATING: Fact(())},
        ),
        FAILED,
        "^no mutating gpuwarden-pods; ",
    ),
    Fault(
        "webhooks-registered",
        lambda x: without(x, VALIDATING),
        FAILED,
        "^no validating gpuwarden-pods$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: changed(
            x, MUTATING, "gpuwarden-bindings", webhook(0, lambda y: rules(y, "bindings"))
        ),
        FAILED,
        r"^enforced.bindings.gpuwarden.dev \(mutating\) is not asked about CREATE bindings$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: changed(
            x,
            VALIDATING,
            "gpuwarden-pods",
            webhook(1, lambda y: rules(y, "pods/ephemeralcontainers")),
        ),
        FAILED,
        "is not asked about UPDATE pods/ephemeralcontainers$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: changed(x, MUTATING, "gpuwarden-pods", lambda y: y["webhooks"].pop()),
        FAILED,
        r"^gpuwarden-pods \(mutating\) lacks asking.pods.gpuwarden.dev$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: changed(
            x,
            MUTATING,
            "gpuwarden-pods",
            webhook(0, lambda y: y.update(failurePolicy="Ignore")),
        ),
        FAILED,
        "has failurePolicy: Ignore$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: changed(x, MUTATING, "gpuwarden-pods", webhook(0, leave_out("team-a"))),
        FAILED,
        "leaves out team-a$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: changed(x, MUTATING, "gpuwarden-pods", webhook(0, leave_out("gpu-operator"))),
        WARNING,
        "^pods of gpu-operator start without gpuwarden$",
    ),
    Fault(
        "webhooks-registered",
        lambda x: added(x, NAMESPACES, SPIRE_ENFORCED),
        FAILED,
        "leaves out spire-server; ",
    ),
    Fault(
        "webhooks-ca",
        bundle(""),
        FAILED,
        r"^no caBundle: enforced.pods.gpuwarden.dev \(mutating\)$",
    ),
    Fault(
        "webhooks-ca",
        bundle("%%%", of=1),
        FAILED,
        r"^no caBundle: asking.pods.gpuwarden.dev \(mutating\)$",
    ),
    Fault(
        "webhooks-ca",
        lambda x: without(without(x, MUTATING), VALIDATING),
        NOT_CHECKED,
        "^no webhook is registered$",
    ),
    Fault(
        "webhooks-ca",
        lambda x: told(x, listeners=[]),
        NOT_CHECKED,
        "^the controller has no listener admission$",
    ),
    Fault(
        "certificates",
        lambda x: replace(x, now=Fact(NOW + 90 * DAY)),
        FAILED,
        "^(extender|admission) serves: it ends at 2026-05-30T12:00:00Z$",
    ),
    Fault(
        "certificates",
        lambda x: replace(x, now=Fact(NOW + 77 * DAY)),
        WARNING,
        "^not renewed: admission serves, extender serves;",
    ),
    Fault(
        "certificates",
        lambda x: told(without(without(x, MUTATING), VALIDATING), listeners=[]),
        NOT_CHECKED,
        "^no listener has a certificate$",
    ),
    Fault(
        "api-server-certificate",
        listening(demands_certificate=False),
        WARNING,
        "whoever reaches their port",
    ),
    Fault("api-server-certificate", listening(client_ends=""), NOT_CHECKED, "within a day"),
    Fault(
        "api-server-certificate",
        listening(client_ends="2026-03-01T12:00:00Z"),
        FAILED,
        "^the API server's ends at 2026-03-01T12:00:00Z$",
    ),
    Fault(
        "api-server-certificate",
        listening(client_ends="2026-03-15T11:59:59Z"),
        WARNING,
        "2026-03-15",
    ),
    Fault(
        "scheduler-certificate",
        listening(client_ends="2026-03-01T11:00:00Z"),
        FAILED,
        "^the scheduler's ends at",
    ),
    Fault(
        "scheduler-certificate", listening(client_ends=""), NOT_CHECKED, "no scheduler has called"
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(
            x, asking_pod=Fact(DryRun(201, {"spec": {"containers": [{"name": "doctor"}]}}))
        ),
        FAILED,
        "admitted without NVIDIA_VISIBLE_DEVICES",
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(
            x, asking_pod=Fact(calling("...: x509: certificate signed by unknown authority"))
        ),
        FAILED,
        "^the caBundle does not verify what is served: Internal",
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(x, asking_pod=Fact(calling("no endpoints available for service"))),
        FAILED,
        "^no controller that is ready stands behind the Service: ",
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(x, asking_pod=Fact(calling("remote error: tls: certificate required"))),
        FAILED,
        "^the webhooks do not accept the API server's certificate: ",
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(x, asking_pod=Fact(calling("teapot"))),
        FAILED,
        "^the API server cannot call the webhook: ",
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(x, asking_pod=Fact(denied("CONTROLLER_NOT_READY first round"))),
        FAILED,
        "CONTROLLER_NOT_READY first round$",
    ),
    Fault(
        "pod-mutated",
        lambda x: replace(x, asking_pod=Fact(DryRun(403, {"message": PODS_IN}))),
        NOT_CHECKED,
        "^the API server or another policy refused the pod: pods",
    ),
    Fault("pod-mutated", report, NOT_CHECKED, "report"),
    Fault(
        "pod-refused",
        lambda x: replace(x, wrong_pod=Fact(created({}))),
        FAILED,
        "whose requirement cannot be read",
    ),
    Fault(
        "pod-refused",
        lambda x: replace(x, wrong_pod=Fact(calling("connection refused"))),
        FAILED,
        "^nobody listens at the webhooks' address: ",
    ),
    Fault(
        "pod-refused",
        lambda x: replace(report(x), wrong_pod=Fact(created({}))),
        NOT_CHECKED,
        "report",
    ),
    Fault(
        "namespaces-enforced",
        lambda x: changed(x, NAMESPACES, "team-a", labelled(**{"gpuwarden.dev/enforce": "True"})),
        FAILED,
        "^team-a has gpuwarden.dev/enforce=True, which enforces nothing$",
    ),
    Fault(
        "namespaces-enforced",
        lambda x: changed(
            x, NAMESPACES, "kube-system", labelled(**{"gpuwarden.dev/enforce": "true"})
        ),
        FAILED,
        "^kube-system has the label",
    ),
    Fault(
        "namespaces-enforced",
        lambda x: without(x, NAMESPACES, "team-a"),
        WARNING,
        "^no namespace is enforced",
    ),
    Fault(
        "scheduler-runs",
        lambda x: changed(x, DEPLOYMENTS, None, lambda y: y.pop("status")),
        FAILED,
        "^0 of 2 ready$",
    ),
    Fault(
        "scheduler-runs",
        lambda x: changed(x, DEPLOYMENTS, None, lambda y: y["status"].update(readyReplicas=1)),
        WARNING,
        "^1 of 2 ready$",
    ),
    Fault("scheduler-runs", lambda x: without(x, DEPLOYMENTS), NOT_CHECKED, "cluster's own"),
    Fault(
        "scheduler-configuration",
        lambda x: without(x, DEPLOYMENTS),
        NOT_CHECKED,
        "cluster's own",
    ),
    Fault(
        "scheduler-configuration",
        lambda x: without(x, CONFIG_MAPS),
        NOT_CHECKED,
        "no ConfigMap of the Deployment",
    ),
    Fault("scheduler-configuration", configured("profiles:", "profiles: {"), FAILED, "^line "),
    Fault(
        "scheduler-configuration",
        configured("ignorable: false", "ignorable: true"),
        FAILED,
        "^ignorable is true",
    ),
    Fault(
        "scheduler-configuration",
        configured("nodeCacheCapable: true", "nodeCacheCapable: false"),
        FAILED,
        "^nodeCacheCapable is not true$",
    ),
    Fault(
        "scheduler-configuration",
        configured("httpTimeout: 5s", "httpTimeout: 4.9s"),
        FAILED,
        "^httpTimeout is 4.9s",
    ),
    Fault(
        "scheduler-configuration",
        configured("httpTimeout: 5s", "httpTimeout: 1m"),
        FAILED,
        "^httpTimeout is 1m",
    ),
    Fault(
        "scheduler-configuration",
        configured("httpTimeout: 5s", "httpTimeout: soon"),
        FAILED,
        "^httpTimeout is soon",
    ),
    Fault(
        "scheduler-configuration",
        configured("percentageOfNodesToScore: 100", ""),
        FAILED,
        "^percentageOfNodesToScore is not set, expected 100$",
    ),
    Fault(
        "scheduler-configuration",
        configured("preemptVerb: preempt", ""),
        FAILED,
        "^preemptVerb is missing",
    ),
    Fault(
        "scheduler-configuration",
        configured("prioritizeVerb: prioritize", ""),
        FAILED,
        "^prioritizeVerb",
    ),
    Fault("scheduler-configuration", configured("filterVerb: filter", ""), FAILED, "^0 extenders"),
    Fault(
        "scheduler-configuration", configured("enableHTTPS: true", ""), FAILED, "is not verified$"
    ),
    Fault("scheduler-configuration", configured("caFile:", "caFiles:"), FAILED, "is not verified$"),
    Fault(
        "scheduler-configuration",
        configured("https://", "http://"),
        FAILED,
        "^urlPrefix is not https",
    ),
    Fault(
        "scheduler-configuration",
        configured("weight: 5", "weight: 5\n    bindVerb: bind"),
        FAILED,
        "^bindVerb is set$",
    ),
    Fault(
        "scheduler-configuration",
        configured("weight: 5", "weight: 5\n    managedResources: [{name: nvidia.com/gpu}]"),
        FAILED,
        "^managedResources is set",
    ),
    Fault(
        "scheduler-configuration",
        configured("schedulerName: gpuwarden", "schedulerName: other"),
        FAILED,
        "^no profile gpuwarden$",
    ),
    Fault(
        "scheduler-configuration",
        configured("kubescheduler.config.k8s.io/v1", "kubescheduler.config.k8s.io/v1beta3"),
        FAILED,
        "^apiVersion is kubescheduler.config.k8s.io/v1beta3$",
    ),
    Fault(
        "scheduler-configuration",
        configured("kind: KubeSchedulerConfiguration", "kind: Other # KubeSchedulerConfiguration"),
        FAILED,
        "^no KubeSchedulerConfiguration$",
    ),
    Fault(
        "scheduler-extender",
        lambda x: measured(x, "gpuwarden_extender_requests_total", None),
        NOT_CHECKED,
        "^nobody has asked the extender of a replica since it started$",
    ),
    Fault(
        "policies-bound",
        lambda x: without(x, ADMISSION_POLICIES, "gpuwarden-keys"),
        FAILED,
        "^gpuwarden-keys is missing$",
    ),
    Fault(
        "policies-bound",
        lambda x: without(x, POLICY_BINDINGS, "gpuwarden-devices"),
        FAILED,
        "^gpuwarden-devices is not bound$",
    ),
    Fault(
        "policies-bound",
        lambda x: changed(x, POLICY_BINDINGS, "gpuwarden-devices", spec(policyName="other")),
        FAILED,
        "^gpuwarden-devices is not bound$",
    ),
    Fault(
        "policies-bound",
        lambda x: changed(
            x, POLICY_BINDINGS, "gpuwarden-bindings", spec(validationActions=["Warn", "Audit"])
        ),
        FAILED,
        "^gpuwarden-bindings is bound with Warn, Audit$",
    ),
    Fault(
        "policies-bound",
        lambda x: changed(x, ADMISSION_POLICIES, "gpuwarden-keys", spec(failurePolicy="Ignore")),
        FAILED,
        "^gpuwarden-keys has failurePolicy: Ignore$",
    ),
    Fault(
        "policies-bound",
        lambda x: changed(
            x, POLICY_BINDINGS, "gpuwarden-keys", spec(matchResources={"namespaceSelector": {}})
        ),
        FAILED,
        "narrows it by matchResources$",
    ),
    Fault(
        "protection-bound",
        lambda x: without(x, POLICY_BINDINGS, "gpuwarden-protection"),
        FAILED,
        "^gpuwarden-protection is not bound$",
    ),
    Fault("protection-bound", namespaces_only, NOT_CHECKED, "protection is namespaces"),
    Fault(
        "log-available",
        lambda x: measured(x, "gpuwarden_audit_available", 0),
        FAILED,
        "takes no grants",
    ),
    Fault(
        "log-available",
        lambda x: measured(x, "gpuwarden_audit_available", None),
        NOT_CHECKED,
        "not among",
    ),
    Fault(
        "log-verifies",
        lambda x: logs(x, LogVerdict("lab/a", folder="/log", broken="record 7: its digest")),
        FAILED,
        "^/log: record 7: its digest$",
    ),
    Fault(
        "log-verifies",
        lambda x: logs(x, LogVerdict("lab/b"), LogVerdict("lab/c", broken="record 7: changed")),
        FAILED,
        "^lab/c: record 7: changed$",
    ),
    Fault("log-verifies", lambda x: logs(x, unread=("lab/b: gone",)), WARNING, "lab/b: gone"),
    Fault(
        "log-verifies",
        lambda x: logs(x, LogVerdict("lab/b", 2000, 4711)),
        WARNING,
        "^lab/b: no signature verified, as 2000 records have no checkpoint; ",
    ),
    Fault(
        "log-verifies", lambda x: replace(x, logs=Fact(why="you may not")), NOT_CHECKED, "may not"
    ),
    Fault(
        "log-witnesses",
        lambda x: told(x, alarms=[pb.WitnessAlarm(node="gpu-a1", codes=["LOG_RESET"])]),
        FAILED,
        "^gpu-a1 reports LOG_RESET$",
    ),
]
