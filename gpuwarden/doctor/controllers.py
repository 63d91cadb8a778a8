"""Checks of the controllers: they run, answer, are ready, and reach what they store in. Pure."""

from datetime import datetime
from typing import Final

from gpuwarden.counted import counted
from gpuwarden.doctor.check import Check, Group, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.each_replica import not_asked, of_each
from gpuwarden.doctor.facts import (
    AGENTS,
    CONTROLLERS,
    LEASE,
    LEASES,
    SCORER,
    STATEFUL_SETS,
    Facts,
    Replica,
    UnknownError,
)
from gpuwarden.doctor.kubernetes import CUSTOM_RESOURCES_CHECK, NAMESPACE
from gpuwarden.telemetry import names

_STALE_WATCH_S: Final = 60.0
_STATUS: Final = "gpuwarden status"


def controllers_run(facts: Facts) -> Verdict:
    """Whether as many replicas are ready as there should be."""
    found = facts.named(STATEFUL_SETS, CONTROLLERS)
    if found is None:
        return failed(
            f"no StatefulSet {CONTROLLERS} in {facts.namespace}",
            "two replicas or more",
            facts.reapply("kubectl apply -k OVERLAY"),
        )
    wanted = found["spec"].get("replicas", 1)
    ready = (found.get("status") or {}).get("readyReplicas", 0)
    of = f"{ready} of {wanted} ready"
    if ready < wanted or not wanted:
        command = f"kubectl -n {facts.namespace} describe statefulset {CONTROLLERS}"
        return failed(of, "every replica ready", command)
    if wanted == 1:
        command = facts.reapply(
            f"kubectl -n {facts.namespace} scale statefulset {CONTROLLERS} --replicas=2",
            "controller.replicas=2",
        )
        expected = "two or more: while one is down nothing is created in enforced namespaces"
        return warned(of, expected, command)
    return passed(of)


def controller_answers(facts: Facts) -> Verdict:
    """Whether the rest can be asked at all, and of which replicas."""
    replicas = facts.replicas.value
    if replicas is None:
        seen = facts.controller_error or facts.replicas.why
        return failed(seen, "a controller that answers", f"{_STATUS} --server SERVER")
    clusters = sorted({one.status.cluster for one in replicas.asked})
    names = ", ".join(one.name for one in replicas.asked)
    seen = f"{names} of cluster {', '.join(clusters)}"
    if replicas.elsewhere:
        seen += f"; not asked from here: {', '.join(replicas.elsewhere)}"
    if replicas.silent:
        silent = "; ".join(f"{name}: {why}" for name, why in replicas.silent)
        command = f"kubectl -n {facts.namespace} get pods -l app.kubernetes.io/component=controller"
        return warned(f"no answer of {silent}; {seen}", "an answer of every replica", command)
    return passed(seen)


def controller_is_ready(facts: Facts) -> Verdict:
    """Whether each replica decides."""

    def judge(replica: Replica) -> Verdict:
        if replica.status.not_ready:
            return failed(replica.status.not_ready, "a controller that is ready", _STATUS)
        return passed("ready")

    return of_each(facts, judge)


def controller_has_no_warnings(facts: Facts) -> Verdict:
    """Everything that readiness warns of."""

    def judge(replica: Replica) -> Verdict:
        if replica.status.warnings:
            return warned("; ".join(replica.status.warnings), "no warnings", _STATUS)
        return passed("none")

    return of_each(facts, judge)


def versions_are_equal(facts: Facts) -> Verdict:
    """Whether controllers, agents and this program are of one version."""
    controllers = {one.name: one.status.version for one in facts.asked}
    several = len(set(controllers.values())) > 1
    found = {f"{x if several else 'controller'} {y}": y for x, y in controllers.items()}
    agents: dict[str, int] = {}
    for replica in facts.asked:
        for one in replica.status.agents:
            agents[one.name] = max(one.count, agents.get(one.name, 0))
    found |= {f"{counted(count, 'agent')} {x}": x for x, count in sorted(agents.items())}
    found[f"this program {facts.version_here}"] = facts.version_here
    if len(set(found.values())) > 1:
        workload = f"statefulset {CONTROLLERS}" if several else f"daemonset {AGENTS}"
        command = f"kubectl -n {facts.namespace} rollout status {workload} --timeout=2m"
        return warned(", ".join(found), "one version", command)
    return passed(facts.version_here + not_asked(facts.replicas.get()))


def lease_is_fresh(facts: Facts) -> Verdict:
    """Whether some replica leads, by the clock of the API server."""
    found = facts.named(LEASES, LEASE)
    command = f"kubectl -n {facts.namespace} get lease {LEASE} -o yaml"
    expected = "a leader that renews it"
    if found is None:
        return failed(f"no Lease {LEASE}", expected, command)
    spec = found["spec"]
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return failed("nobody holds it", expected, command)
    age = (facts.now.get() - datetime.fromisoformat(renewed)).total_seconds()
    if age > spec.get("leaseDurationSeconds", 15):
        return failed(f"{holder} renewed it {age:.0f} s ago", expected, command)
    return passed(f"{holder} leads")


def store_is_reachable(facts: Facts) -> Verdict:
    """Whether enrollments, reservations and the cluster's objects can be read."""
    return of_each(facts, lambda replica: _store_of(facts, replica))


def _store_of(facts: Facts, replica: Replica) -> Verdict:
    metrics = replica.metrics.get()
    gone = []
    if metrics.value(names.STORE_AVAILABLE) == 0:
        gone.append("enrollments cannot be read")
    if metrics.value(names.LEDGER_AVAILABLE) == 0:
        gone.append("the ledger cannot be read")
    old = {
        dict(labels)["resource"]: age
        for (name, labels), age in metrics.samples.items()
        if name == names.KUBE_AGE.name and age > _STALE_WATCH_S
    }
    gone += [f"{what} are {age:.0f} s old" for what, age in sorted(old.items())]
    if gone:
        expected = "answers of the Kubernetes API"
        return failed("; ".join(gone), expected, facts.log_of(replica.name))
    if metrics.value(names.STORE_AVAILABLE) is None:
        raise UnknownError(f"{names.STORE_AVAILABLE.name} is not among the controller's metrics")
    return passed("enrollments and ledger can be read")


def enforcement_is_on(facts: Facts) -> Verdict:
    """Whether refusals are carried out."""

    def judge(replica: Replica) -> Verdict:
        if replica.status.enforcement != "report":
            return passed(replica.status.enforcement)
        return warned(
            "report: everything is judged, nothing is refused",
            "enforcement: namespaces",
            facts.reapply(
                f"kubectl -n {facts.namespace} set env statefulset/{CONTROLLERS}"
                " GPUWARDEN_ENFORCEMENT-",
                "enforcement=namespaces",
            ),
        )

    return of_each(facts, judge)


def gpus_are_real(facts: Facts) -> Verdict:
    """Whether made-up GPUs are refused."""

    def judge(replica: Replica) -> Verdict:
        if replica.metrics.get().value(names.EVALUATION) != 1:
            return passed("no evaluation")
        return warned(
            "an evaluation: GPUs may be made up, and every node has level none",
            "evaluation.enabled: false, wherever anybody relies on an answer",
            f"helm uninstall {facts.release or 'gpuwarden'} --namespace {facts.namespace}",
        )

    return of_each(facts, judge)


def scorer_answers(facts: Facts) -> Verdict:
    """Whether hints come and runs are learned for good."""
    return of_each(facts, lambda replica: _scorer_of(facts, replica))


def _scorer_of(facts: Facts, replica: Replica) -> Verdict:
    metrics = replica.metrics.get()
    answers = {
        dict(labels)["path"]: value
        for (name, labels), value in metrics.samples.items()
        if name == names.HINT_SCORER.name
    }
    if not answers:
        return not_checked("no scorer is configured")
    silent = sorted(path for path, value in answers.items() if not value)
    if silent:
        seen = f"five failures in a row at {', '.join(silent)}"
        return warned(seen, "a scorer that answers", facts.log_of(replica.name))
    unsaved = int(metrics.value(names.HINT_RUNS_UNSAVED) or 0)
    if unsaved:
        seen = f"{counted(unsaved, 'run')} that the scorer could not save"
        expected = "a database that takes what is learned"
        return warned(seen, expected, facts.log_of(f"{SCORER}-0"))
    return passed("it answers")


CONTROLLERS_GROUP: Final = Group(
    "controllers",
    "Controllers",
    (
        NAMESPACE,
        CUSTOM_RESOURCES_CHECK,
        Check(
            "controllers-run",
            "the controllers run",
            "All of two or more replicas are ready.",
            controllers_run,
        ),
        Check(
            "controller-answers",
            "a controller answers you",
            "A replica that does not answer is a warning.",
            controller_answers,
            "inspect-grpc.md#what-goes-wrong",
        ),
        Check(
            "controller-ready",
            "the controller is ready",
            "",
            controller_is_ready,
            "operations.md#readiness-reasons",
        ),
        Check(
            "controller-warnings",
            "the controller warns of nothing",
            "",
            controller_has_no_warnings,
            "operations.md#readiness-reasons",
        ),
        Check(
            "versions",
            "all parts have one version",
            "They may differ during an upgrade.",
            versions_are_equal,
            "upgrades.md",
        ),
        Check(
            "lease",
            "a leader is elected",
            "",
            lease_is_fresh,
            "kubernetes-api.md",
        ),
        Check(
            "store",
            "the store of enrollments and reservations is reachable",
            f"Each replica's copy is less than {_STALE_WATCH_S:.0f} s old.",
            store_is_reachable,
            "ledger.md#states",
        ),
        Check(
            "enforcement",
            "refusals take effect",
            "With `enforcement: report` gpuwarden refuses nothing.",
            enforcement_is_on,
            "admission.md#try-it-first",
        ),
        Check(
            "evaluation",
            "made-up GPUs are refused",
            "With `evaluation.enabled` they count. Uninstall it before you install for real.",
            gpus_are_real,
            "kind.md",
        ),
        Check(
            "scorer",
            "the scorer of hints answers and saves what it learns",
            "Without it pods are created as they are.",
            scorer_answers,
            "troubleshooting.md#pods-get-no-hints",
        ),
    ),
)
