"""The Kubernetes API, what is installed, controllers, SPIRE."""

from dataclasses import replace

from gpuwarden.doctor.facts import (
    DAEMON_SETS,
    DEFINITIONS,
    INSTALLING_RIGHTS,
    LEASES,
    NAMESPACES,
    NODES,
    SPIFFE_IDS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    Fact,
)
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.doctor_facts import (
    added,
    changed,
    measured,
    standing,
    told,
    without,
)
from tests.builders.doctor_faults import (
    A_READING,
    FAILED,
    NOT_CHECKED,
    SPIRE_OFF,
    WARNING,
    Fault,
    entries,
    leaving,
    report,
    rights,
    selecting,
    spec,
    tolerating,
    without_svids,
)

FAULTS = [
    Fault(
        "kubernetes-api",
        lambda x: replace(x, server=Fact(), api_error="refused"),
        FAILED,
        "^refused$",
    ),
    Fault("kubernetes-api", lambda x: replace(x, server=Fact(why="HTTP 403")), FAILED, "403"),
    Fault("kubernetes-version", lambda x: replace(x, server=Fact("v1.32.9")), FAILED, "v1.32.9"),
    Fault("kubernetes-version", lambda x: replace(x, server=Fact("v2")), FAILED, "v2"),
    Fault(
        "kubernetes-apis",
        lambda x: replace(x, served=Fact(x.served.get() - {"policy/v1"})),
        FAILED,
        "^not served: policy/v1$",
    ),
    Fault("caller-reads", rights(A_READING), WARNING, "^not allowed: list nodes$"),
    Fault(
        "caller-reads",
        lambda x: replace(x, rights={}),
        NOT_CHECKED,
        "not asked",
    ),
    Fault(
        "caller-installs",
        rights(INSTALLING_RIGHTS[-1]),
        FAILED,
        "create validatingadmissionpolicybindings.admissionregistration.k8s.io$",
    ),
    Fault(
        "not-installed",
        lambda x: changed(x, NAMESPACES, "gpuwarden-system", leaving),
        FAILED,
        "is being deleted",
    ),
    Fault(
        "not-installed",
        lambda x: added(
            x, DAEMON_SETS, {"metadata": {"name": "gpuwarden-agent", "namespace": "other"}}
        ),
        FAILED,
        "^gpuwarden is installed in other$",
    ),
    Fault(
        "not-installed",
        lambda x: added(x, DEFINITIONS, {"metadata": {"name": "nodeenrollments.gpuwarden.dev"}}),
        WARNING,
        "left from an earlier installation: nodeenrollments.gpuwarden.dev",
    ),
    Fault("storage", lambda x: without(x, STORAGE_CLASSES), FAILED, "^no StorageClass$"),
    Fault(
        "storage",
        lambda x: changed(x, STORAGE_CLASSES, "fast", lambda y: y["metadata"].pop("annotations")),
        WARNING,
        "^no default among fast$",
    ),
    Fault(
        "namespace",
        lambda x: without(x, NAMESPACES, "gpuwarden-system"),
        FAILED,
        "^no namespace gpuwarden-system$",
    ),
    Fault(
        "namespace",
        lambda x: changed(x, NAMESPACES, "gpuwarden-system", leaving),
        FAILED,
        "being deleted",
    ),
    Fault(
        "custom-resources",
        lambda x: without(x, DEFINITIONS, "gpureservations.gpuwarden.dev"),
        FAILED,
        "^gpureservations.gpuwarden.dev is missing$",
    ),
    Fault(
        "custom-resources",
        lambda x: changed(
            x, DEFINITIONS, "nodeenrollments.gpuwarden.dev", lambda y: y.pop("status")
        ),
        FAILED,
        "^nodeenrollments.gpuwarden.dev is not established$",
    ),
    Fault(
        "custom-resources",
        lambda x: changed(
            x,
            DEFINITIONS,
            "nodeenrollments.gpuwarden.dev",
            lambda y: y["spec"]["versions"][0].update(storage=False),
        ),
        FAILED,
        "^nodeenrollments.gpuwarden.dev is not stored as v1alpha1$",
    ),
    Fault(
        "controllers-run",
        lambda x: without(x, STATEFUL_SETS),
        FAILED,
        "^no StatefulSet gpuwarden-controller in gpuwarden-system$",
    ),
    Fault(
        "controllers-run",
        lambda x: changed(x, STATEFUL_SETS, None, lambda y: y["status"].update(readyReplicas=1)),
        FAILED,
        "^1 of 2 ready$",
    ),
    Fault(
        "controllers-run",
        lambda x: changed(
            x, STATEFUL_SETS, None, lambda y: y.update(spec=y["spec"] | {"replicas": 0})
        ),
        FAILED,
        "^2 of 0 ready$",
    ),
    Fault(
        "controllers-run",
        lambda x: changed(x, STATEFUL_SETS, None, spec(replicas=1)),
        WARNING,
        "^2 of 1 ready$",
    ),
    Fault(
        "controller-answers",
        lambda x: replace(x, replicas=Fact(), controller_error="nobody listens"),
        FAILED,
        "^nobody listens$",
    ),
    Fault(
        "controller-ready",
        lambda x: told(x, not_ready="svid: none"),
        FAILED,
        "^svid: none$",
    ),
    Fault(
        "controller-warnings",
        lambda x: told(x, warnings=["insecure", "late"]),
        WARNING,
        "^insecure; late$",
    ),
    Fault("versions", lambda x: told(x, version="9.9.9"), WARNING, "controller 9.9.9, 2 agents"),
    Fault(
        "versions",
        lambda x: told(x, agents=[pb.Count(name="0.0.1", count=3)]),
        WARNING,
        "3 agents 0.0.1, this program",
    ),
    Fault("lease", lambda x: without(x, LEASES), FAILED, "^no Lease gpuwarden-controller$"),
    Fault(
        "lease",
        lambda x: changed(x, LEASES, None, spec(renewTime="2026-03-01T11:59:44.000000Z")),
        FAILED,
        "^gpuwarden-controller-1 renewed it 16 s ago$",
    ),
    Fault(
        "lease",
        lambda x: changed(x, LEASES, None, spec(holderIdentity="")),
        FAILED,
        "^nobody holds it$",
    ),
    Fault(
        "store",
        lambda x: measured(x, "gpuwarden_store_available", 0),
        FAILED,
        "^enrollments cannot be read$",
    ),
    Fault(
        "store",
        lambda x: measured(x, "gpuwarden_ledger_available", 0),
        FAILED,
        "^the ledger cannot be read$",
    ),
    Fault(
        "store",
        lambda x: measured(x, 'gpuwarden_kube_age_seconds{resource="pods"}', 61),
        FAILED,
        "^pods are 61 s old$",
    ),
    Fault(
        "store",
        lambda x: measured(x, "gpuwarden_store_available", None),
        NOT_CHECKED,
        "not among the controller's metrics",
    ),
    Fault("enforcement", report, WARNING, "nothing is refused"),
    Fault(
        "evaluation",
        lambda x: measured(x, "gpuwarden_evaluation", 1),
        WARNING,
        "^an evaluation: GPUs may be made up",
    ),
    Fault(
        "scorer",
        lambda x: measured(x, 'gpuwarden_hint_scorer_available{path="/v1/observe"}', 0),
        WARNING,
        "^five failures in a row at /v1/observe$",
    ),
    Fault(
        "scorer",
        lambda x: measured(x, "gpuwarden_hint_runs_unsaved", 2),
        WARNING,
        "^2 runs that the scorer could not save$",
    ),
    Fault(
        "scorer",
        lambda x: measured(x, "gpuwarden_hint_scorer_available", None),
        NOT_CHECKED,
        "^no scorer is configured$",
    ),
    Fault(
        "spire-installed",
        lambda x: without(x, DAEMON_SETS, "spire-agent"),
        WARNING,
        "^no DaemonSet with spire-agent in its name or image$",
    ),
    Fault(
        "spire-installed",
        lambda x: changed(
            changed(x, DAEMON_SETS, "spire-agent", tolerating()),
            NODES,
            "gpu-a2",
            spec(taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]),
        ),
        FAILED,
        "^no SPIRE agent on gpu-a1, gpu-a2: the DaemonSet spire-agent does not tolerate"
        " gpuwarden.dev/managed:NoExecute, nvidia.com/gpu:NoSchedule$",
    ),
    Fault(
        "spire-installed",
        lambda x: changed(x, DAEMON_SETS, "spire-agent", selecting(pool="cpu")),
        FAILED,
        "^no SPIRE agent on gpu-a1, gpu-a2: node selector or affinity of the DaemonSet spire-agent",
    ),
    Fault(
        "spire-server",
        lambda x: told(x, spire=pb.SpireServer(configured=True, error="connection refused")),
        FAILED,
        "^connection refused$",
    ),
    Fault("spire-server", lambda x: told(x, spire=SPIRE_OFF), WARNING, "ends at L0"),
    Fault(
        "spire-policy",
        lambda x: told(x, spire=pb.SpireServer(configured=True, excessive=True)),
        FAILED,
        "more than read",
    ),
    Fault("spire-policy", lambda x: told(x, spire=SPIRE_OFF), NOT_CHECKED, "is off"),
    Fault(
        "spire-policy",
        lambda x: told(x, spire=pb.SpireServer(configured=True, error="gone")),
        NOT_CHECKED,
        "does not answer: gone",
    ),
    Fault(
        "spire-entries",
        lambda x: told(x, spire=pb.SpireServer(configured=True, unregistered=True)),
        FAILED,
        "^no registration entry of the controller$",
    ),
    Fault(
        "spire-entries",
        lambda x: standing(x, state="revoked", code="SPIRE_ENTRY_NOT_FOUND"),
        FAILED,
        "^SPIRE_ENTRY_NOT_FOUND of gpu-a1$",
    ),
    Fault(
        "spire-entries",
        lambda x: added(
            x, SPIFFE_IDS, {"metadata": {"name": "gpuwarden-controller"}, "spec": {"admin": True}}
        ),
        FAILED,
        "^gpuwarden-controller has admin: true$",
    ),
    Fault(
        "spire-entries",
        lambda x: without_svids(added(x, SPIFFE_IDS, *entries())),
        FAILED,
        "^with no className, no SPIRE controller manager handles ClusterSPIFFEID gpuwarden-agent,"
        " gpuwarden-controller$",
    ),
    Fault(
        "spire-entries",
        lambda x: without_svids(
            added(x, SPIFFE_IDS, *entries(class_name="a", podsSelected=0, namespacesSelected=1))
        ),
        FAILED,
        "makes no entries of ClusterSPIFFEID gpuwarden-agent: namespacesSelected 1$",
    ),
    Fault("spire-entries", lambda x: told(x, spire=SPIRE_OFF), NOT_CHECKED, "is off"),
    Fault(
        "spire-entries",
        lambda x: told(x, spire=pb.SpireServer(configured=True, error="gone")),
        NOT_CHECKED,
        "does not answer: gone",
    ),
    Fault(
        "svids",
        lambda x: measured(x, "gpuwarden_svid_expires_seconds", 0),
        FAILED,
        "no valid SVID",
    ),
    Fault(
        "svids",
        lambda x: measured(x, "gpuwarden_svid_expires_seconds", 59),
        WARNING,
        "ends in 59 s",
    ),
    Fault(
        "svids",
        lambda x: standing(x, state="stale", code="SVID_EXPIRED"),
        FAILED,
        "^SVID_EXPIRED of gpu-a1$",
    ),
    Fault(
        "svids",
        lambda x: measured(x, "gpuwarden_svid_expires_seconds", None),
        NOT_CHECKED,
        "not among",
    ),
]
